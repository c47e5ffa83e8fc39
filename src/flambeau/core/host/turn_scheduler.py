"""`Baton`: threads of which one runs at a time, in a reproducible order. Each passes the turn when it waits.

Code that may wait for another thread first calls `seat()`. A thread that takes turns must not block on a lock or a
condition, since no other thread would run; it waits by `Seat.wait`. A thread without a seat blocks as usual. A long
turn, as of a thread that sleeps, is reported on stderr every 30 seconds while others wait.
"""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence

from flambeau.core.callsite import Site, caller, place, thread_site
from flambeau.core.errors import DriverError

_LOOK_S = 10.0  # seconds between two checks whether the same thread still has the turn
_LOOKS = 3  # checks of one turn before a message about it


class Stopped(BaseException):
    """A signal that ends waiting threads after another thread has failed, whose error is reported."""


class Seat:
    """One thread's place among those that take turns. `number` counts them from 0."""

    def __init__(self, baton: Baton, number: int) -> None:
        self.baton = baton
        self.number = number
        self.ended = False
        # the condition that it waits for; None before it begins and while it runs
        self._ready: Callable[[], bool] | None = None
        self._what: Callable[[], str] = str
        self._site: Site | None = None
        self._lazy = False
        self._limit: float | None = None  # the time limit of its wait in seconds
        self._mine = False  # True if the thread has the turn
        self._refused = ""  # why its wait will never end; empty while it may
        self._bell = threading.Condition()

    def wait(
        self,
        ready: Callable[[], bool],
        what: Callable[[], str],
        condition: threading.Condition | None = None,
        lazy: bool = False,
        limit: float | None = None,
    ) -> None:
        """Let other threads run until `ready()` is True. Any thread may call `ready`, which must not change anything.

        Args:
            what: Description of the wait for reports.
            condition: Condition of a lock that this thread holds; released while it waits.
            lazy: Also return when no other thread can run, because this one can produce what it waits for.
            limit: Seconds. No clock runs: if no thread can run, the wait with the smallest limit ends first.

        Raises:
            DriverError: If no thread can run, with the wait of each.
        """
        if ready():
            return
        self._ready, self._what, self._site, self._lazy, self._limit = ready, what, caller(), lazy, limit
        outer = self._bell
        self._bell = outer if condition is None else condition
        try:
            self.baton.pass_on(self)
            with self._bell:
                self._bell.wait_for(lambda: self._mine)
            self._look_up()
        finally:
            self._bell = outer
            self._ready = None
            self._lazy, self._limit = False, None

    def pause(self, condition: threading.Condition | None = None) -> None:
        """Let other threads run once, if any can. For a thread that polls repeatedly."""
        turns = iter((False,))
        self.wait(lambda: next(turns, True), str, condition)

    def _look_up(self) -> None:
        """Raise if this thread got the turn because another one has failed, or because its wait can never end."""
        if self.baton.error is not None:
            raise Stopped
        if self._refused:
            why, self._refused = self._refused, ""
            raise DriverError(why)

    def refuse(self, why: str) -> None:
        """Make the thread's wait raise DriverError with `why`."""
        self._refused = why
        self.give()

    def take(self) -> None:
        """Wait for the first turn."""
        with self._bell:
            self._bell.wait_for(lambda: self._mine)

    def give(self) -> None:
        """Hand it the baton."""
        with self._bell:
            self._mine = True
            self._bell.notify_all()

    def leave(self) -> None:
        self._mine = False

    @property
    def has_turn(self) -> bool:
        """Return True if it has the baton."""
        return self._mine and not self.ended

    @property
    def waits(self) -> bool:
        """Return True if it does not run and has not ended."""
        return not self._mine and not self.ended

    @property
    def able(self) -> bool:
        """Return True if this thread could continue."""
        return not self.ended and (self._ready is None or self.baton.error is not None or self._ready())

    @property
    def drives(self) -> bool:
        """Return True if the thread may continue when no other thread can."""
        return self._lazy and not self.ended

    @property
    def limit(self) -> float:
        """Return the longest time that this thread waits, in seconds."""
        return math.inf if self._limit is None else self._limit

    def __str__(self) -> str:
        if self.ended:
            return f"rank {self.number} has ended"
        at = f" at {place(self._site)}" if self._site is not None else ""
        return f"rank {self.number}{at}: {self._what()}"


class Baton:
    """A set of `size` threads that take turns: in a circle, or as `choose` selects from the numbers of runnable
    threads.

    `switched(before, after)` is called at each change, while no thread runs.
    """

    def __init__(
        self,
        size: int,
        choose: Callable[[Sequence[int]], int] | None = None,
        switched: Callable[[int, int], None] = lambda before, after: None,
    ) -> None:
        self.seats = [Seat(self, number) for number in range(size)]
        self.error: BaseException | None = None  # the exception of the first thread that failed
        self.failed = -1  # the failed thread's number
        self._turns = 0  # number of turns so far
        self._choose = choose
        self._switched = switched

    def run(self, bodies: Sequence[Callable[[], None]]) -> BaseException | None:
        """Run each body in a separate thread until all have ended. Returns the first error, or None."""
        threads = [
            threading.Thread(target=self._body, args=(seat, body), name=f"rank {seat.number}", daemon=True)
            for seat, body in zip(self.seats, bodies, strict=True)
        ]
        for thread in threads:
            thread.start()
        self.seats[0 if self._choose is None else self._choose(range(len(bodies)))].give()
        try:
            self._join(threads)
        except BaseException as error:  # Ctrl-C: each thread ends at its next wait
            self.error = self.error or error
            raise
        return self.error

    def _join(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for the end of all threads, and report threads with long turns."""
        seen, looks = self._turns, 0
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK_S)
                looks = looks + 1 if self._turns == seen and thread.is_alive() else 0
                seen = self._turns
                if looks and looks % _LOOKS == 0:
                    self._name_turn(threads, looks * _LOOK_S)

    def _name_turn(self, threads: Sequence[threading.Thread], seconds: float) -> None:
        """Print which thread has the turn, its line, and the threads that wait for it."""
        waiting = [str(s.number) for s in self.seats if s.waits]
        for seat, thread in zip(self.seats, threads, strict=True):
            site = thread_site(thread.ident)
            if seat.has_turn and waiting and site is not None:
                print(
                    f"flambeau: rank {seat.number} has run for {seconds:.0f} s at {place(site)} without a wait for "
                    f"others; meanwhile these ranks wait: {', '.join(waiting)}",
                    file=sys.stderr, flush=True,
                )  # fmt: skip

    def _body(self, seat: Seat, body: Callable[[], None]) -> None:
        local.seat = seat
        seat.take()
        try:
            if self.error is None:
                body()
        except Stopped:
            pass
        except BaseException as error:  # `run` raises it, also if it is an exit or an interrupt
            if self.error is None:
                self.error, self.failed = error, seat.number
        seat.ended = True
        self.pass_on(seat)

    def pass_on(self, seat: Seat) -> None:
        """Pass the turn to a thread that can continue.

        Raises:
            DriverError: If no thread can run.
        """
        circle = self._circle(seat)
        able = [s.number for s in circle if s.able] or [s.number for s in circle if s.drives][-1:]
        if not able:
            self._give_up(seat)
            return
        chosen = self.seats[able[0] if self._choose is None else self._choose(able)]
        if chosen is not seat:
            self._switch(seat, chosen)
        seat.leave()
        self._turns += 1
        chosen.give()

    def _give_up(self, seat: Seat) -> None:
        """Make a wait raise because no thread can run: the wait with the smallest limit, or else the first."""
        waiting = [s for s in (seat, *self._circle(seat)) if not s.ended]
        if not waiting:
            return
        report = "\n  ".join(["deadlock: no rank can go on", *[str(s) for s in self.seats]])
        chosen = min(waiting, key=lambda s: s.limit)
        if chosen is seat:
            raise DriverError(report)
        self._switch(seat, chosen)
        seat.leave()
        self._turns += 1
        chosen.refuse(report)

    def _switch(self, seat: Seat, chosen: Seat) -> None:
        """Report a change of turn. An error there ends all threads."""
        try:
            self._switched(seat.number, chosen.number)
        except Exception as error:
            if self.error is None:
                self.error, self.failed = error, seat.number

    def _circle(self, seat: Seat) -> list[Seat]:
        """Return all seats, from the next one on."""
        return self.seats[seat.number + 1 :] + self.seats[: seat.number + 1]


class ThreadSeat(threading.local):
    """The seat of a thread that takes turns."""

    seat: Seat | None = None


local = ThreadSeat()


def seat() -> Seat | None:
    """Return the calling thread's seat, or None if it does not take turns."""
    return local.seat
