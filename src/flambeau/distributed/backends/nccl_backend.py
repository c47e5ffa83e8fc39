"""`DeviceBackend`, "nccl": collectives of GPUs, through NCCL or its model on virtual GPUs.

# Note [Streams of collectives]
With `async_op=True` a collective is enqueued on the group's own stream, after all work that the current stream has so
far. `work.wait()` makes the current stream, not the host, wait for it. The program must not use the tensors before
that. The allocator does not reuse their memory before the collective has finished, even if the program drops them
(`record_use`). Without `async_op` the collective is enqueued on the current stream itself, as PyTorch does since 2.8.
With TORCH_NCCL_BLOCKING_WAIT the host waits in both cases.

A communicator is created when a group first needs it: each rank joins with its device, by an id that rank 0 publishes
in the store. Messages outside of a batch have a communicator and a stream for their two ranks, because the other ranks
do not take part. If `device_id` gave the group its device, they use the group's communicator and are ordered after its
earlier operations, as in PyTorch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.errors import DriverError
from flambeau.distributed.backends import watchdog
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.backends.comm_init import join
from flambeau.distributed.backends.communicator import Pair, RankCommunicator
from flambeau.distributed.backends.flat_backend import Build, FlatBackend, _nothing, dense
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.future import Future
from flambeau.distributed.work import StreamWork, Work, wait_on_host
from flambeau.driver.protocol import Collective
from flambeau.runtime import current, system
from flambeau.runtime.streams.stream import Stream
from flambeau.runtime.streams.wait_reason import wait_reason
from flambeau.tensor.functions import creation

_ABSENT = ("Short", "UInt16", "UInt32", "UInt64")  # kinds of numbers that NCCL lacks
_SERIALIZED = (
    "An unbatched P2P op (send/recv) was called on this ProcessGroup with size {}.  In eager initialization mode, "
    "unbatched P2P ops are treated as independent collective ops, and are thus serialized with all other ops on this "
    "ProcessGroup, including other P2P ops. To avoid serialization, either create additional independent ProcessGroups "
    "for the P2P ops or use batched P2P ops. You can squash this warning by setting the environment variable "
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING to false."
)
_GUESSED = (
    "using GPU {} as device used by this process is currently unknown. This can potentially cause a hang if this rank "
    "to GPU mapping is incorrect. You can specify device_id in init_process_group() to force use of a particular "
    "device."
)
_log = logging.getLogger("torch.distributed")
_TEXTS = {
    "band": "Cannot use ReduceOp.BAND with NCCL",
    "bor": "Cannot use ReduceOp.BOR with NCCL",
    "bxor": "Cannot use ReduceOp.BXOR with NCCL",
}


class DeviceBackend(FlatBackend):
    """The backend of GPUs. See Note [Streams of collectives]."""

    name = "nccl"
    device_type = "cuda"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._lines: dict[tuple[int, Pair | None], RankCommunicator] = {}
        self._early = False  # True if its communicator was created with the group and serves all messages
        self._warns = watchdog.flag(os.environ, "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "1")
        self._failed: Exception | None = None  # the reason why the group was left: a collective did not end
        self._blocks = watchdog.blocks(os.environ)
        self.handling = watchdog.handling_of(os.environ)

    @property
    def kind(self) -> str:  # type: ignore[override]
        return "virtual" if system.is_virtual() else "nccl"

    def connect(self, index: int) -> None:
        """Create the communicator of this device now. Messages use it, too."""
        self._early = True
        self._line(index, None)

    def barrier(self, device: Any = None, async_op: bool = False) -> Work:
        index = self._barrier_device() if device is None else device
        token = creation.zeros(1, device=f"cuda:{index}")
        return BarrierWork(self.all_reduce([token], "sum", async_op), self)

    def _barrier_device(self) -> int:
        """Return the device that a barrier uses if the program names none, as PyTorch documents it.

        It is the first device that a collective of the group used: all ranks joined that communicator first.
        """
        used = sorted(
            self._lines, key=lambda line: line[1] is not None
        )  # devices of collectives are before those of messages between two ranks
        if used:
            return used[0][0]
        index = self.place.ranks[self.place.rank] % system.device_count()
        _log.warning(_GUESSED.format(index))
        return index

    def batch(self, messages: Sequence[tuple[str, Any, int, int]]) -> list[Work]:
        """Issue messages as one group with one work. Tags are ignored, because NCCL has none."""
        tensors = dense([tensor for _, tensor, _, _ in messages])
        calls = [
            Collective("send", 0, t.ptr, t.numel(), t.dtype, peer=peer)
            if kind == "send"
            else Collective("recv", t.ptr, 0, t.numel(), t.dtype, peer=peer)
            for kind, t, peer, _ in messages
        ]
        return [self._run(tensors, lambda: calls, async_op=True)]

    def close(self) -> None:
        for line in list(self._lines.values()):
            line.settle()  # while the watchdog checks whether that ends
            line.publish_progress()
        lines = list(self._lines.values())
        self._lines = {}
        for line in lines:
            watchdog.process.remove(line)
        if not self._leave(lines, abort=False):
            raise DistBackendError(
                f"rank {self.place.ranks[self.place.rank]} has left group {self.place.name}, and not all others have, "
                f"within {self.timeout.total_seconds():g} s"
            )

    def abort(self) -> None:
        error = DistBackendError(f"the communicators of group {self.place.name} were aborted")
        if not self.fail(error):
            raise error

    def fail(self, error: Exception) -> bool:
        """Fail pending collectives and all later ones with `error`. Returns False if pending work still occupies a
        stream.
        """
        self._failed = error
        lines = list(self._lines.values())
        self._lines = {}
        pending = [pending for line in lines for pending in line.pending]
        for line in lines:
            watchdog.process.remove(line)
            line.give_up(error)
        if self._leave(lines, abort=True):
            return True
        bare = (
            system.bare_driver()
        )  # NCCL also waits until the node's other ranks abort; streams are free before
        return all(bare.event_ended(one.mark.handle) for one in pending)

    def _leave(self, lines: Sequence[RankCommunicator], abort: bool) -> bool:
        """Leave communicators. Returns False if NCCL still waits for other ranks of the node to leave."""
        if not any(line.progress for line in lines):
            for line in lines:
                line.close(abort)
            return True
        errors: list[Exception] = []

        def leave(line: RankCommunicator) -> None:
            try:
                line.close(abort or bool(line.describe_ended_processes()))
            except Exception as error:
                errors.append(error)

        seconds = None if abort else max(self.timeout.total_seconds(), 1.0)
        done = watchdog.within(*[partial(leave, line) for line in lines], seconds=seconds)
        if errors:
            raise errors[0]
        for line in () if done else lines:
            line.forget()
        return done

    def explain_error(self, error: Exception) -> Exception:
        """Return the error of a wait, extended by the known state of the pending collectives."""
        busy = [line for line in self._lines.values() if line.pending]
        return DistBackendError("\n  ".join([str(error), *[text for line in busy for text in line.lines()]]))

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
        line = self._line(index, None if self._early else pair)
        if pair is not None and self._early and self._warns:
            self._warns = False
            warn_program(_SERIALIZED.format(self.place.size), UserWarning)
        here = current.stream_at(index)
        stream = line.stream if async_op else here
        if stream is not here:
            with wait_reason(str, "collective: the group's stream comes after the current one"):
                line.ready.record(here)
                stream.wait_event(line.ready)
        for tensor in tensors:
            tensor.memory.used_on(stream.handle)
        if stream is here:
            calls = self._enqueue(line, build, stream, after)
        else:
            with stream:
                calls = self._enqueue(line, build, stream, after)
        outcome, source = list(tensors if results is None else results), -1 if pair is None else pair
        event = None if stream is here else stream.record_event()
        if event is not None:
            for tensor in tensors:
                tensor.record_use(event)
        entry = None if line.progress is None else line.note(calls, stream, event)
        work = StreamWork(outcome, stream, event, source, entry)
        return BlockingWork(work, self) if self._blocks and line.progress is not None else work

    def _enqueue(
        self, line: RankCommunicator, build: Build, stream: Stream, after: Callable[[], None]
    ) -> Sequence[Collective]:
        calls = build()
        if self.agreement is not None:
            self.agreement.check(calls)
        _queue(line, calls, stream)
        after()
        return calls

    def _line(self, index: int, peer: int | None) -> RankCommunicator:
        """Return the communicator of all ranks, or of this rank and a peer, on a device. Created on first use."""
        rank = self.place.rank
        pair = None if peer is None else (min(rank, peer), max(rank, peer))
        if self._failed is not None:
            raise self._failed
        line = self._lines.get((index, pair))
        if line is None:
            context = current.context_at(index)
            # communicators of this rank's other devices
            number = len([other for _, other in self._lines if other == pair])
            comm, progress = join(context, self.place, self.timeout, pair, number)
            line = self._lines[index, pair] = RankCommunicator(self, context, comm, pair, progress)
            if progress is not None:
                watchdog.process.add(line)
        return line


class BarrierWork(Work):
    """The work of a barrier: the host waits until the timeout, and then leaves the group."""

    def __init__(self, work: Work, backend: DeviceBackend) -> None:
        super().__init__([])
        self._work = work
        self._backend = backend

    def _finish(self, timeout: timedelta | None) -> None:
        self._work.wait()
        stream = current.stream_at(self._work.result()[0].device.index)
        try:
            wait_on_host(stream, timeout or self._backend.timeout)
        except DistBackendError as late:
            error = self._backend.explain_error(late)
            self._backend.fail(error)
            raise error from None

    def is_completed(self) -> bool:
        return self._over or self._work.is_completed()  # the current stream may have more to do

    def exception(self) -> Exception | None:
        return self._error or self._work.exception()


class BlockingWork(BarrierWork):
    """The work of a collective under TORCH_NCCL_BLOCKING_WAIT: `wait` blocks the host. Its future completes on the
    stream, as without that variable.
    """

    def result(self) -> list[Any]:
        return self._work.result()

    def source_rank(self) -> int:
        return self._work.source_rank()

    def get_future(self) -> Future:
        return self._work.get_future()


def _queue(line: RankCommunicator, calls: Sequence[Collective], stream: Stream) -> None:
    """Enqueue one group of collectives."""
    for call in calls:
        if call.op in _TEXTS:
            raise ValueError(_TEXTS[call.op])
    parts = [
        (line.comm, call if line.pair is None else call.with_(peer=line.peer(call.peer)), stream.handle)
        for call in calls
    ]
    try:
        line.context.driver.collective(parts)
        stream.queue.busy = True
    except DriverError as error:
        raise line.error or DistBackendError(str(error)) from error


def _check(tensors: Sequence[Any]) -> int:
    """Return the index of the one device that the tensors are on."""
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
