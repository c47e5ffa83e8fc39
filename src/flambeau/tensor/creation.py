"""Creation from sizes, like another tensor, and sequences of numbers. From data: `tensor/data.py`.

Options of every function: `dtype` (None: see each), `device` (None: the CPU, or where the model tensor
lies; "cuda" is the current device), `pin_memory` (CPU only), `layout` (strided only), `requires_grad`
(False only, so far).
"""

from __future__ import annotations

import math
from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.device import CPU
from flambeau.core.dtype import dtype
from flambeau.core.flags import flags
from flambeau.core.layout import Shape
from flambeau.core.meta import Meta
from flambeau.ops import creation as ops
from flambeau.tensor.call import call
from flambeau.tensor.call import empty as allocate
from flambeau.tensor.options import kind_of, kind_of_number, place, refuse, shape_of
from flambeau.tensor.public import function
from flambeau.tensor.tensor import Tensor
from flambeau.tensor.transfer import copied, copy_, empty_pinned, fill_, filled, item
from flambeau.tensor.typing import contiguous_format, layout, memory_format, preserve_format, strides_in


def _new(meta: Meta, pin_memory: bool) -> Tensor:
    if not pin_memory:
        return allocate(meta)
    if meta.device is not CPU:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    return empty_pinned(meta)


@function
def empty(
    *size: Any,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: layout | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: memory_format = contiguous_format,
) -> Tensor:
    """A new tensor of uninitialized memory, of the default dtype unless told otherwise."""
    refuse(layout, requires_grad)
    shape = shape_of(size, "empty")
    if memory_format is preserve_format:
        raise RuntimeError(
            "Unsupported memory format: torch.empty takes contiguous_format and channels_last formats"
        )
    meta = Meta.of(shape, strides_in(shape, memory_format), kind_of(dtype, "empty"), place(device))
    return _new(meta, pin_memory)


def _full(shape: Shape, value: Any, kind: dtype, device: Any, pin_memory: bool) -> Tensor:
    meta = Meta.contiguous_of(shape, kind, place(device))
    return fill_(_new(meta, pin_memory), value) if pin_memory else filled(meta, value)


@function
def zeros(
    *size: Any,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: layout | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A new tensor of zeros."""
    refuse(layout, requires_grad)
    return _full(shape_of(size, "zeros"), 0, kind_of(dtype, "zeros"), device, pin_memory)


@function
def ones(
    *size: Any,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: layout | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A new tensor of ones."""
    refuse(layout, requires_grad)
    return _full(shape_of(size, "ones"), 1, kind_of(dtype, "ones"), device, pin_memory)


@function
def full(
    size: Any,
    fill_value: Any,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: layout | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """A new tensor of one value. Its dtype is the value's own (int64, bool, the default) unless given."""
    refuse(layout, requires_grad)
    value = item(fill_value) if isinstance(fill_value, Tensor) else fill_value
    return _full(shape_of((size,), "full"), value, kind_of(dtype, "full", kind_of_number(value)), device, pin_memory)


@function
def arange(
    start: Any,
    end: Any = None,
    step: Any = 1,
    *,
    out: Tensor | None = None,
    dtype: Any = None,
    layout: layout | None = None,
    device: Any = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
) -> Tensor:
    """Numbers from `start` (0 if one argument is given) to `end`, which is not among them, by `step`.

    int64 if all three are ints, else the default dtype. Raises RuntimeError for a step of 0 or of the wrong sign.
    """
    refuse(layout, requires_grad)
    start, end = (0, start) if end is None else (start, end)
    numbers = tuple([item(x) if isinstance(x, Tensor) else x for x in (start, end, step)])
    start, end, step = numbers
    natural = dtypes.int64 if all(isinstance(x, int) for x in numbers) else flags.default_dtype
    kind = kind_of(dtype, "arange", natural)
    count = _count(start, end, step)
    if not kind.category >= dtypes.FLOATING:
        start, step = int(start), int(step)
    result: Tensor = call(ops.arange, (start, step), (count, kind, place(device)))
    return result


def _count(start: Any, end: Any, step: Any) -> int:
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"unsupported range: {float(start):g} -> {float(end):g}")
    if (end < start) if step > 0 else (end > start):
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    if isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
        return -((start - end) // step)
    return math.ceil((end - start) / step)
