"""Runs of a program of two host threads in a chosen order of its units, which locks that no detector sees enforce."""

import _thread
import linecache
from collections import Counter, defaultdict

import flambeau as torch
from flambeau.testing.soundness.executor import FILE, _threads_that_fail, _torch


def units(program):
    """Return the places that threads may be stopped after, with their steps: a step or, of an autocast block, each
    inner step and the exit.
    """
    for at, step in enumerate(program.steps):
        if step.operation == "autocast":
            yield from (((at, inner), step) for inner in range(len(step.inner)))
        yield (at,), step


def predecessors(program):
    """Return unit -> the units that must be before it: of its thread, and those whose messages it waits for."""
    before, last, puts, gets = defaultdict(set), {}, defaultdict(list), Counter()
    special = {}
    for at, (_, step) in enumerate(units(program)):
        what, queue = step.operation, step.arguments[0] if step.arguments else None
        before[at] |= {last[step.host]} if step.host in last else {special["start"]} if step.host else set()
        last[step.host] = at
        if what == "put":
            puts[queue].append(at)
        elif what == "get":
            before[at].add(puts[queue][gets[queue]])
            gets[queue] += 1
        elif what == "wait_for_flag":
            before[at].add(special["set_flag"])
        elif what == "join" and 1 in last:
            before[at].add(last[1])
        special[what] = at
    return before


def draw_order(program, rng):
    """Return a random order of the units that the threads of a program may run in; often one thread is far ahead."""
    before, order = predecessors(program), []
    left = {host: [at for at, (_, step) in enumerate(units(program)) if step.host == host] for host in (0, 1)}
    ahead = rng.choice((0, 0.2, 0.5, 0.8, 1))
    while any(left.values()):
        ready = [host for host, steps in left.items() if steps and before[steps[0]] <= {*order}]
        host = ready[0] if len(ready) == 1 else int(rng.random() < ahead)
        order.append(left[host].pop(0))
    return order


class Turns:
    """The function that a program calls after each of its units (-1: before the second thread's first one).

    It returns when the thread's next unit has its turn.
    """

    def __init__(self, program, order):
        self._following, last = {}, {1: -1}
        for at, (_, step) in enumerate(units(program)):
            if step.host in last:
                self._following[last[step.host]] = at
            last[step.host] = at
        self._turns = {at: _thread.allocate_lock() for at in order}
        for turn in self._turns.values():
            turn.acquire()
        self._left = iter(order[1:])

    def __call__(self, at):
        if at >= 0 and (after := next(self._left, None)) is not None:
            self._turns[after].release()
        following = self._following.get(at)
        if following is not None:
            self._turns[following].acquire()


def run(program, order):
    """Run a program in an order of its units; return its certificate, its output and the error, if there is one."""
    text, _ = program.script({place: f"turns({at})" for at, (place, _) in enumerate(units(program))})
    text = text.replace("def body():\n", "def body():\n    turns(-1)\n")
    linecache.cache[FILE] = (len(text), None, text.splitlines(True), FILE)
    printed, problem = [], ""
    names = {
        "__name__": "program",
        "print": lambda *values: printed.append(values),
        "turns": Turns(program, order),
    }
    with torch.virtual(2, "a100-40g", races="warn") as machine:
        try:
            with _torch(), _threads_that_fail(names) as failed:
                exec(compile(text, FILE, "exec", dont_inherit=True), names)
        except Exception as error:
            problem = repr(error)
        certificate = machine.certificate()
        names.clear()
    return certificate, printed, "".join(failed) or problem
