"""`DataParallel`: a module that computes the parts of a batch on several GPUs in parallel, from one process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Generic, TypeVar
from warnings import warn

from flambeau.core.device import device
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.modules.module import Module
from flambeau.nn.parallel.parallel_apply import parallel_apply
from flambeau.nn.parallel.replicate import replicate
from flambeau.nn.parallel.scatter_gather import gather, scatter_kwargs
from flambeau.runtime import current, system
from flambeau.runtime.hooks import annotations
from flambeau.tape.mode import mode

__all__ = ["DataParallel", "data_parallel"]

explain_absent_names(globals(), "torch.nn.parallel.data_parallel")

T = TypeVar("T", bound=Module)


class DataParallel(Module, Generic[T]):
    """A module that runs on several GPUs: each computes a part of the batch, and the outputs are concatenated.

    A forward scatters the arguments (see `nn.parallel.scatter`), copies the module to every GPU that has a part, calls
    the copies from one thread and gathers their results. Backward sums gradients into `module`, whose parameters and
    buffers must be on `device_ids[0]`. Changes by a copy are lost, except in-place changes on that GPU. Hooks run once
    for each copy. Outputs without dimensions are gathered to a vector. With one GPU or none, it calls `module` itself.

    Args:
        device_ids: torch.device, str or int; default: all GPUs.
        output_device: The device of the output; default: `device_ids[0]`.
        dim: The dimension of the batch.

    Raises:
        AssertionError: By the constructor, if a GPU does not exist.
        RuntimeError: By a call, if `module` is on another device. Exceptions of a copy are raised with their type and
            the copy's device.
    """

    module: T

    def __init__(self, module: T, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        super().__init__()
        self.module = module
        self.device_ids: list[int] = []
        if not system.is_available():
            return
        self.device_ids, self.output_device = _places(device_ids, output_device)
        self.dim = dim
        self.src_device_obj = device("cuda", self.device_ids[0])
        _check_balance(self.device_ids)
        if len(self.device_ids) == 1:
            self.module.to(self.src_device_obj)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        annotations.push("DataParallel.forward")
        try:
            return self._compute(inputs, kwargs) if self.device_ids else self.module(*inputs, **kwargs)
        finally:
            annotations.pop()

    def _compute(self, inputs: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        _check_home(self.module, self.src_device_obj)
        parts, keywords = _or_one_call(*self.scatter(inputs, kwargs, self.device_ids))
        if len(self.device_ids) == 1:
            return self.module(*parts[0], **keywords[0])
        replicas = self.replicate(self.module, self.device_ids[: len(parts)])
        return self.gather(self.parallel_apply(replicas, parts, keywords), self.output_device)

    # The steps, which subclasses change.

    def replicate(self, module: T, device_ids: Sequence[Any]) -> list[T]:
        return replicate(module, device_ids, not mode.recording)

    def scatter(self, inputs: Sequence[Any], kwargs: dict[str, Any] | None, device_ids: Sequence[Any]) -> Any:
        return scatter_kwargs(inputs, kwargs, device_ids, dim=self.dim)

    def parallel_apply(self, replicas: Sequence[T], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        return parallel_apply(replicas, inputs, kwargs, self.device_ids[: len(replicas)])

    def gather(self, outputs: Any, output_device: Any) -> Any:
        return gather(outputs, output_device, dim=self.dim)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Any = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call `module(*inputs, **module_kwargs)` like `DataParallel`.

    Args:
        inputs: A tuple of arguments, or the only argument, or None.
        output_device: As for `DataParallel`; -1 means the CPU.

    Raises:
        RuntimeError: If there is no GPU, or `module` is not on `device_ids[0]`.
    """
    if not system.is_available():
        raise RuntimeError("device type could not be determined")
    if not isinstance(inputs, tuple):
        inputs = () if inputs is None else (inputs,)
    indices, target = _places(device_ids, output_device)
    _check_home(module, device("cuda", indices[0]))
    parts, keywords = _or_one_call(*scatter_kwargs(inputs, module_kwargs, indices, dim))
    if len(indices) == 1:
        return module(*parts[0], **keywords[0])
    used = indices[: len(parts)]
    return gather(parallel_apply(replicate(module, used), parts, keywords, used), target, dim)


def _places(device_ids: Any, output_device: Any) -> tuple[list[int], int]:
    """Return the indices of the devices, and the index of the output's device."""
    chosen = list(range(system.device_count()) if device_ids is None else device_ids)
    target = chosen[0] if output_device is None else output_device
    indices = [current.index_of(where, optional=True) for where in chosen]
    return indices, current.index_of(target, optional=True)


def _or_one_call(parts: Any, keywords: Any) -> tuple[Any, Any]:
    """Return the parts of a call. If there are none, return one call without arguments."""
    return (parts, keywords) if parts or keywords else (((),), ({},))


def _check_home(module: Module, home: device) -> None:
    for tensor in chain(module.parameters(), module.buffers()):
        if tensor.device is not home:
            raise RuntimeError(
                f"module must have its parameters and buffers on device {home} (device_ids[0]) but found one of them "
                f"on device: {tensor.device}"
            )


def _check_balance(indices: Sequence[int]) -> None:
    """Warn if one GPU has much less memory than another or, if none has, far fewer multiprocessors."""
    for index in indices:
        if not 0 <= index < system.device_count():
            raise AssertionError(f"Invalid device id: {index}; there are {system.device_count()} devices")
    contexts = [current.context_at(index) for index in indices]
    properties = [context.driver.device_properties(context.driver_index) for context in contexts]
    uneven = _uneven([p.total_memory for p in properties]) or _uneven(
        [p.multi_processor_count for p in properties]
    )
    if uneven:
        least, most = (indices[i] for i in uneven)
        warn(
            f"There is an imbalance between your GPUs. You may want to exclude GPU {least} which has less than 75% of "
            f"the memory or cores of GPU {most}. You can do so by setting the device_ids argument to DataParallel, or "
            "by setting the CUDA_VISIBLE_DEVICES environment variable.",
            stacklevel=3,
        )


def _uneven(values: Sequence[int]) -> tuple[int, int] | None:
    """Return the positions of the least and the largest value, if the least is below 75 % of the largest."""
    least, most = min(values), max(values)
    return (values.index(least), values.index(most)) if least < 0.75 * most else None
