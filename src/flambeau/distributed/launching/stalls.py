"""`Stalls`: reports about waiting ranks: how long, for which ranks, and whether any of them can continue.

The launcher of one node runs it, or rank 0 if it serves the store of ranks that no launcher started.

# Note [Waits that nothing ends]
Problem: a rank that waits for a key which no rank will set hangs until its timeout, half an hour, without a report.
Rule: a wait for keys of the store ends when another rank sets them. Suppose every rank that has not ended waits, for
keys or in a transport (Note [Deadlocks of processes]), and none can continue before another does. Then each wait for
keys raises with the call site of every rank. A rank counts as waiting if it has no other thread and no child process
that could set the key, if its wait lasts some seconds more, and if no other process has a connection to the store.
Why: each of these could set the key. Consequences: with one of them the rank waits until its timeout, and so does a
rank that polls with `check` or with short waits. Every wait of more than 30 seconds is reported on stderr, with what
the other ranks' processes do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from flambeau.core.host.process_state import children_of, state_of
from flambeau.distributed.backends.wait_reports import Confirmation, Wait, key_of, said_by, stuck
from flambeau.distributed.stores.store_server import StoreServer

_EVERY_S = 30.0  # seconds between two printed lines about one wait
_SHORT_S = 10.0  # a wait that ends within this many seconds is not given up
_GAPS = 3  # polls at which a rank that repeats its request may be missing


class RankProcess(Protocol):
    """A rank and its process on this host.

    Attributes:
        rank: Its number among all ranks.
        pid: Its process id.
        code: Its exit status; None while it runs.
        ended: How it ended, in words.
        absence: Why `pid` is 0, in words.
    """

    rank: int
    absence: str

    @property
    def pid(self) -> int: ...
    @property
    def code(self) -> int | None: ...
    @property
    def ended(self) -> str: ...


class _Wait:
    """A rank's wait, tracked across looks; it may disappear briefly when the rank repeats its request."""

    def __init__(self, which: object, since: float) -> None:
        self.which = which
        self.since = self._said = since
        self._absent = 0

    def ends(self) -> bool:
        """Record that a look did not find the rank in this wait. Returns True if the wait has ended."""
        self._absent += 1
        return self._absent >= _GAPS

    def is_long(self, now: float) -> bool:
        """Record that the rank is in this wait. Returns True if a message about it is due."""
        self._absent = 0
        due = now - self._said >= _EVERY_S
        if due:
            self._said = now
        return due


class Stalls:
    """The detection of long waits and deadlocks among the ranks of one job.

    Args:
        server: The store of the ranks.
        members: Returns all ranks, or none while the server does not know its clients' ranks.
        report: Called with each line to print.
    """

    def __init__(
        self,
        server: StoreServer,
        members: Callable[[], Sequence[RankProcess]],
        report: Callable[[str], None],
    ) -> None:
        self._server = server
        self._members = members
        self._report = report
        self._waits: dict[int, _Wait] = {}  # process -> its wait at the last look
        self._confirmation = Confirmation()
        self._looks = 0

    def look(self) -> None:
        """Let the serving thread check for waiting ranks."""
        self._server.call(self.look_now)

    def look_now(self) -> None:
        """Report long waits and a deadlock. Called in the serving thread."""
        members = self._members()
        alive = [member for member in members if member.code is None]
        in_transport = self._in_transport(alive)
        waits = {
            member.pid: (_words_of(in_transport[member.rank]), in_transport[member.rank].mark)
            for member in alive
            if member.rank in in_transport
        } | self._server.waits()
        self._give_up(members, alive, in_transport, {process: words for process, (words, _) in waits.items()})
        now = time.monotonic()
        ranks = {member.pid: member for member in alive if member.pid}
        for process in waits.keys() | self._waits.keys():
            words, which = waits.get(process, ("", None))
            wait = self._waits.get(process)
            if wait is None or (which != wait.which and wait.ends()):
                self._waits.pop(process, None)
                if words:
                    self._waits[process] = _Wait(which, now)
            elif which == wait.which and wait.is_long(now):
                member = ranks.get(process)
                others = [_state(other) for other in members if other is not member]
                who = f"rank {member.rank}" if member else f"process {process}"
                self._report("; ".join([f"{who} has waited {now - wait.since:.0f} s for {words}", *others]))

    def _in_transport(self, alive: Sequence[RankProcess]) -> dict[int, Wait]:
        """Return the waits in CPU transports that ranks have published."""
        found = {member.rank: said_by(self._server.value_of(key_of(member.rank))) for member in alive}
        return {rank: wait for rank, wait in found.items() if wait is not None}

    def _give_up(
        self,
        members: Sequence[RankProcess],
        alive: Sequence[RankProcess],
        in_transport: dict[int, Wait],
        words: dict[int, str],
    ) -> None:
        """Make ranks raise whose waits can never end. See Note [Waits that nothing ends]."""
        self._looks += 1
        blocked = self._server.blocked_processes(_SHORT_S)
        others = tuple([member.rank for member in alive])
        in_store = {
            member.rank: Wait(hash(blocked[member.pid]), "", peers=others, any_peer=True, looks=self._looks)
            for member in alive
            if member.pid in blocked
        }
        waits = {rank: wait for rank, wait in in_transport.items() if wait.alone} | in_store
        processes = {member.pid for member in alive}
        connected = self._server.processes() | ({self._server.process} & processes)
        hopeless = all(processes) and len(stuck(waits)) == len(alive) and bool(in_store)
        hopeless = hopeless and connected == processes
        if not hopeless or any(children_of(process) for process in processes):
            waits = {}
        if self._confirmation.confirm(waits):
            lines = [_line(member, words) for member in sorted(members, key=lambda m: m.rank)]
            self._server.give_up("\n  ".join(["deadlock: no rank can go on", *lines]))


def _words_of(wait: Wait) -> str:
    return f"others at {wait.text.partition(' at ')[2]}"


def _line(member: RankProcess, words: dict[int, str]) -> str:
    return f"rank {member.rank} (process {member.pid}): " + (
        f"waits for {words[member.pid]}" if member.code is None else f"has ended, {member.ended}"
    )


def _state(member: RankProcess) -> str:
    """Return the state of a rank's process, if the operating system reports it."""
    if not member.pid:
        return f"rank {member.rank} {member.absence}"
    if member.code is not None:
        return f"rank {member.rank} has ended ({member.ended})"
    return f"rank {member.rank} (process {member.pid}) {state_of(member.pid)}"


def print_line(line: str) -> None:
    """Print a line about a wait on stderr."""
    print(f"flambeau: {line}", file=sys.stderr, flush=True)
