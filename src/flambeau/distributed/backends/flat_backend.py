"""`FlatBackend`: all collectives expressed by a few that act on flat memory, as in NCCL.

A subclass runs groups of `driver.protocol.Collective` (`_run`). Lists of equal sizes go through one buffer. Lists of
unequal sizes, and collectives with a root that NCCL lacks, become groups of broadcasts, reductions or messages.

In-place operations process elements in the order of memory, as PyTorch does, so the ranks' tensors must have equal
strides. Lists of equal sizes are copied by index, so their strides may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.layout import is_dense
from flambeau.distributed.backends.backend import Backend
from flambeau.distributed.work import Work
from flambeau.driver.collective_rules import spans
from flambeau.driver.protocol import Collective
from flambeau.runtime import system

Build = Callable[[], Sequence[Collective]]


def _nothing() -> None:
    pass


class FlatBackend(Backend):
    """The base class of backends whose collectives act on flat memory."""

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
        """Run the group of collectives that `build` returns, then call `after`. Both may launch kernels in order with
        it.

        Args:
            tensors: The caller's tensors that the group uses, all on one device.
            results: The result of the work; default: `tensors`.
            pair: The peer, if the group has only messages with one other rank.
            channel: Messages match only messages of the same channel.
        """
        raise NotImplementedError

    def _touch(self, call: Collective) -> None:
        """Report to observers the memory of CPU tensors that the host reads and writes."""
        written, read = spans(call, self.place.rank, self.place.size)
        for access, write in ((written, True), (read, False)):
            if access is not None and access[1]:
                system.host.driver.host_touch(*access, write)

    # -- all ranks --------------------------------------------------------------------------------------
    def all_reduce(self, tensors: Sequence[Any], op: Any, async_op: bool = False) -> Work:
        return self._run(
            dense(tensors),
            lambda: [Collective("all_reduce", t.ptr, t.ptr, t.numel(), t.dtype, op) for t in tensors],
            async_op=async_op,
        )

    def broadcast(self, tensor: Any, root: int, async_op: bool = False) -> Work:
        return self._run(dense([tensor]), lambda: [_broadcast(tensor, tensor, root)], async_op=async_op)

    def reduce(self, tensor: Any, root: int, op: Any, async_op: bool = False) -> Work:
        return self._run(dense([tensor]), lambda: [_reduce(tensor, tensor, root, op)], async_op=async_op)

    def all_gather(self, outputs: Sequence[Any], tensor: Any, async_op: bool = False) -> Work:
        used = [*outputs, tensor]
        if not _alike(outputs):
            return self._run(
                contiguous(used),
                lambda: [
                    _broadcast(output, tensor if rank == self.place.rank else output, rank)
                    for rank, output in enumerate(outputs)
                ],
                async_op=async_op,
                results=outputs,
            )
        whole: list[Any] = []

        def build() -> list[Collective]:
            whole.append(_buffer(tensor, self.place.size))
            with no_grad():
                used.append(tensor.contiguous())
            return [_all_gather(whole[0], used[-1])]

        return self._run(dense(used), build, lambda: _spread(whole[0], outputs), async_op, outputs)

    def all_gather_into(self, outputs: Sequence[Any], tensors: Sequence[Any], async_op: bool = False) -> Work:
        pairs = list(zip(outputs, tensors, strict=True))
        return self._run(
            contiguous([*outputs, *tensors]),
            lambda: [_all_gather(output, tensor) for output, tensor in pairs],
            async_op=async_op,
            results=outputs,
        )

    def gather(self, outputs: Sequence[Any] | None, tensor: Any, root: int, async_op: bool = False) -> Work:
        receipts = [(output, rank) for rank, output in enumerate(outputs or ())]
        return self._exchange([(tensor, root)], receipts, async_op)

    def scatter(self, tensor: Any, inputs: Sequence[Any] | None, root: int, async_op: bool = False) -> Work:
        return self._exchange([(t, rank) for rank, t in enumerate(inputs or ())], [(tensor, root)], async_op)

    def reduce_scatter(self, output: Any, inputs: Sequence[Any], op: Any, async_op: bool = False) -> Work:
        used = [output, *inputs]
        if not _alike(inputs):
            return self._run(
                contiguous(used),
                lambda: [
                    _reduce(output if rank == self.place.rank else tensor, tensor, rank, op)
                    for rank, tensor in enumerate(inputs)
                ],
                async_op=async_op,
                results=[output],
            )

        contiguous([output])

        def build() -> list[Collective]:
            whole = _buffer(output, self.place.size)
            _collect(whole, inputs)
            used.append(whole)
            return [_reduce_scatter(output, whole, op)]

        return self._run(dense(used), build, async_op=async_op, results=[output])

    def reduce_scatter_from(
        self, outputs: Sequence[Any], tensors: Sequence[Any], op: Any, async_op: bool = False
    ) -> Work:
        pairs = list(zip(outputs, tensors, strict=True))
        return self._run(
            contiguous([*outputs, *tensors]),
            lambda: [_reduce_scatter(output, tensor, op) for output, tensor in pairs],
            async_op=async_op,
            results=outputs,
        )

    def all_to_all(self, outputs: Sequence[Any], inputs: Sequence[Any], async_op: bool = False) -> Work:
        sent = [(tensor, rank) for rank, tensor in enumerate(inputs)]
        return self._exchange(sent, [(tensor, rank) for rank, tensor in enumerate(outputs)], async_op)

    def _exchange(
        self, sent: Sequence[tuple[Any, int]], received: Sequence[tuple[Any, int]], async_op: bool
    ) -> Work:
        """Return a collective of messages: (tensor, peer) of each."""
        return self._run(
            contiguous([tensor for tensor, _ in [*sent, *received]]),
            lambda: [_send(t, to) for t, to in sent] + [_recv(t, origin) for t, origin in received],
            async_op=async_op,
            results=[tensor for tensor, _ in received],
            channel="exchange",
        )

    # -- two ranks --------------------------------------------------------------------------------------
    def send(self, tensor: Any, to: int, tag: int = 0) -> Work:
        return self._run(dense([tensor]), lambda: [_send(tensor, to)], async_op=True, pair=to, channel=tag)

    def recv(self, tensor: Any, origin: int | None, tag: int = 0) -> Work:
        peer = -1 if origin is None else origin
        return self._run(
            dense([tensor]), lambda: [_recv(tensor, peer)], async_op=True, pair=peer, channel=tag
        )


# -- what memory the tensors have -----------------------------------------------------------------------------


def dense(tensors: list[Any]) -> list[Any]:
    """Return tensors, which must have no gaps, in any order of dimensions.

    Raises:
        ValueError: For another.
    """
    for tensor in tensors:
        meta = tensor.meta
        if not (meta.contiguous or is_dense(meta.shape, meta.strides)):
            raise ValueError("Tensors must be contiguous")
    return tensors


def contiguous(tensors: list[Any]) -> list[Any]:
    """Return the tensors, which must be contiguous.

    Raises:
        ValueError: For another.
    """
    if not all(tensor.meta.contiguous for tensor in tensors):
        raise ValueError("Tensors must be contiguous")
    return tensors


# -- one part each ------------------------------------------------------------------------------------------


def _send(tensor: Any, to: int) -> Collective:
    return Collective("send", 0, tensor.ptr, tensor.numel(), tensor.dtype, peer=to)


def _recv(tensor: Any, origin: int) -> Collective:
    return Collective("recv", tensor.ptr, 0, tensor.numel(), tensor.dtype, peer=origin)


def _broadcast(target: Any, source: Any, root: int) -> Collective:
    return Collective("broadcast", target.ptr, source.ptr, target.numel(), target.dtype, peer=root)


def _reduce(target: Any, source: Any, root: int, op: str) -> Collective:
    return Collective("reduce", target.ptr, source.ptr, source.numel(), source.dtype, op, root)


def _all_gather(target: Any, source: Any) -> Collective:
    return Collective("all_gather", target.ptr, source.ptr, source.numel(), source.dtype)


def _reduce_scatter(target: Any, source: Any, op: str) -> Collective:
    return Collective("reduce_scatter", target.ptr, source.ptr, target.numel(), target.dtype, op)


# -- lists --------------------------------------------------------------------------------------------------


def _alike(tensors: Sequence[Any]) -> bool:
    return len({tensor.numel() for tensor in tensors}) == 1


def _buffer(tensor: Any, size: int) -> Any:
    """Return memory for `size` tensors like this one."""
    return tensor.new_empty((size, tensor.numel()))


def _collect(whole: Any, tensors: Sequence[Any]) -> None:
    """Copy each tensor into its row."""
    with no_grad():
        for row, tensor in zip(whole, tensors, strict=True):
            row.copy_(tensor.reshape(-1))


def _spread(whole: Any, tensors: Sequence[Any]) -> None:
    """Copy each row into its tensor."""
    with no_grad():
        for row, tensor in zip(whole, tensors, strict=True):
            tensor.copy_(row.view(tensor.shape))
