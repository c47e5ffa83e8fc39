"""The coordinator client: it pairs this process's contributions with those of ranks in other processes.

See Note [Members of other processes] in collectives.py; distributed/stores/coordinator.py is the server. A
launcher gives its address in FLAMBEAU_EXCHANGE as RANK@HOST:PORT; otherwise `init_process_group` gives it.
This module owns the one connection of the process, which is opened at its first use.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flambeau.core import dtype as dtypes
from flambeau.core.errors import DriverError, OutOfMemoryError
from flambeau.core.host.host_wait import Awaited
from flambeau.core.host.thread_liveness import alone
from flambeau.core.ipc.codec import LARGEST, Inbox, send
from flambeau.core.ipc.handshake import RefusedError, greet
from flambeau.core.ipc.server_watch import ServerWatch
from flambeau.driver.collective_rules import Key
from flambeau.driver.protocol import Collective, PreMul
from flambeau.driver.virtual.collectives.collectives import Meanwhile, Offer, Outcome
from flambeau.driver.virtual.scheduling.interrupts import Interrupts

_WHY = "why"  # the coordinator asks for the reason of a wait
_LOOK_S = 0.1  # between checks for Ctrl-C
_LAST_LOOKS = 20  # checks of the awaited object before the client reports it as missing
_KINDS = {kind.name: kind for kind in dtypes.DTYPES}


class RankHost(Protocol):
    """The machine whose devices are this process's members."""

    def go_on(self, other: Awaited | None) -> None: ...
    def ask_around(self) -> None: ...


class Exchange:
    """The client of the coordinator at "RANK@HOST:PORT". Implements `collectives.Outside`.

    Attributes:
        shares: True if the ranks use devices of one machine and share their capacity.
    """

    def __init__(self, address: str, shares: bool) -> None:
        rank, _, self._address = address.partition("@")
        self._rank = int(rank)
        self._server = "the launcher of the ranks" if shares else "rank 0, through which virtual GPUs meet,"
        self.shares = shares
        self._connection: socket.socket | None = None
        self._inbox, self._read = Inbox(limit=LARGEST), deque[Any]()
        self._number = 0
        self._late: list[Any] = []  # results of interrupted waits, which the next call returns
        self.idles = False  # True while the host waits for something else and may use the store
        # the machine that joined a communicator last
        self.machine: Callable[[], RankHost | None] = lambda: None

    def connect(self) -> None:
        """Connect and introduce this rank.

        Raises:
            DriverError: If the coordinator does not answer.
        """
        host, _, port = self._address.rpartition(":")
        try:
            connection = socket.create_connection((host, int(port)), timeout=60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            greet(connection)
        except RefusedError as error:
            raise DriverError(f"{self._server} at {self._address} refused this process: {error}") from None
        except (OSError, ValueError) as error:
            raise DriverError(f"{self._server} does not answer at {self._address}: {error}") from error
        self._connection = connection
        self._send([0, "hello", self._rank])
        self._receive()

    def __del__(self) -> None:
        if self._connection is not None:
            self._connection.close()

    # -- Outside --------------------------------------------------------------------------------------------
    def join(
        self,
        unique: bytes,
        called: Sequence[int],
        members: Sequence[tuple[int, int]],
        site: str,
        meanwhile: Meanwhile,
    ) -> dict[int, int]:
        named = list(called)
        devices, news = self._ask("join", unique, named, [list(member) for member in members], site)
        while devices is None:  # other ranks may need work that this process's devices can do already
            meanwhile(self._outcomes(news))
            devices, news = self._ask("join", unique, named, [], site)
        return dict(devices)

    def offer(self, unique: bytes, key: Key, place: int, offer: Offer) -> None:
        call = offer.call
        contribution = [
            call.kind,
            call.count,
            call.dtype.name,
            [call.op.factor.hex()] if isinstance(call.op, PreMul) else call.op,
            call.peer,
            offer.text,
            offer.data,
            offer.ready_ns,
        ]
        self._ask("offer", unique, list(key), place, contribution)

    def wait(self, why: Callable[[], str]) -> list[Outcome]:
        news = self._ask("wait", "", alone())
        if news == _WHY:  # there may be a deadlock; only now is the costly description needed
            news = self._ask("wait", why(), alone())
        return self._outcomes(news)

    def look(self) -> list[Outcome]:
        return self._outcomes(self._ask("look", alone()))

    def idle(self, other: Awaited) -> tuple[list[Outcome], bool]:
        self.idles = True
        try:
            news = self._ask("idle", other.words, other=other)
            while news == _WHY:  # all other ranks wait as well, so check for a deadlock
                news = None if self._comes_soon(other) else self._ask("idle", other.words, other=other)
            if news is None:
                self._ask("awake")
        except DriverError:  # a deadlock; the object that the host waits for raises its own error
            return [], True
        finally:
            self.idles = False
        return self._outcomes(news), news is None

    def _comes_soon(self, other: Awaited) -> bool:
        assert self._connection is not None
        return any(other.look(self._connection)[0] for _ in range(_LAST_LOOKS))

    def reserve(self, index: int, key: int, nbytes: int, capacity: int) -> None:
        """Reserve bytes of a device's capacity, which this rank shares with other ranks.

        Raises:
            OutOfMemoryError: If too few bytes are left.
        """
        others = self._ask("reserve", index, key, nbytes, capacity)
        if others is not None:
            contribution = ", ".join(f"process {process} holds {held:,} bytes" for process, held in others)
            raise OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {nbytes:,} bytes on cuda:{index}, which has {capacity:,} for "
                f"all ranks; {contribution}"
            )

    def reserved_by_other_ranks(self, index: int) -> list[tuple[int, int]]:
        """Return (process, bytes) for the other ranks that use a device."""
        return [(process, nbytes) for process, nbytes in self._ask("held", index) or []]

    def release(self, index: int, key: int) -> None:
        """Release what `reserve` reserved."""
        self._ask("release", index, key)

    # -- messages -------------------------------------------------------------------------------------------
    def _outcomes(self, news: list[Any] | None) -> list[Outcome]:
        contribution, self._late = [*self._late, *(news or [])], []
        return [
            (unique, (key[0], key[1], key[2]), {slot: _offer(part) for slot, part in parts})
            for unique, key, parts in contribution
        ]

    def _ask(self, *request: Any, other: Awaited | None = None) -> Any:
        """Send a request and return its answer.

        The answer is None if Ctrl-C interrupted a wait, whose answer is kept for later, or if `other`
        arrived first.

        Raises:
            DriverError: If the answer is a report.
        """
        if self._connection is None:
            self.connect()
        self._number += 1
        waits = request[0] in ("wait", "look", "idle")
        try:
            self._send([self._number, *request])
            while (answer := self._receive(waits, other)) is not None:
                number, status, value = answer
                if number == self._number:
                    if status == "error":
                        raise DriverError(value)
                    return value
                if status == "ok":  # the answer to an interrupted wait
                    self._late += value
                    if waits:
                        return []
        except OSError as error:
            raise DriverError(f"{self._server} has ended or cannot be reached: {error}") from error
        return None

    def _send(self, request: list[Any]) -> None:
        """Send the whole request, however large. Only waits for answers check for interrupts."""
        assert self._connection is not None
        self._connection.settimeout(None)
        send(self._connection, ["meet", request, [], 0, True, ""])
        self._connection.settimeout(_LOOK_S)

    def _receive(self, waits: bool = False, other: Awaited | None = None) -> Any:
        """Return the next message; None if a wait was interrupted or `other` has arrived."""
        assert self._connection is not None
        host, _, port = self._address.rpartition(":")
        watch = ServerWatch(host, int(port))
        while not self._read:
            watch.report()
            if waits and _interrupt_is_pending():
                return None
            if other is not None:
                come, answered = other.look(self._connection)
                if come:
                    return None
                if not answered:
                    continue
            try:
                part = self._connection.recv(1 << 20)
            except TimeoutError:
                continue
            if not part:
                raise ConnectionError("the connection was closed")
            self._read += self._inbox.feed(part)
        return self._read.popleft()


def _offer(contribution: list[Any]) -> Offer:
    kind, count, name, op, peer, text, data, ready = contribution
    word = op if isinstance(op, str) else PreMul(float.fromhex(op[0]))
    return Offer(Collective(kind, 0, 0, count, _KINDS[name], word, peer), text, data, ready)


def _interrupt_is_pending() -> bool:
    """Return True if a Ctrl-C is held back (see interrupts.py)."""
    holder = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
    return isinstance(holder, Interrupts) and holder.pending is not None


_exchange: Exchange | None = None


def of_process() -> Exchange | None:
    """Return this process's coordinator client; None without a coordinator."""
    global _exchange
    if _exchange is None and (address := os.environ.get("FLAMBEAU_EXCHANGE")):
        _exchange = Exchange(address, shares=True)
    return _exchange


def go_on(other: Awaited | None) -> None:
    """Implement `registry.go_on`."""
    machine = _current_machine()
    if machine is not None:
        machine.go_on(other)


def ask_around() -> None:
    """Implement `registry.ask_around`."""
    machine = _current_machine()
    if machine is not None:
        machine.ask_around()


def _current_machine() -> RankHost | None:
    return None if _exchange is None or _exchange.idles else _exchange.machine()


def meet_at(address: str) -> None:
    """Use the coordinator at this address, unless the process has one already."""
    global _exchange
    if of_process() is None:
        _exchange = Exchange(address, shares=False)
        # ranks that wait for this one must learn of its end even if it never uses a collective
        _exchange.connect()
