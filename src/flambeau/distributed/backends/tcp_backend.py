"""`TcpBackend`: collectives of CPU tensors between processes, over TCP. PyTorch calls it "gloo".

`tcp_steps.py` divides collectives into messages, `tcp_links.py` moves them. This module pairs messages with their
receivers, and compares what the ranks of a group ask for.

# Note [How ranks agree on a collective]
Each rank sends every other member an announcement of each collective: its kind, arguments and line, and the messages
that it will exchange with that member. A collective ends when all announcements have arrived, so no rank leaves one
that another has not joined. Announcements that differ end the group with every rank's line.

# Note [When data is sent]
Messages of a collective up to `SMALL` bytes are sent immediately, and wait in a late receiver's memory. Larger
ones are sent when the receiver has reported that its memory is ready. A message of the program is offered first, and
sent when the receiver accepts it or, if it is small, with the offer. `send` returns when the other rank has called
`recv`, as with PyTorch's gloo. A rank that is late therefore never holds more than small messages of others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import numpy as np

from flambeau.core.callsite import Site, caller, place
from flambeau.core.host_arrays import bytes_at
from flambeau.core.ipc.codec import Either, fits, pack, unpack
from flambeau.distributed.backends import rank_processes
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.backends.flat_backend import Build, FlatBackend, _nothing
from flambeau.distributed.backends.monitored_barrier import Monitored
from flambeau.distributed.backends.peer_connections import connect_peers
from flambeau.distributed.backends.process_work import ANY, ProcessWork
from flambeau.distributed.backends.tcp_links import Head, PeerLinks
from flambeau.distributed.backends.tcp_steps import SMALL, Array, Steps, Transfer, exchange, steps_of
from flambeau.distributed.backends.wait_reports import PendingOperation, Waits, waits_of
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.stores.store import HashStore, PrefixStore, Store
from flambeau.distributed.work import Work
from flambeau.driver.collective_rules import PAIRED, common_arguments, describe
from flambeau.driver.protocol import Collective

_CALL, _READY, _DATA, _OFFER, _ACCEPT, _REFUSE, _MESSAGE = range(1, 8)  # kinds of frames
_LONGEST_TEXT = 1 << 24  # the maximum bytes of an announcement or an offer
_PATIENCE_S = 5.0  # seconds to wait for the call sites of ranks that disagree
_PAUSE_S = 0.05  # seconds; the longest sleep of a waiting host
_CALL_SCHEMA = [str, str, ([int, str],), ([int, str],)]
_OFFER_SCHEMA = [int, int, str, str, Either(None, bytes)]
_ENDS = {"left": "rank {} has left the group", "ended": "the process of rank {}, {}, has ended"}
Key = tuple[int, int, int]
"""The other rank, the collective's number, the message's sub-number."""


class TcpTransport:
    """The process's part of all groups over TCP: its waits, and its pending operations."""

    def __init__(self, store: Store | None, waits: Waits) -> None:
        self.store = store  # the store of all ranks
        self.waits = waits
        self.pending: set[TcpOperation] = set()

    def dead(self, rank: int) -> str:
        """Return "": the connections report the end of a rank."""
        return ""

    def pending_besides(self, work: ProcessWork) -> list[PendingOperation]:
        mine = getattr(work, "operation", None)
        others = [operation.description for operation in list(self.pending) if operation is not mine]
        return [description for description in others if description is not None]


class TcpOperation:
    """A collective or a message that is in progress.

    Attributes:
        needs: Number of frames that must still be exchanged with each rank.
        failure: Why the operation cannot end; "" if it may.
        differs: True if the ranks disagree on the collective.
        source: Rank that a message is from.
        description: What it is for the deadlock detection of other ranks, set by its work.
        keep: Objects that own the memory.
    """

    def __init__(self, backend: TcpBackend, number: int, keep: object) -> None:
        self.number = number
        self.keep = keep
        self.needs: Counter[int] = Counter()
        self.failure = ""
        self.differs = False
        self.source = ANY
        self.description: PendingOperation | None = None
        self.done = threading.Event()
        self._backend = backend
        self._open = 1  # unfinished frames and tasks, and the caller that begins the operation
        backend.transport.pending.add(self)
        backend.operations.add(self)

    def hold(self, rank: int | None = None) -> None:
        """Count one more frame to a rank, or one more task, that must end before the operation does."""
        self._open += 1
        if rank is not None:
            self.needs[rank] += 1

    def release(self, rank: int | None = None) -> None:
        """Count one transfer of the operation as finished."""
        self._open -= 1
        if rank is not None:
            self.needs[rank] -= 1
        if not self._open:
            self._end()

    def fail(self, why: str) -> None:
        if not self.done.is_set():
            self.failure = why
            self._end()

    def differ(self) -> None:
        if not self.done.is_set():
            self.differs = True
            self._end()

    def _end(self) -> None:
        self._backend.operations.discard(self)
        self._backend.transport.pending.discard(self)
        self.done.set()
        self._backend.settle()


class _Task:
    """The steps of one collective. Each step begins after all transfers of the previous one."""

    def __init__(self, backend: TcpBackend, operation: TcpOperation, steps: Steps) -> None:
        self._backend = backend
        self._operation = operation
        self._steps = steps
        self._left = 0
        operation.hold()

    def advance(self) -> None:
        while True:
            try:
                step = next(self._steps, None)
            except Exception as error:  # an error of the reduction
                self._operation.fail(f"{type(error).__name__}: {error}")
                return
            if step is None:
                self._operation.release()
                return
            self._left = 1
            for transfer in step:
                if transfer.memory.nbytes:
                    self._left += 1
                    self._operation.hold(transfer.peer)
                    self._backend.transfer(self._operation, transfer, partial(self._end, transfer.peer))
            self._left -= 1
            if self._left:
                return

    def _end(self, rank: int) -> None:
        self._left -= 1
        if not self._left:
            self.advance()
        self._operation.release(rank)


class _End:
    """One end of a program's message: an offer from a rank, or an unmatched receive."""

    def __init__(self, peer: int, number: int, kind: tuple[int, str], text: str) -> None:
        self.peer = peer
        self.number = number  # the message's number at its sender
        self.kind = kind  # count and dtype
        self.text = text
        self.memory: Array = np.empty(0, np.uint8)
        self.data: bytes | None = None  # data of a small message, sent with its offer
        self.operation: TcpOperation | None = None  # None for an offer from another rank


class _OpenCall:
    """A collective that this rank has begun and that some ranks have not announced."""

    def __init__(
        self, operation: TcpOperation, announcement: Callable[[int], list[Any]], others: set[int]
    ) -> None:
        self.operation = operation
        self.announcement = announcement  # sent to every other rank
        self.missing = others


class TcpBackend(FlatBackend):
    """The backend of CPU tensors over TCP. All members of a group create it together."""

    kind = "tcp"
    name = "gloo"

    def __init__(self, place: Place, transport: TcpTransport) -> None:
        super().__init__(place)
        self.transport = transport
        self.aborted = False
        self.operations: set[TcpOperation] = set()
        self._mismatch = ""  # report of ranks that disagreed, which ends the group
        self._differs = False  # True after ranks have disagreed: data may not fit
        self._number = self._messages = 0
        self._open_calls: dict[int, _OpenCall] = {}  # number -> open call
        self._announced: dict[int, dict[int, list[Any]]] = {}  # number -> rank -> announcement
        # key -> memory for data and its callback
        self._expected: dict[Key, tuple[Array, Callable[[], None]]] = {}
        self._early: dict[Key, bytearray] = {}  # small data whose receiver is late
        self._held: dict[Key, tuple[Array, Callable[[], None]]] = {}  # large data whose receiver is late
        self._ready: set[Key] = set()  # large data that the receiver awaits
        self._offers: dict[int, list[_End]] = {}  # tag -> offers that no receipt has matched
        self._receipts: dict[int, list[_End]] = {}
        self._offered: dict[int, _End] = {}  # number -> message that this rank sends
        self._accepted: dict[tuple[int, int], _End] = {}  # (rank, number) -> receipt
        self._monitored = Monitored(place, lambda rank: self.why_gone(place.ranks.index(rank)))
        connections = connect_peers(place)
        self._processes = [
            text.decode().partition(" ")[0]
            for text in place.store.multi_get(rank_processes.keys_of(range(place.size)))
        ]
        self._links = PeerLinks(connections, self)
        self._links.start()

    def barrier(self, device: Any = None, async_op: bool = False) -> Work:
        self._check_alive()
        if self.agreement is not None:
            self.agreement.compare(["barrier"], "barrier")
        return self._collective([], "barrier", ["barrier"], [], [], _nothing, caller())

    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        self._check_alive()
        self._monitored.pass_through(self.timeout if timeout is None else timeout, wait_all_ranks)

    def close(self) -> None:
        """Leave the group after pending operations."""
        with self._links.lock:
            self._links.leave(not self.operations)

    def abort(self) -> None:
        self.aborted = True
        with self._links.lock:
            for operation in list(self.operations):
                operation.fail("the process group was aborted")
            self._links.close()

    def settle(self) -> None:
        """Update the state after an operation has ended. The caller holds the lock."""
        self._links.settle(not self.operations)

    def _run(
        self,
        tensors: Sequence[Any],
        build: Build,
        after: Callable[[], None] = _nothing,
        async_op: bool = False,
        results: Sequence[Any] | None = None,
        pair: int | None = None,
        channel: object = None,
    ) -> Work:
        self._check_alive()
        site, ranks = caller(), self.place.ranks
        calls = list(build())
        if self.agreement is not None:
            self.agreement.check(calls)
        for call in calls:
            self._touch(call)
        shown, keep = list(tensors if results is None else results), list(tensors)
        if isinstance(channel, int):
            return self._message(calls[0], channel, shown, keep, after, site)
        what = " and ".join(dict.fromkeys([describe(call, ranks) for call in calls]))
        alike = [repr(common_arguments(call)) for call in calls if call.kind not in PAIRED]
        return self._collective(calls, what, alike, shown, keep, after, site)

    def _check_alive(self) -> None:
        if self.aborted:
            raise DistBackendError("the process group was aborted")
        if self._mismatch:
            raise DistBackendError(self._mismatch)

    def _line(self, site: Site, what: str) -> str:
        return f"rank {self.place.ranks[self.place.rank]} at {place(site)}: {what}"

    # -- collectives --------------------------------------------------------------------------------------

    def _collective(
        self,
        calls: Sequence[Collective],
        what: str,
        alike: Sequence[str],
        shown: list[Any],
        keep: list[Any],
        after: Callable[[], None],
        site: Site,
    ) -> TcpWork:
        """Begin collectives together. See Note [How ranks agree on a collective]."""
        rank, size = self.place.rank, self.place.size
        messages = [call for call in calls if call.kind in PAIRED]

        def announcement(peer: int) -> list[Any]:
            ends = [
                [[c.count, c.dtype.name] for c in messages if c.kind == kind and c.peer == peer]
                for kind in PAIRED
            ]
            return [self._line(site, what), " ".join(alike), *ends]

        steps = [steps_of(c, n, rank, size) for n, c in enumerate(calls) if c.kind not in PAIRED]
        if messages:
            steps.append(exchange(messages, rank))
        with self._links.lock:
            self._number += 1
            operation = TcpOperation(self, self._number, keep)
            others = {peer for peer in range(size) if peer != rank}
            self._open_calls[self._number] = _OpenCall(operation, announcement, {*others})
            with self._links.together():
                for peer in others:
                    operation.hold(peer)  # until its announcement arrives
                    operation.hold(peer)  # this one
                    ends = partial(operation.release, peer)
                    self._links.send(peer, _CALL, self._number, 0, pack(announcement(peer)), ends)
                for peer in list(self._announced.get(self._number, ())):
                    self._compare(self._number, peer)
                self._fail_without(operation)
                if not operation.done.is_set():
                    for task in [_Task(self, operation, each) for each in steps]:
                        task.advance()
            operation.release()
        return TcpWork(shown, self, operation, [(what, None)], after, site)

    def _compare(self, number: int, rank: int) -> None:
        """Compare a rank's announcement with this rank's."""
        mine = self._open_calls[number]
        _, alike, sends, receives = self._announced[number][rank]
        _, own_alike, own_sends, own_receives = mine.announcement(rank)
        if (alike, sends, receives) != (own_alike, own_receives, own_sends):
            self._differs = True
            mine.operation.differ()
            return
        mine.missing.discard(rank)
        if not mine.missing:
            del self._open_calls[number], self._announced[number]
        mine.operation.release(rank)

    def report_mismatch(self, number: int) -> str:
        """Return every rank's line for a collective on which they disagree, and end the group."""
        if not self._mismatch:
            others = [rank for rank in range(self.place.size) if rank != self.place.rank]
            with self._links.lock:
                found = self._announced[number]
                self._links.lock.wait_for(
                    lambda: all(rank in found or self._links.lost(rank) for rank in others), _PATIENCE_S
                )
                found = found | {self.place.rank: self._open_calls[number].announcement(ANY)}
            lines = [
                found[rank][0] if rank in found else f"rank {of_all} does not wait for it"
                for rank, of_all in enumerate(self.place.ranks)
            ]
            head = f"collective mismatch: call {number} of group {self.place.name} is not the same for all"
            end = "all ranks must give the same calls in the same order"
            self._mismatch = "\n  ".join([head, *lines, end])
        return self._mismatch

    def transfer(self, operation: TcpOperation, transfer: Transfer, end: Callable[[], None]) -> None:
        """Begin one message of a collective; `end` is called after it. The caller holds the lock."""
        sends, peer, sub, memory = transfer
        number = operation.number
        key = peer, number, sub
        if self._links.lost(peer) and (sends or key not in self._early):
            operation.fail(self.why_gone(peer))
        elif sends:
            if memory.nbytes <= SMALL or key in self._ready:
                self._ready.discard(key)
                self._links.send(peer, _DATA, number, sub, memory, end)
            else:
                self._held[key] = memory, end
        elif key in self._early:
            memory[...] = np.frombuffer(self._early.pop(key), np.uint8)
            end()
        else:
            self._expected[key] = memory, end
            if memory.nbytes > SMALL:
                self._links.send(peer, _READY, number, sub)

    # -- messages of the program --------------------------------------------------------------------------

    def _message(
        self,
        call: Collective,
        tag: int,
        shown: list[Any],
        keep: list[Any],
        after: Callable[[], None],
        site: Site,
    ) -> TcpWork:
        what = describe(call, self.place.ranks)
        sends = call.kind == "send"
        end = _End(call.peer, 0, (call.count, call.dtype.name), self._line(site, what))
        end.memory = bytes_at(call.source if sends else call.target, call.count * call.dtype.itemsize)
        with self._links.lock:
            operation = end.operation = TcpOperation(self, 0, keep)
            (self._send if sends else self._receive)(end, tag, operation)
            operation.release()
        return TcpWork(shown, self, operation, [(what, call.peer)], after, site, tag)

    def _send(self, end: _End, tag: int, operation: TcpOperation) -> None:
        self._messages += 1
        end.number = self._messages
        operation.hold(end.peer)
        self._offered[end.number] = end
        if end.peer == self.place.rank:
            offer = _End(end.peer, end.number, end.kind, end.text)
            self._match_offer(offer, tag)
            return
        self._links.send(
            end.peer, _OFFER, end.number, 0, pack([tag, *end.kind, end.text, _small(end.memory)])
        )
        self._fail_without(operation)

    def _receive(self, end: _End, tag: int, operation: TcpOperation) -> None:
        operation.hold()
        for offer in self._offers.get(tag, ()):
            if end.peer in (ANY, offer.peer):
                self._offers[tag].remove(offer)
                self._meet(offer, end)
                return
        self._receipts.setdefault(tag, []).append(end)
        if end.peer != ANY:
            operation.needs[end.peer] += 1
        self._fail_without(operation)

    def _match_offer(self, offer: _End, tag: int) -> None:
        for receipt in self._receipts.get(tag, ()):
            if receipt.peer in (ANY, offer.peer):
                self._receipts[tag].remove(receipt)
                if receipt.peer != ANY:
                    assert receipt.operation is not None
                    receipt.operation.needs[receipt.peer] -= 1
                self._meet(offer, receipt)
                return
        self._offers.setdefault(tag, []).append(offer)

    def _meet(self, offer: _End, receipt: _End) -> None:
        """Start the transfer of a message whose send and receive have both been called, or fail both if they do not
        match.
        """
        operation = receipt.operation
        assert operation is not None
        operation.source = offer.peer
        operation.needs[offer.peer] += 1
        own = offer.peer == self.place.rank
        if offer.kind != receipt.kind:
            head = f"collective mismatch: a message of group {self.place.name} is not the same for both ends"
            text = "\n  ".join([head, offer.text, receipt.text])
            operation.fail(text)
            if own:
                self._refuse(offer.number, text)
            else:
                self._links.send(offer.peer, _REFUSE, offer.number, 0, pack(text))
        elif own:
            sent = self._offered.pop(offer.number)
            receipt.memory[...] = sent.memory
            self._end_message(sent)
            self._end_message(receipt)
        else:
            self._links.send(offer.peer, _ACCEPT, offer.number, 0)
            if offer.data is not None:
                receipt.memory[...] = np.frombuffer(offer.data, np.uint8)
                self._end_message(receipt)
                return
            self._accepted[offer.peer, offer.number] = receipt
            self._fail_without(operation)

    def _end_message(self, end: _End) -> None:
        assert end.operation is not None
        end.operation.release(end.operation.source if end.operation.source != ANY else end.peer)

    def _refuse(self, number: int, text: str) -> None:
        end = self._offered.pop(number)
        assert end.operation is not None
        end.operation.fail(text)

    # -- what other ranks send, called by the links with the lock held -------------------------------------

    def take_head(self, rank: int, head: Head) -> tuple[memoryview, Callable[[], None]]:
        kind, number, sub, nbytes = head
        key = rank, number, sub
        if kind == _DATA:
            return self._take_data(key, nbytes)
        if kind == _MESSAGE:
            receipt = self._accepted.pop((rank, number))
            if receipt.memory.nbytes != nbytes:
                raise ValueError("a message of another size than was offered")
            return memoryview(receipt.memory), partial(self._end_message, receipt)
        if nbytes > _LONGEST_TEXT or kind not in _TAKE:
            raise ValueError(f"frame {kind} of {nbytes} bytes")
        body = bytearray(nbytes)
        return memoryview(body), lambda: _TAKE[kind](self, key, body)

    def _take_data(self, key: Key, nbytes: int) -> tuple[memoryview, Callable[[], None]]:
        if self._differs:
            return memoryview(bytearray(nbytes)), _nothing
        if key in self._expected:
            memory, end = self._expected.pop(key)
            if memory.nbytes != nbytes:
                raise ValueError("data of another size than was announced")
            return memoryview(memory), end
        if nbytes > SMALL:
            raise ValueError("data that is too large to arrive before its receiver is ready")
        body = bytearray(nbytes)

        def keep() -> None:
            if key in self._expected:  # the receiver became ready meanwhile
                memory, end = self._expected.pop(key)
                memory[...] = np.frombuffer(body, np.uint8)
                end()
            else:
                self._early[key] = body

        return memoryview(body), keep

    def _take_call(self, key: Key, body: bytearray) -> None:
        rank, number, _ = key
        self._announced.setdefault(number, {})[rank] = _parse(body, _CALL_SCHEMA)
        self._links.lock.notify_all()  # a report of a mismatch may be waiting for this
        if number in self._open_calls:
            self._compare(number, rank)

    def _take_ready(self, key: Key, body: bytearray) -> None:
        if key in self._held:
            memory, end = self._held.pop(key)
            self._links.send(*_frame(_DATA, key), memory, end)
        else:
            self._ready.add(key)

    def _take_offer(self, key: Key, body: bytearray) -> None:
        tag, count, dtype, text, data = _parse(body, _OFFER_SCHEMA)
        offer = _End(key[0], key[1], (count, dtype), text)
        offer.data = data
        self._match_offer(offer, tag)

    def _take_accept(self, key: Key, body: bytearray) -> None:
        end = self._offered.pop(key[1])
        if end.memory.nbytes <= SMALL:  # the data was sent with the offer
            self._end_message(end)
            return
        self._links.send(*_frame(_MESSAGE, key), end.memory, partial(self._end_message, end))

    def _take_refuse(self, key: Key, body: bytearray) -> None:
        self._refuse(key[1], _parse(body, str))

    def lose(self, rank: int, why: str) -> None:
        for operation in list(self.operations):
            if operation.needs[rank] > 0:
                operation.fail(self.why_gone(rank))
        for offers in self._offers.values():
            offers[:] = [offer for offer in offers if offer.peer != rank]
        if all(self._links.lost(other) for other in range(self.place.size) if other != self.place.rank):
            for receipt in [end for ends in self._receipts.values() for end in ends if end.peer == ANY]:
                assert receipt.operation is not None
                receipt.operation.fail(f"no other rank of the group is left: {self.why_gone(rank)}")
        self._links.lock.notify_all()

    def _fail_without(self, operation: TcpOperation) -> None:
        """Fail a new operation that needs a rank which has left."""
        for rank, count in list(operation.needs.items()):
            if count > 0 and self._links.lost(rank):
                operation.fail(self.why_gone(rank))
                return

    def why_gone(self, rank: int) -> str:
        """Return the reason why a rank will never answer; "" if it may."""
        why, of_all = self._links.lost(rank), self.place.ranks[rank]
        if why in _ENDS:
            return _ENDS[why].format(of_all, self._processes[rank])
        return why and f"rank {of_all} cannot be reached: {why}"


_TAKE: dict[int, Callable[[TcpBackend, Key, bytearray], None]] = {
    _CALL: TcpBackend._take_call,
    _READY: TcpBackend._take_ready,
    _OFFER: TcpBackend._take_offer,
    _ACCEPT: TcpBackend._take_accept,
    _REFUSE: TcpBackend._take_refuse,
}


class TcpWork(ProcessWork):
    """The work of a TCP operation; `after` then stores results."""

    _backend: TcpBackend

    def __init__(
        self,
        results: list[Any],
        backend: TcpBackend,
        operation: TcpOperation,
        calls: Sequence[tuple[str, int | None]],
        after: Callable[[], None],
        site: Site,
        tag: int = 0,
    ) -> None:
        super().__init__(results, backend, calls, operation.number, site, tag)
        self.operation = operation
        self._after = after
        operation.description = self.pending_operation

    def _test(self) -> bool:
        if not self.operation.done.is_set():
            return False
        if self.operation.differs:
            raise DistBackendError(self._backend.report_mismatch(self.operation.number))
        if self.operation.failure:
            self._fail_with(self.operation.failure)
        if not self.number:
            self._source = self.operation.source
        return True

    def _fail_with(self, why: str) -> NoReturn:
        if why.startswith("collective mismatch"):
            raise DistBackendError(why)
        self._fail(why)

    def _complete(self) -> None:
        self.operation.keep = None
        self._after()

    def _pause(self, waiting: Any) -> None:
        self.operation.done.wait(_PAUSE_S)


def _small(memory: Array) -> bytes | None:
    """Return the bytes of a message that is sent with its offer; None if it is too large."""
    return memory.tobytes() if memory.nbytes <= SMALL else None


def _frame(kind: int, key: Key) -> tuple[int, int, int, int]:
    rank, number, sub = key
    return rank, kind, number, sub


def _parse(body: bytearray, schema: Any) -> Any:
    value = unpack(body)
    if not fits(value, schema):
        raise ValueError("a frame of another form")
    return value


def prepare(everybody: Place) -> None:
    """Let this process report its waits in the store of all ranks. All ranks call this once for each group of all
    ranks.
    """
    global _transport
    if _transport is None or _transport.store is not everybody.store:
        waits = waits_of(PrefixStore("tcp", everybody.store), everybody.rank, everybody.size)
        _transport = TcpTransport(everybody.store, waits)


def transport() -> TcpTransport:
    """Return this process's transport. Without `prepare`, waits are not reported to other ranks."""
    return _transport or TcpTransport(None, Waits(HashStore(), 0, 1))


_transport: TcpTransport | None = None
