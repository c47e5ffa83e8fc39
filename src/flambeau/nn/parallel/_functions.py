"""The copies of `comm` as autograd functions. The backward of each one is another one."""

from __future__ import annotations

import warnings
from typing import Any

from flambeau.autograd.function import Function
from flambeau.core.device import CPU, device
from flambeau.nn.parallel import comm
from flambeau.runtime import current
from flambeau.runtime.streams.guards import StreamContext
from flambeau.runtime.streams.stream import Stream
from flambeau.runtime.streams.wait_reason import wait_reason

__all__ = ["Broadcast", "Gather", "ReduceAddCoalesced", "Scatter"]


class Broadcast(Function):
    """`apply(devices, *tensors)`: copies of all tensors on each device, in one flat tuple, device by device."""

    @staticmethod
    def forward(ctx: Any, target_gpus: Any, *inputs: Any) -> tuple[Any, ...]:
        if not all(t.is_cuda for t in inputs):
            raise AssertionError("Broadcast function not implemented for CPU tensors")
        indices = [current.index_of(where, optional=True) for where in target_gpus]
        ctx.num_inputs = len(inputs)
        if not inputs:
            return ()
        ctx.input_device = inputs[0].get_device()
        outputs = comm.broadcast_coalesced(inputs, indices)
        needs = ctx.needs_input_grad[1:]
        ctx.mark_non_differentiable(
            *[t for copies in outputs for t, need in zip(copies, needs, strict=True) if not need]
        )
        return tuple([t for copies in outputs for t in copies])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return None, *ReduceAddCoalesced.apply(ctx.input_device, ctx.num_inputs, *grads)


class ReduceAddCoalesced(Function):
    """`apply(destination, n, *tensors)` sums the tensors at equal positions of the devices' groups of n tensors."""

    @staticmethod
    def forward(ctx: Any, destination: Any, num_inputs: int, *grads: Any) -> tuple[Any, ...]:
        ctx.target_gpus = [grads[i].get_device() for i in range(0, len(grads), num_inputs)]
        lists = [grads[i : i + num_inputs] for i in range(0, len(grads), num_inputs)]
        return comm.reduce_add_coalesced(lists, destination)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return None, None, *Broadcast.apply(ctx.target_gpus, *grads)


class Gather(Function):
    """`apply(device, dim, *tensors)` concatenates tensors along `dim`. Scalars become a vector, with a warning."""

    @staticmethod
    def forward(ctx: Any, target_device: Any, dim: int, *inputs: Any) -> Any:
        if not all(t.is_cuda for t in inputs):
            raise AssertionError("Gather function not implemented for CPU tensors")
        if target_device == "cpu" or (isinstance(target_device, device) and target_device is CPU):
            ctx.target_device = "cpu"
        else:
            ctx.target_device = current.index_of(target_device, optional=True)
        ctx.dim = dim
        ctx.input_gpus = [t.get_device() for t in inputs]
        ctx.unsqueezed = bool(inputs) and dim == 0 and all(t.dim() == 0 for t in inputs)
        if ctx.unsqueezed:
            inputs = tuple([t.view(1) for t in inputs])
            warnings.warn(
                "Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze "
                "and return a vector.",
                UserWarning,
                stacklevel=2,
            )
        ctx.input_sizes = [t.size(dim) for t in inputs]
        return comm.gather(inputs, dim, ctx.target_device)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        parts = Scatter.apply(ctx.input_gpus, ctx.input_sizes, ctx.dim, grad)
        if ctx.unsqueezed:
            parts = tuple([part[0] for part in parts])
        return None, None, *parts


class Scatter(Function):
    """`apply(devices, chunk_sizes, dim, tensor)` copies each chunk to a device. Copies from the CPU use separate
    streams.
    """

    @staticmethod
    def forward(ctx: Any, target_gpus: Any, chunk_sizes: Any, dim: int, input: Any) -> tuple[Any, ...]:
        indices = [current.index_of(where, optional=True) for where in target_gpus]
        ctx.dim = dim
        ctx.input_device = input.get_device() if input.is_cuda else -1
        streams = [Stream(index) for index in indices] if ctx.input_device == -1 else None
        outputs = comm.scatter(input, indices, chunk_sizes, dim, streams)
        for output, stream in zip(outputs, streams or (), strict=False):
            mine = current.stream_at(stream.device_index)
            with StreamContext(mine):
                with wait_reason(
                    str, "scatter: the device's current stream comes after the copy of its part"
                ):
                    mine.wait_stream(stream)
                output.record_stream(mine)  # type: ignore[attr-defined]
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        where = "cpu" if ctx.input_device == -1 else ctx.input_device
        return None, None, None, Gather.apply(where, ctx.dim, *grads)
