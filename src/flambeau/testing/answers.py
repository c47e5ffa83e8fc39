"""`Answers`: exploration of programs that poll: every combination of answers, and sampled runs.

# Note [Answers]
A graph represents the runs whose polls return equal answers: a poll that returns True is ordered after its work, one
that returns False orders nothing. Each combination of answers therefore has its own graph, whose orders fall into
classes (Note [Classes]). Combinations are found one from another. A run in which further polls return True shows the
next polls. Each of them whose answer the host cannot know from an earlier wait is a branch, in which it returns False.

The runtime polls as well, to find out whether memory can be reused; by each run's certificate no value depends on these
answers. A program that repeats the same poll in a loop could receive False forever; without other work in between it
receives it at most `_NOES` times. Ranks under turn-taking poll each other's work, and the next turn depends on the
answers, so their runs are only sampled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from flambeau.testing.orders import Orders, names
from flambeau.testing.runs import Run, Runs, answers_of, questions

_NOES = 2  # to the same question in a row, with nothing in between
_TRIES = 40  # runs to find out which answers are needed for a wrong outcome


class Answers:
    """The exploration of a program that polls."""

    def __init__(self, runs: Runs) -> None:
        self.runs, self.found = runs, runs.found
        # the certificate leaves these open; this search decides them
        self._queries = runs.first.certificate.queries
        self.found.violated = [text for text in self.found.violated if text not in self._queries]
        self._usual = answers_of(runs.first.graph)
        # combinations of first answers to try, those with few negative answers first
        self._waiting = deque([""])
        self._cut = False

    def look(self, kinds: list[str], seed: int) -> None:
        """Alternate combinations of answers with sampled runs, until all are explored or the limit is reached."""
        rest = [kind for kind in kinds if kind != "exhaustive"]
        every = self._every() if len(rest) < len(kinds) and not self.runs.first.graph.turns else None
        samples = self._samples(rest if rest or every else ["random"], seed)
        if every is None:
            self.found.whole = "the host asked whether work is done, and its answers depend on the order"
        while self.runs.going:
            if every is not None and next(every, self) is self:
                self.found.complete = not self._cut
                if self.found.complete and not self.found.violated:
                    return
                every = None
            if self.runs.going and next(samples, self) is self and every is None:
                break
        if not self.found.complete:
            self.found.violated = [*self.found.violated, *self._queries]

    def _every(self) -> Iterator[None]:
        """Explore one combination of answers in each step, or one order of a combination that was seen before."""
        orders: deque[tuple[Orders, Iterator[None]]] = deque()
        while self._waiting or orders:
            if self._waiting:
                found = self._run_with_answers(self._waiting.popleft())
                if found is not None:
                    orders.append((found, found.exhaust()))
                yield
            if orders:
                one, steps = orders.popleft()
                if next(steps, self) is not self:
                    orders.append((one, steps))
                    yield
                self._cut |= one.cut

    def _run_with_answers(self, answers: str) -> Orders | None:
        """Run the program with these answers, and yes afterwards. Returns None if the program is not deterministic."""
        found, name = self.found, f"exhaustive:{self.found.schedules}"
        found.schedules += 1
        run = self.runs.judge(name, "answers:" + answers, races="warn")
        if run is None:
            return None
        found.answers += 1
        certificate = run.certificate
        self.runs.learn(certificate.races, [t for t in certificate.violated if t not in certificate.queries])
        orders = Orders(self.runs, run).count()
        self._branch(len(answers), run, orders)
        if run.outcome != found.expected:
            self.runs.fail(name, run, self._fewest)
        return orders

    def _branch(self, begin: int, run: Run, orders: Orders) -> None:
        """Add the combinations that answer one of the polls after `begin` with False."""
        asked, said = questions(run.graph), answers_of(run.graph)
        for i in range(begin, len(asked)):
            if asked[i].poll.done and not orders.conflicts.is_answer_known(asked[i]):
                if _noes(asked, i) < _NOES:
                    self._waiting.append(said[:i] + "n")
                else:
                    self.found.most_refusals = _NOES

    def _fewest(self, run: Run) -> tuple[str, Run]:
        """Answer like the recorded run, or with no, all queries that do not matter for the wrong outcome."""
        tries, size = _TRIES, len(answers_of(run.graph))
        while size and tries:
            said, begin = answers_of(run.graph), 0
            while begin < len(said) and tries and self.runs.patient:
                usual = self._usual[begin : begin + size].ljust(size, "n")[: len(said) - begin]
                fewer = said[:begin] + usual + said[begin + size :]
                if fewer != said:
                    again, tries = self.runs.again("simpler answers", f"answers:{fewer}"), tries - 1
                    if again.outcome == run.outcome:
                        run, said = again, answers_of(again.graph)
                begin += size
            size //= 2
        return run.token, run

    # -- samples ------------------------------------------------------------------------------------------
    def _samples(self, kinds: list[str], seed: int) -> Iterator[None]:
        """Run the whole program once in each step."""
        for schedule in names(kinds, seed) if kinds else ():
            self.found.schedules += 1
            run = self.runs.judge(schedule, schedule)
            if run is not None and run.outcome != self.found.expected:
                self.runs.fail(schedule, run, self._simplest)
            yield

    def _simplest(self, run: Run) -> tuple[str, Run]:
        """Return the failing order with the fewest swaps, or if ranks take turns the fewest choices."""
        if run.graph.turns:
            return self._shortest(run)
        return Orders(self.runs, run).simplest(run, run.graph.steps_of_token(run.token))

    def _shortest(self, run: Run) -> tuple[str, Run]:
        """Return the shortest prefix of a run's choices that still has the wrong outcome."""
        low, high = 0, run.graph.choices(run.token)
        graph, whole, token = run.graph, run.token, run.token
        while low < high and self.runs.patient:
            middle = (low + high) // 2
            shorter = graph.cut(whole, middle)
            again = self.runs.again("a shorter order", "replay:" + shorter)
            if again.outcome != self.found.expected:
                high, token, run = middle, shorter, again
            else:
                low = middle + 1
        return token, run


def _noes(asked: list[Any], at: int) -> int:
    """Return the number of negative answers that the query got immediately before."""
    count = 0
    while at and asked[at].at == asked[at - 1].at + 1 and _same(asked[at].poll, asked[at - 1].poll):
        at -= 1
        count += 1
    return count


def _same(later: Any, earlier: Any) -> bool:
    return (later.stream, later.count) == (earlier.stream, earlier.count) and not earlier.done
