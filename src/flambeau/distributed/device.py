"""`DeviceBackend`: collectives of GPUs, real ones through NCCL, virtual ones as their driver models it: "nccl".

# Note [Streams of collectives]
With `async_op=True` a collective is queued on a stream of the group's own, behind all that the current stream was given
so far; `work.wait()` makes the current stream wait for it, not the host. Its tensors must not be used before, and are
not handed out again before it is over, even if the program lets go of them (`record_use`). Without `async_op` it is
queued on the current stream itself, as PyTorch does since 2.8.

A communicator is made when a group first needs it: each rank with its device, by an id that rank 0 leaves in the store.
Messages outside of a batch have a communicator of their two ranks, and a stream: others need not know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from flambeau.core.errors import DriverError
from flambeau.distributed.backend import Place
from flambeau.distributed.errors import DistBackendError
from flambeau.distributed.flat import Build, FlatBackend, _nothing, dense
from flambeau.distributed.work import StreamWork, Work, wait_on_host
from flambeau.driver.api import Collective
from flambeau.runtime import current, system
from flambeau.runtime.context import Context
from flambeau.runtime.event import Event
from flambeau.runtime.reasons import because
from flambeau.runtime.stream import Stream
from flambeau.tensor import creation

_ABSENT = ("Short", "UInt16", "UInt32", "UInt64")  # kinds of numbers that NCCL does not know
_TEXTS = {
    "band": "Cannot use ReduceOp.BAND with NCCL",
    "bor": "Cannot use ReduceOp.BOR with NCCL",
    "bxor": "Cannot use ReduceOp.BXOR with NCCL",
}
Pair = tuple[int, int]


class Line:
    """One communicator of this rank on one device, with its stream. `pair`: the ranks of a line of messages alone."""

    def __init__(self, context: Context, comm: int, pair: Pair | None) -> None:
        self.context = context
        self.comm = comm
        self.pair = pair
        self.stream = Stream(context.device)
        self.ready = Event()  # where the caller's stream is, recorded anew for each collective

    def peer(self, rank: int) -> int:
        """What the communicator calls a rank of the group."""
        return rank if self.pair is None else self.pair.index(rank)

    def close(self, abort: bool) -> None:
        if not self.context.closed:
            self.context.backing.comm_destroy(self.comm, abort)


class DeviceBackend(FlatBackend):
    """See Note [Streams of collectives]."""

    name = "nccl"
    device_type = "cuda"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._lines: dict[tuple[int, Pair | None], Line] = {}

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "virtual" if system.is_virtual() else "nccl"

    def connect(self, index: int) -> None:
        """Make the communicator of this device now."""
        self._line(index, None)

    def barrier(self, device: Any = None, async_op: bool = False) -> Work:
        index = current.local.device if device is None else device
        token = creation.zeros(1, device=f"cuda:{index}")
        return BarrierWork(self.all_reduce([token], "sum", async_op), self)

    def batch(self, messages: Sequence[tuple[str, Any, int, int]]) -> list[Work]:
        """One group; the work of all is one. Tags are ignored, as NCCL has none."""
        tensors = dense([tensor for _, tensor, _, _ in messages])
        calls = [
            Collective("send", 0, t.ptr, t.numel(), t.dtype, peer=peer)
            if kind == "send"
            else Collective("recv", t.ptr, 0, t.numel(), t.dtype, peer=peer)
            for kind, t, peer, _ in messages
        ]
        return [self._run(tensors, lambda: calls, async_op=True)]

    def close(self) -> None:
        self._leave(abort=False)

    def abort(self) -> None:
        self._leave(abort=True)

    def _leave(self, abort: bool) -> None:
        while self._lines:
            self._lines.popitem()[1].close(abort)

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
        index = _check(tensors)
        if pair is not None and pair < 0:
            raise RuntimeError(f"Backend {self.name} does not support recv from any source")
        line = self._line(index, pair)
        here = current.stream_at(index)
        stream = line.stream if async_op else here
        if stream is not here:
            with because(str, "collective: the group's stream comes after the current one"):
                line.ready.record(here)
                stream.wait_event(line.ready)
        for tensor in tensors:
            tensor.memory.used_on(stream.handle)
        with stream:
            calls = build()
            if self.agreement is not None:
                self.agreement.check(calls)
            _queue(line, calls, stream)
            after()
        outcome, source = list(tensors if results is None else results), -1 if pair is None else pair
        if stream is here:
            return StreamWork(outcome, stream, None, source)
        event = stream.record_event()
        for tensor in tensors:
            tensor.record_use(event)
        return StreamWork(outcome, stream, event, source)

    def _line(self, index: int, peer: int | None) -> Line:
        """The communicator of all ranks, or of this one and a peer, on a device; made when it is first asked for."""
        rank = self.place.rank
        pair = None if peer is None else (min(rank, peer), max(rank, peer))
        line = self._lines.get((index, pair))
        if line is None:
            line = self._lines[index, pair] = self._joined(current.context_at(index), pair)
        return line

    def _joined(self, context: Context, pair: Pair | None) -> Line:
        ranks = range(self.place.size) if pair is None else pair
        rank, store = ranks.index(self.place.rank), self.place.store
        number = sum(
            pair == other for _, other in self._lines
        )  # a rank's second device meets the others' second
        key = f"communicator/{'all' if pair is None else f'{pair[0]}:{pair[1]}'}/{number}"
        driver = context.driver
        try:
            if rank == 0:
                store.set(key, driver.comm_id())
            called = [self.place.ranks[number] for number in ranks]
            comms = driver.comm_create(store.get(key), len(ranks), [(rank, context.driver_index)], called)
        except DriverError as error:
            raise DistBackendError(str(error)) from error
        return Line(context, comms[0], pair)


class BarrierWork(Work):
    """A barrier's: the host waits, no longer than it or its group says. Who waits in vain leaves the group."""

    def __init__(self, work: Work, backend: DeviceBackend) -> None:
        super().__init__([])
        self._work = work
        self._backend = backend

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._work.wait()
        stream = current.stream_at(self._work.result()[0].device.index)
        try:
            wait_on_host(stream, timeout or self.limit or self._backend.timeout)
        except DistBackendError:
            self._backend.abort()
            raise
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed()


def _queue(line: Line, calls: Sequence[Collective], stream: Stream) -> None:
    """Queue one group."""
    for call in calls:
        if call.op in _TEXTS:
            raise ValueError(_TEXTS[call.op])
    parts = [
        (line.comm, call if line.pair is None else call.with_(peer=line.peer(call.peer)), stream.handle)
        for call in calls
    ]
    try:
        line.context.driver.collective(parts)
    except DriverError as error:
        raise DistBackendError(str(error)) from error


def _check(tensors: Sequence[Any]) -> int:
    """The index of the one device that the tensors are on."""
    first = tensors[0].device
    for tensor in tensors:
        if tensor.device is not first:
            raise ValueError("Tensor list must be on the same device")
        if tensor.dtype.torch_name in _ABSENT:
            raise TypeError(
                f"Input tensor data type is not supported for NCCL process group: {tensor.dtype.torch_name}"
            )
    index: int = first.index
    return index
