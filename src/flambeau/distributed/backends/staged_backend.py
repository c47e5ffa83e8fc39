"""`StagedBackend`: "gloo" for CUDA tensors. Each operation copies its inputs to the host, and its results back.

The copy to the host waits for the current stream. `Work.wait` enqueues the copy of the results on the stream that is
current then, as PyTorch's gloo makes that stream wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.distributed.backends.backend import Backend, Place
from flambeau.distributed.backends.flat_backend import contiguous, dense
from flambeau.distributed.work import Work

Tensors = Sequence[Any]


class StagedBackend(Backend):
    """The backend "gloo" for CUDA tensors. `host` moves the copies between ranks."""

    name = "gloo"
    kind = "staged"
    device_type = "cuda"

    def __init__(self, place: Place, host: Backend) -> None:
        super().__init__(place)
        self._host = host

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        self._host.set_timeout(timeout)

    def all_reduce(self, tensors: Tensors, op: Any, async_op: bool = False) -> Work:
        return self._stage(
            dense(list(tensors)), tensors, lambda copies: self._host.all_reduce(copies, op, True)
        )

    def broadcast(self, tensor: Any, root: int, async_op: bool = False) -> Work:
        return self._stage(
            dense([tensor]), [tensor], lambda copies: self._host.broadcast(copies[0], root, True)
        )

    def reduce(self, tensor: Any, root: int, op: Any, async_op: bool = False) -> Work:
        written = [tensor] if self.place.rank == root else []
        return self._stage(
            dense([tensor]), written, lambda copies: self._host.reduce(copies[0], root, op, True)
        )

    def all_gather(self, outputs: Tensors, tensor: Any, async_op: bool = False) -> Work:
        return self._stage(
            [*outputs, tensor], outputs, lambda copies: self._host.all_gather(copies[:-1], copies[-1], True)
        )

    def all_gather_into(self, outputs: Tensors, tensors: Tensors, async_op: bool = False) -> Work:
        return self._pairs(outputs, tensors, self._host.all_gather_into)

    def gather(self, outputs: Tensors | None, tensor: Any, root: int, async_op: bool = False) -> Work:
        written = list(outputs or ())
        return self._stage(
            contiguous([tensor, *written]), written,
            lambda copies: self._host.gather(copies[1:] or None, copies[0], root, True),
        )  # fmt: skip

    def scatter(self, tensor: Any, inputs: Tensors | None, root: int, async_op: bool = False) -> Work:
        return self._stage(
            contiguous([tensor, *(inputs or ())]), [tensor],
            lambda copies: self._host.scatter(copies[0], copies[1:] or None, root, True),
        )  # fmt: skip

    def reduce_scatter(self, output: Any, inputs: Tensors, op: Any, async_op: bool = False) -> Work:
        return self._stage(
            [output, *inputs], [output],
            lambda copies: self._host.reduce_scatter(copies[0], copies[1:], op, True),
        )  # fmt: skip

    def reduce_scatter_from(
        self, outputs: Tensors, tensors: Tensors, op: Any, async_op: bool = False
    ) -> Work:
        return self._pairs(
            outputs,
            tensors,
            lambda out, given, async_op: self._host.reduce_scatter_from(out, given, op, async_op),
        )

    def all_to_all(self, outputs: Tensors, inputs: Tensors, async_op: bool = False) -> Work:
        count = len(outputs)
        return self._stage(
            contiguous([*outputs, *inputs]), outputs,
            lambda copies: self._host.all_to_all(copies[:count], copies[count:], True),
        )  # fmt: skip

    def barrier(self, device: Any = None, async_op: bool = False) -> Work:
        return self._host.barrier(None, async_op)

    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        self._host.monitored_barrier(timeout, wait_all_ranks)

    def send(self, tensor: Any, to: int, tag: int = 0) -> Work:
        return self._stage(dense([tensor]), [], lambda copies: self._host.send(copies[0], to, tag), [tensor])

    def recv(self, tensor: Any, origin: int | None, tag: int = 0) -> Work:
        return self._stage(dense([tensor]), [tensor], lambda copies: self._host.recv(copies[0], origin, tag))

    def close(self) -> None:
        self._host.close()

    def abort(self) -> None:
        self._host.abort()

    def _pairs(self, outputs: Tensors, tensors: Tensors, begin: Callable[[Any, Any, bool], Work]) -> Work:
        count = len(outputs)
        return self._stage(
            contiguous([*outputs, *tensors]),
            outputs,
            lambda copies: begin(copies[:count], copies[count:], True),
        )

    def _stage(
        self,
        used: Sequence[Any],
        written: Tensors,
        begin: Callable[[list[Any]], Work],
        results: Tensors | None = None,
    ) -> Work:
        """Begin an operation on host copies of the tensors in `used`, and copy its results to the tensors in
        `written`.
        """
        with no_grad():
            copies = [tensor.cpu() for tensor in used]
        targets = [
            (tensor, copy) for tensor, copy in zip(used, copies, strict=True) if _is_in(tensor, written)
        ]
        return _StagedWork(list(written if results is None else results), begin(copies), targets)


class _StagedWork(Work):
    """The work of a staged operation: done when the host's work is, and results are enqueued for the device."""

    def __init__(self, results: list[Any], work: Work, targets: list[tuple[Any, Any]]) -> None:
        super().__init__(results)
        self._work = work
        self._targets = targets

    def _test(self) -> bool:
        return self._work.is_completed()

    def _finish(self, timeout: timedelta | None) -> None:
        self._work.wait(timeout)
        self._source = self._work._source
        with no_grad():
            for tensor, copy in self._targets:
                tensor.copy_(copy)
        self._targets = []


def _is_in(tensor: Any, tensors: Tensors) -> bool:
    return any(tensor is other for other in tensors)
