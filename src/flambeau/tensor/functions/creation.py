"""Creation of tensors from sizes, like another tensor, and of sequences of numbers. `tensor/exchange/data.py` has
creation from data.

Options of every function: `dtype` (None: see each), `device` (None: the default device, or that of the model tensor;
"cuda" is the current device), `pin_memory` (CPU only), `layout` (strided only), `requires_grad`.
"""

from __future__ import annotations

import builtins
import math
from typing import Any, Unpack, cast

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.callsite import warn_program
from flambeau.core.device import CPU
from flambeau.core.dtype import BOOL, COMPLEX, INTEGRAL, bool_, dtype
from flambeau.core.errors import argument_type
from flambeau.core.flags import flags
from flambeau.core.layout import Shape, contiguous_strides, span
from flambeau.core.meta import Meta, MetaKind, plain_of
from flambeau.ops.copy import checked_scalar, require_64_bits
from flambeau.ops.shape import creation as ops
from flambeau.runtime import current, system
from flambeau.runtime.hooks import host_work
from flambeau.tensor import dispatch, interception, layout_functions
from flambeau.tensor.arguments.arg_errors import IntTuple, Number
from flambeau.tensor.arguments.extents import ints_of, require_layout
from flambeau.tensor.arguments.options import (
    CreationOptions,
    Given,
    Sized,
    checked_shape,
    creates,
    default_complex,
    default_device,
    integer,
    kind_of_number,
    number,
    shape_of,
    sparse_layout,
)  # fmt: skip
from flambeau.tensor.arguments.public import function, method
from flambeau.tensor.arguments.typing import contiguous_format, strides_in, strides_like
from flambeau.tensor.call import call
from flambeau.tensor.call import empty as allocate
from flambeau.tensor.deterministic_fill import filled_if_wanted, is_filled
from flambeau.tensor.exchange.transfer import copy_, empty_pinned, fill_, filled_with, new_filled, resize_
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor, make


def _new(meta: Meta, options: CreationOptions) -> Tensor:
    """Return an uninitialized tensor of a meta, or `out` resized to it."""
    if options.out is not None:
        return _resize_out(options.out, meta, options)
    if not options.pin_memory:
        return _allocate(meta)
    if meta.device is not CPU:
        raise RuntimeError("Only dense CPU tensors can be pinned")
    return empty_pinned(meta)


def _allocate(meta: Meta) -> Tensor:
    if host_work.charge is not None and meta.device.index is not None:
        host_work.charge(host_work.CREATION, 1)
    return allocate(meta)


def _empty(meta: Meta, options: CreationOptions) -> Tensor:
    """Return `_new` for programs, which may read the contents."""
    return filled_if_wanted(_new(meta, options))


def _constant(meta: Meta, value: Any, options: CreationOptions) -> Tensor:
    if options.out is None and not options.pin_memory:
        return new_filled(meta, value)
    return fill_(_new(meta, options), value)


def _create_computed(op: Any, numbers: tuple[Any, ...], sizes: tuple[int, ...], kind: dtype, own: tuple[Any, ...],
              options: CreationOptions) -> Tensor:  # fmt: skip
    """Return the result of an operator that creates values: in a new tensor, or in `out`."""
    out = options.out
    device = options.device or (default_device() if out is None else out.meta.device)
    made: Tensor = call(op, numbers, (*sizes, kind, device, *own))
    if out is None and not options.pin_memory:
        return made
    return copy_(_new(made.meta, options), made)


def _resize_out(out: Tensor, meta: Meta, options: CreationOptions) -> Tensor:
    """Return `out` resized to the requested shape. Raises RuntimeError if another dtype or device is requested."""
    if options.kind is not None and out.meta.dtype is not options.kind:
        raise RuntimeError(
            f"dtype {options.kind.torch_name} does not match dtype of out parameter "
            f"({out.meta.dtype.torch_name})"
        )
    if options.device is not None and out.meta.device is not options.device:
        raise RuntimeError(
            f"device {options.device} does not match device of out parameter ({out.meta.device})"
        )
    return out if out.meta.shape == meta.shape else resize_(out, meta.shape)


def _sizes(function: str, size: tuple[Any, ...], given: Sized) -> Shape:
    """Return the shape, from positional sizes or `size=`."""
    return shape_of(size or ((given["size"],) if "size" in given else ()), function)


# -- from sizes -------------------------------------------------------------------------------------------


@function
@signatures("empty(size: IntTuple, *, memory_format: memory_format | None=, **made)")
def empty(*sizes: Any, **given: Unpack[Sized]) -> Tensor:
    """Return a new tensor of uninitialized memory, by default of the default dtype."""
    if interception.count and dispatch.is_shown():
        return dispatch.create(empty, sizes, dict(given))
    key, meta = find_meta("empty", sizes, given)
    if meta is not None:
        return _allocate(meta)
    if "requires_grad" in given:
        return creates(empty)(*sizes, **given)
    layout = sparse_layout(given)
    options = CreationOptions("empty", given)
    shape = _sizes("empty", sizes, given)
    if layout is not None:
        return _empty_sparse(layout, shape, options)
    strides = strides_in(shape, options.memory_format or contiguous_format)
    meta = Meta.of(shape, strides, options.kind or flags.default_dtype, options.device or default_device())
    made = _empty(meta, options)
    if not is_filled():
        _remember(key, meta, options)
    return made


# Note [Repeated creations]
# Programs create tensors in the same lines over and over. The dtype and device arguments are interpreted once: the
# table holds the kind of the result's meta, by these arguments, the default dtype and the current device. Sizes are no
# part of the key, so that the table does not grow with them.
_repeated: dict[Any, MetaKind] = {}
_MOST = 4096
_LARGEST = (1 << 63) - 1
system.on_close(_repeated.clear)
flags.subscribe(_repeated.clear)  # empty tensors may have to be filled from now on


def find_meta(function: str, sizes: tuple[Any, ...], given: Sized) -> tuple[Any, Meta | None]:
    """Return (cache key of a creation, its meta or None). The key is None if the arguments are not cacheable."""
    if len(sizes) == 1 and sizes[0].__class__ in (tuple, list):
        sizes = tuple(sizes[0])
    elif not sizes:  # `zeros()` is an error, `zeros([])` is not
        return None, None
    for n in sizes:
        if n.__class__ is not int or not 0 <= n <= _LARGEST:
            return None, None
    key = (
        function,
        len(sizes),
        flags.default_dtype,
        current.local.device,
        current.default.device,
        *given.items(),
    )
    try:
        kind = _repeated.get(key)
    except TypeError:
        return None, None
    return key, None if kind is None else plain_of(sizes, kind)


def _remember(key: Any, meta: Meta, options: CreationOptions) -> None:
    if key is None or options.out is not None or options.pin_memory:
        return
    if options.memory_format not in (None, contiguous_format):  # plain or not: the sizes decide
        return
    if len(_repeated) >= _MOST:
        _repeated.clear()
    _repeated[key] = meta.kind


@function
@creates
@signatures(
    "empty_strided(size: IntTuple, stride: IntTuple, **made)",
    shown="""
empty_strided(size: IntTuple, stride: IntTuple, *, dtype: dtype | None=None, layout: layout | None=strided,
    device: Device=None, requires_grad: bool=False, pin_memory: bool=False)
""",
)
def empty_strided(size: Any, stride: Any, **given: Unpack[Given]) -> Tensor:
    """Return a new tensor of uninitialized memory with `stride`, counted in elements."""
    options = CreationOptions("empty_strided", given)
    shape, strides = checked_shape(size, "empty_strided"), ints_of(stride, "empty_strided", "stride", 2)
    require_layout(shape, strides)
    kind, device = options.kind or flags.default_dtype, options.device or default_device()
    memory = _empty(Meta.contiguous_of((span(shape, strides),), kind, device), options)
    return make(Meta.of(shape, strides, kind, device), memory.memory, memory.ptr)


@function
@creates
@signatures(
    "empty_permuted(size: IntTuple, physical_layout: IntTuple, **made)",
    shown="""
empty_permuted(size: IntTuple, physical_layout: IntTuple, *, dtype: dtype | None=None,
    layout: layout | None=strided, device: Device=None, requires_grad: bool=False, pin_memory: bool=False)
""",
)
def empty_permuted(size: Any, physical_layout: Any, **given: Unpack[Given]) -> Tensor:
    """Return a new tensor of uninitialized memory without gaps, its dimensions in memory in the order
    `physical_layout`.
    """
    shape, order = checked_shape(size, "empty_permuted"), [int(d) for d in physical_layout]
    if len(order) != len(shape):
        raise RuntimeError(
            f"Number of dimensions in size does not match the length of the physical_layout; i.e. len(size) = "
            f"{len(shape)} is not equal to len(physical_layout) = {len(order)}"
        )
    if sorted(order) != list(builtins.range(len(shape))):
        raise RuntimeError(f"Duplicate dim or dimension out of range in physical_layout {order}")
    strides = dict(zip(order, contiguous_strides([shape[d] for d in order]), strict=True))
    return empty_strided(shape, [strides[d] for d in builtins.range(len(shape))], **given)


def _of_default(define: Any, sizes: tuple[Any, ...], value: int, given: Sized) -> Tensor:
    """Return zeros or ones, of the default dtype unless one is given. See Note [Repeated creations]."""
    function = define.__name__
    if interception.count and dispatch.is_shown():
        return dispatch.create(define, sizes, dict(given))
    key, meta = find_meta(function, sizes, given)
    if meta is not None:
        return filled_with(meta, value)
    if "requires_grad" in given:
        made: Tensor = creates(define)(*sizes, **given)
        return made
    layout = None if value else sparse_layout(given)
    options = CreationOptions(function, given)
    shape = _sizes(function, sizes, given)
    if layout is not None:
        return _empty_sparse(layout, shape, options)
    meta = Meta.contiguous_of(shape, _kind(options, flags.default_dtype), options.device or default_device())
    made = _constant(meta, value, options)
    _remember(key, meta, options)
    return made


def _empty_sparse(layout: str, shape: Shape, options: CreationOptions) -> Tensor:
    """Return a sparse tensor without values, the result of `torch.zeros` and `torch.empty` for a sparse layout."""
    kind, device = options.kind or flags.default_dtype, options.device or default_device()
    return layout_functions.find("empty")(layout, shape, kind, device)


def _of_one_value(function: str, shape: Shape, value: Any, given: Given, natural: dtype | None) -> Tensor:
    options = CreationOptions(function, given)
    kind = _kind(options, natural or flags.default_dtype)
    return _constant(Meta.contiguous_of(shape, kind, options.device or default_device()), value, options)


@function
@signatures("zeros(size: IntTuple, **made)")
def zeros(*sizes: Any, **given: Unpack[Sized]) -> Tensor:
    """Return a new tensor of zeros."""
    return _of_default(zeros, sizes, 0, given)


@function
@signatures("ones(size: IntTuple, **made)")
def ones(*sizes: Any, **given: Unpack[Sized]) -> Tensor:
    """Return a new tensor of ones."""
    return _of_default(ones, sizes, 1, given)


@function
@creates
@signatures("full(size: IntTuple, fill_value: Number, **made)")
def full(size: IntTuple, fill_value: Number, **given: Unpack[Given]) -> Tensor:
    """Return a new tensor filled with one value. By default the value determines the dtype (int64, bool, the default
    dtype).
    """
    if not isinstance(size, (tuple, list)):
        raise TypeError(argument_type("full", "size", 1, "tuple of ints", size))
    value = number(fill_value, "full", "fill_value", 2)
    return _of_one_value("full", shape_of((size,), "full"), value, given, kind_of_number(value))


@function
@creates
@signatures("scalar_tensor(s: Number, **made)")
def scalar_tensor(s: Any, **given: Unpack[Given]) -> Tensor:
    """Return a 0-dim tensor of a number, by default of the default dtype."""
    return _of_one_value("scalar_tensor", (), number(s, "scalar_tensor", "s", 1), given, None)


@function
@creates
@signatures("""
eye(n: int, **made)
eye(n: int, m: int, **made)
""")
def eye(n: Any, m: Any = None, **given: Unpack[Given]) -> Tensor:
    """Return the identity matrix of `n` rows and `m` (or n) columns."""
    options = CreationOptions("eye", given)
    rows = integer(n, "eye", "n", 1)
    columns = rows if m is None else integer(m, "eye", "m", 2)
    for name, size in (("n", rows), ("m", columns)):
        if size < 0:
            raise RuntimeError(f"{name} must be greater or equal to 0, got {size}")
    return _create_computed(ops.eye, (), (rows, columns), _kind(options, flags.default_dtype), (), options)


# -- like another tensor ----------------------------------------------------------------------------------


def _like(function: str, input: Any, given: Given) -> tuple[Meta, CreationOptions]:
    if not isinstance(input, Tensor):
        raise TypeError(argument_type(function, "input", 1, "Tensor", input))
    options = CreationOptions(function, given)
    if input.meta.sparse:
        raise layout_functions.not_implemented(function, (input,))
    if not given and input.meta.plain:
        return input.meta, options
    strides = strides_like(input.meta, options.memory_format)
    return input.meta.with_(strides=strides, dtype=options.kind, device=options.device), options


@function
@creates
@signatures("empty_like(input: Tensor, *, memory_format: memory_format | None=, **made)")
def empty_like(input: Tensor, **given: Unpack[Given]) -> Tensor:
    """Return an uninitialized tensor of the shape, dtype, device and memory order of `input`."""
    if isinstance(input, Tensor) and input.meta.sparse:
        return layout_functions.find("like")(input, CreationOptions("empty_like", given))
    return _empty(*_like("empty_like", input, given))


@function
@creates
@signatures("zeros_like(input: Tensor, *, memory_format: memory_format | None=, **made)")
def zeros_like(input: Tensor, **given: Unpack[Given]) -> Tensor:
    """Return zeros in the shape, dtype, device and memory order of `input`."""
    if isinstance(input, Tensor) and input.meta.sparse:
        return layout_functions.find("like")(input, CreationOptions("zeros_like", given))
    meta, options = _like("zeros_like", input, given)
    return _constant(meta, 0, options)


@function
@creates
@signatures("ones_like(input: Tensor, *, memory_format: memory_format | None=, **made)")
def ones_like(input: Tensor, **given: Unpack[Given]) -> Tensor:
    """Return ones in the shape, dtype, device and memory order of `input`."""
    meta, options = _like("ones_like", input, given)
    return _constant(meta, 1, options)


@function
@creates
@signatures("full_like(input: Tensor, fill_value: Number, *, memory_format: memory_format | None=, **made)")
def full_like(input: Tensor, fill_value: Number, **given: Unpack[Given]) -> Tensor:
    """Return a tensor of one value with the shape, dtype, device and memory order of `input`."""
    meta, options = _like("full_like", input, given)
    return _constant(meta, number(fill_value, "full_like", "fill_value", 2), options)


def _new_like(
    self: Tensor, function: str, size: tuple[Any, ...], given: Sized
) -> tuple[Meta, CreationOptions]:
    """Return a contiguous meta of the sizes, by default with the tensor's device and dtype."""
    options = CreationOptions(function, given)
    shape = _sizes(function, size, given)
    kind, device = options.kind or self.meta.dtype, options.device or self.meta.device
    return Meta.contiguous_of(shape, kind, device), options


@method
@creates
@signatures("Tensor.new_empty(size: IntTuple, **made)")
def new_empty(self: Tensor, *sizes: Any, **given: Unpack[Sized]) -> Tensor:
    """Return an uninitialized tensor with this tensor's device and dtype."""
    if self.meta.sparse:
        return layout_functions.find("new_empty")(*_new_like(self, "new_empty", sizes, given), self)
    return _empty(*_new_like(self, "new_empty", sizes, given))


@method
@creates
@signatures("Tensor.new_zeros(size: IntTuple, **made)")
def new_zeros(self: Tensor, *sizes: Any, **given: Unpack[Sized]) -> Tensor:
    """Return zeros on this tensor's device and of its dtype."""
    if self.meta.sparse:
        return layout_functions.find("new_empty")(*_new_like(self, "new_zeros", sizes, given), self)
    meta, options = _new_like(self, "new_zeros", sizes, given)
    return _constant(meta, 0, options)


@method
@creates
@signatures("Tensor.new_ones(size: IntTuple, **made)")
def new_ones(self: Tensor, *sizes: Any, **given: Unpack[Sized]) -> Tensor:
    """Return ones with this tensor's device and dtype."""
    meta, options = _new_like(self, "new_ones", sizes, given)
    return _constant(meta, 1, options)


@method
@creates
@signatures(
    "Tensor.new_full(size: IntTuple, fill_value: Number, **made)",
    shown="""
Tensor.new_full(size: IntTuple, fill_value: Number, *, dtype: dtype | None=None, device: Device=None,
    requires_grad: bool=False, layout: layout | None=strided, pin_memory: bool=False)
""",
)
def new_full(self: Tensor, size: IntTuple, fill_value: Number, **given: Unpack[Given]) -> Tensor:
    """Return a tensor of one value with this tensor's device and dtype."""
    meta, options = _new_like(self, "new_full", (size,), cast(Sized, given))
    return _constant(meta, number(fill_value, "new_full", "fill_value", 2), options)


@method
@creates
@signatures("Tensor.new_empty_strided(size: IntTuple, stride: IntTuple, **made)")
def new_empty_strided(self: Tensor, size: Any, stride: Any, **given: Unpack[Given]) -> Tensor:
    """Return `torch.empty_strided` on this tensor's device and of its dtype."""
    given.setdefault("dtype", self.meta.dtype)
    given.setdefault("device", self.meta.device)
    return empty_strided(size, stride, **given)


# -- sequences --------------------------------------------------------------------------------------------

_UNSIGNED = (dtypes.uint16, dtypes.uint32, dtypes.uint64)


def _kind(options: CreationOptions, natural: dtype) -> dtype:
    return options.kind or (natural if options.out is None else options.out.meta.dtype)


@function
@creates
@signatures(
    """
arange(end: Number, **made)
arange(start: Number, end: Number, step: Number=, **made)
""",
    shown="""
arange(start: Number=0, end: Number | None=None, step: Number=1, *, out: Tensor | None=None,
    dtype: dtype | None=None, layout: layout | None=strided, device: Device=None, requires_grad: bool=False,
    pin_memory: bool=False)
""",
)
def arange(start: Any = None, end: Any = None, step: Any = 1, **given: Unpack[Given]) -> Tensor:
    """Return numbers from `start` (default 0) in steps of `step` up to, but excluding, `end`.

    int64 if all three are ints, else the default dtype. Raises RuntimeError for a step of 0 or of the wrong sign.
    """
    options = CreationOptions("arange", given)
    start, end = (0, start) if end is None else (0 if start is None else start, end)
    start = number(start, "arange", "start", 1)
    end = number(end, "arange", "end", 1)
    step = number(step, "arange", "step", 3)
    whole = all(isinstance(x, int) for x in (start, end, step))
    kind = _kind(options, dtypes.int64 if whole else flags.default_dtype)
    if kind.category in (BOOL, COMPLEX) or kind in _UNSIGNED:
        raise NotImplementedError(f"\"arange\" not implemented for '{kind.torch_name}'")
    count = _count(start, end, step)
    if kind.category == INTEGRAL:
        if kind is dtypes.int64:  # PyTorch counts in the dtype here, in double elsewhere
            start, end, step = (checked_scalar(x, kind) for x in (start, end, step))
            count = _count(start, end, step)
        start, step = int(start), int(step)
    return _create_computed(ops.arange, (start, step), (count,), kind, (), options)


def _count(start: float, end: float, step: float) -> int:
    for x in (start, end, step):
        require_64_bits(x)
    if step == 0:
        raise RuntimeError("step must be nonzero")
    if not (math.isfinite(start) and math.isfinite(end)):
        raise RuntimeError(f"unsupported range: {float(start):g} -> {float(end):g}")
    if (end < start) if step > 0 else (end > start):
        raise RuntimeError("upper bound and lower bound inconsistent with step sign")
    if isinstance(start, int) and isinstance(end, int) and isinstance(step, int):
        return -((start - end) // step)
    return math.ceil((end - start) / step)


@function
@creates
@signatures("range(start: Number, end: Number, step: Number=, **made)")
def range(start: Number = 0, end: Number | None = None, step: Number = 1, **given: Unpack[Given]) -> Tensor:
    """Return numbers from `start` in steps of `step` up to and including `end`. Deprecated: use arange."""
    warn_program(
        "torch.range is deprecated and will be removed in a future release because its behavior is "
        "inconsistent with Python's range builtin. Instead, use torch.arange, which produces values in "
        "[start, end).",
        UserWarning,
    )
    options = CreationOptions("range", given)
    start, end = (0, start) if end is None else (start, end)
    numbers = [number(x, "range", name, 1) for name, x in (("start", start), ("end", end), ("step", step))]
    _count(*numbers)
    count = math.floor((numbers[1] - numbers[0]) / numbers[2]) + 1
    kind = _kind(options, flags.default_dtype)
    if kind is bool_ or kind.is_complex:
        raise NotImplementedError(f"\"range_cpu\" not implemented for '{kind.torch_name}'")
    return _create_computed(ops.arange, (numbers[0], numbers[2]), (count,), kind, (), options)


@function
@creates
@signatures("linspace(start: Tensor | Number, end: Tensor | Number, steps: int, **made)")
def linspace(start: Any, end: Any, steps: Any, **given: Unpack[Given]) -> Tensor:
    """Return `steps` numbers from `start` to `end` (both among them), equally spaced."""
    return _create_spaced("linspace", ops.linspace, start, end, steps, (), given)


@function
@creates
@signatures("logspace(start: Tensor | Number, end: Tensor | Number, steps: int, base: float=, **made)")
def logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **given: Unpack[Given]) -> Tensor:
    """Return `steps` numbers from base**start to base**end, their exponents equally spaced."""
    return _create_spaced("logspace", ops.logspace, start, end, steps, (float(base),), given)


def _power(base: float, exponent: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.power(
            base, np.complex128(exponent) if isinstance(exponent, complex) else np.float64(exponent)
        ).item()


def _create_spaced(
    name: str, op: Any, start: Any, end: Any, steps: Any, own: tuple[Any, ...], given: Given
) -> Tensor:
    options = CreationOptions(name, given)
    wide = [
        f"{at} with {x.ndim} dimension(s)"
        for at, x in (("start", start), ("end", end))
        if getattr(x, "ndim", 0)
    ]
    if wide:
        raise RuntimeError(
            f"{name} only supports 0-dimensional start and end tensors, but got {' and '.join(wide)}."
        )
    start, end = number(start, name, "start", 1), number(end, name, "end", 2)
    count = integer(steps, name, "steps", 3)
    if count < 0:
        raise RuntimeError("number of steps must be non-negative")
    complexes = isinstance(start, complex) or isinstance(end, complex)
    kind = _kind(options, default_complex() if complexes else flags.default_dtype)
    if kind.category == BOOL:
        raise NotImplementedError(f"\"{name}\" not implemented for 'Bool'")
    if count == 1 and op is ops.logspace:  # PyTorch truncates the power, not the exponent
        given["dtype"] = kind
        return full((1,), _power(own[0], start), **given)
    # for integer dtypes, between whole numbers
    start, end = checked_scalar(start, kind), checked_scalar(end, kind)
    # PyTorch rounds the step of linspace; exponents of logspace stay exact
    rounding = kind if op is ops.linspace else dtypes.complex128 if kind.is_complex else dtypes.float64
    operands = ops.spaced_operands(start, end, count, rounding)
    return _create_computed(op, operands, (count,), kind, own, options)
