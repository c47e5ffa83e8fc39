"""The driver calls of a trace, and the protocol of clocks that time the devices' commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from flambeau.core.callsite import Site
from flambeau.driver.protocol import Launch
from flambeau.observe.tracing.timeline import CompletedCommand

NOWHERE = -1  # the device of calls without a device, and of pinned host memory

GIVE, RECORD, WAIT, SYNC, ASK, MEMORY = "give", "record", "wait", "sync", "ask", "memory"


class Request:
    """A driver call. Times are host times in ns; its commands have the sequence numbers `first` to `last` - 1.

    Commands of another thread may have numbers in between; their streams identify the thread.

    Attributes:
        kind: GIVE (enqueue work), RECORD (an event), WAIT (of a stream), SYNC (of the host), ASK (a query)
            or MEMORY (to or from the device).
        index: The device.
        stream, event: Handles; 0: none.
        launch: The launch, if it is one.
        answered: True for a query that returned True, and if the host has waited for the enqueued work.
        reason: Why the runtime made the call on its own account.
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
    """A machine's numbering and timing of commands.

    Attributes:
        clock: Returns the host's time in ns.
        next_seq: Returns the number of commands so far, which is the number of the next.
    """

    @property
    def clock(self) -> Callable[[], int]: ...
    @property
    def next_seq(self) -> Callable[[], int]: ...

    def before(self, request: Request) -> None:
        """Record that a driver call begins."""

    def after(self, request: Request, gave: bool) -> None:
        """Record that a driver call has ended.

        Args:
            request: The call.
            gave: True if it returned; False if it raised and enqueued nothing.
        """

    def records(self) -> list[CompletedCommand]:
        """Return all commands that have run."""

    def close(self) -> None:
        """Stop, and release its resources."""


class Simulated:
    """The numbers and simulated times of a virtual machine's commands, from its scheduler."""

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
