"""`Request`: a driver call as a trace keeps it; `CommandCounter`: who knows when devices did what was asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from flambeau.core.callsite import Site
from flambeau.driver.api import Launch
from flambeau.observe.tracing.timeline import CompletedCommand

NOWHERE = -1  # the device of a call that is of none, and of pinned host memory

GIVE, RECORD, WAIT, SYNC, ASK, MEMORY = "give", "record", "wait", "sync", "ask", "memory"


class Request:
    """A call. Times are the host's in nanoseconds; `first` to `last` - 1 are the `seq` of the commands that it gave.

    kind: GIVE (work), RECORD (an event), WAIT (of a stream), SYNC (of the host), ASK (a query), MEMORY (from the
    device or back). `index` is the device, `stream` and `event` are handles, 0: none. `launch`: of a launch.
    `answered`: a query's yes, or that the host has waited for the work that it gave. `reason`: why the runtime did it
    of its own accord. Another thread's commands may lie among its numbers: whose they are, streams tell.
    """

    __slots__ = (
        "answered", "begin_ns", "end_ns", "event", "first", "index", "kind", "last", "launch", "name", "nbytes",
        "reason", "site", "stream", "thread",
    )  # fmt: skip

    def __init__(self, kind: str, name: str, thread: int, site: Site, stream: int, index: int) -> None:
        self.kind = kind
        self.name = name
        self.thread = thread
        self.site = site
        self.stream = stream
        self.index = index
        self.begin_ns = self.end_ns = self.first = self.last = self.event = self.nbytes = 0
        self.answered = False
        self.reason = ""
        self.launch: Launch | None = None


class CommandCounter(Protocol):
    """It numbers commands as they are given.

    clock: the host's time in nanoseconds. given: how many commands were given so far, which is the number of the next.
    """

    @property
    def clock(self) -> Callable[[], int]: ...
    @property
    def next_seq(self) -> Callable[[], int]: ...

    def before(self, request: Request) -> None:
        """The call begins."""

    def after(self, request: Request, gave: bool) -> None:
        """It has returned, or raised and gave nothing."""

    def records(self) -> list[CompletedCommand]:
        """All commands that have run."""

    def close(self) -> None:
        """Listen no more, and give back what that took."""


class Simulated:
    """A virtual machine: its own account."""

    def __init__(self, bare: Any) -> None:
        self.clock: Callable[[], int] = bare.time_ns
        self.next_seq: Callable[[], int] = bare.next_seq
        self._records: list[CompletedCommand] = []
        self._bare = bare
        self._outer = bare.on_command
        bare.on_command = self._add

    def _add(self, record: CompletedCommand) -> None:
        self._records.append(record)
        if self._outer is not None:
            self._outer(record)

    def before(self, request: Request) -> None:
        pass

    def after(self, request: Request, gave: bool) -> None:
        pass

    def records(self) -> list[CompletedCommand]:
        return list(self._records)

    def close(self) -> None:
        self._bare.on_command = self._outer
