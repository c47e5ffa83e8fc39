"""Copies with conversion, and fills: the operators that all creations and transfers on one device use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import (
    BOOL,
    DTYPES,
    FLOATING,
    INTEGRAL,
    bool_,
    complex32,
    complex64,
    dtype,
    float8_e4m3fn,
    float16,
    float32,
)  # fmt: skip
from flambeau.core.layout import broadcast_shapes, expand_strides
from flambeau.core.meta import Meta
from flambeau.core.typeinfo import finfo
from flambeau.driver.protocol import AUTOCAST, Body, Expression, Kernel, Launch
from flambeau.ops.cache_blocks import BLOCK, copy_tiles, transposes
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, note

Array = np.ndarray[Any, Any]
Store = Callable[[Array, Array], None]

_BITS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def caster(source: dtype, target: dtype) -> Store:
    """Return a function `store(out, x)` that converts x from dtype `source` to `target` as PyTorch does.

    Floats are truncated to integers; bool is `x != 0`; complex numbers lose their imaginary part. Dtypes narrower than
    float32 are converted from float32, so that a double is rounded twice, as in PyTorch.
    """
    if source is target:
        return _same(source)
    if target is bool_:
        return _to_bool(source)
    if source is complex32:
        return _copy if target is complex64 else _through(complex64, source, target)
    if source.is_complex and not target.is_complex:
        return _real_part(source, target)
    if target is complex32:
        if source is complex64:
            return _copy
        return _through(complex64, source, target)
    if (_narrow(target) or _narrow(source)) and source is not float32 and target is not float32:
        return _through(float32, source, target)
    if target is float16:
        return _to_half
    if source is float16 and target is float32:
        return _from_half
    return _saturate if target is float8_e4m3fn else _copy


def _narrow(x: dtype) -> bool:
    return x.category == FLOATING and x.itemsize < 4


def _copy(out: Array, x: Array) -> None:
    if x.size >= BLOCK and transposes(out, x):
        copy_tiles(out, x)
    else:
        out[...] = x  # a cast without checks, which is faster than np.copyto


def _saturate(out: Array, x: Array) -> None:
    largest = _largest(float8_e4m3fn)  # the type has no infinity, so PyTorch clips
    np.copyto(out, np.clip(x, -largest, largest), casting="unsafe")


_LARGE = BLOCK // 4  # number of elements from which arithmetic on bits is faster

# Of a float32, the upper 16 bits less the sign, doubled: of the smallest number that is normal in float16, and of one
# near the largest there. What the exponent's bias differs by, less half of the last bit that is kept.
_LEAST, _MOST = 2 * 0x3880, 2 * 0x477F
_ROUND = np.uint32((0xFFF - (112 << 23)) % (1 << 32))


def _to_half(out: Array, x: Array) -> None:
    """Convert to float16, rounding to nearest even. Large arrays use arithmetic on bits, which is faster than
    NumPy's cast.
    """
    if x.size < _LARGE or not (x.flags.c_contiguous and out.flags.c_contiguous):
        _copy(out, x)
        return
    halves, numbers = out.reshape(-1), x.reshape(-1)
    bits, words = halves.view(np.uint16), numbers.view(np.uint32)
    word, upper, sign = np.empty(BLOCK, np.uint32), *(np.empty(BLOCK, np.uint16) for _ in range(2))
    for start in range(0, x.size, BLOCK):
        given = words[start : start + BLOCK]
        n = given.size
        w, u, s = word[:n], upper[:n], sign[:n]
        u[...] = np.right_shift(given, 16, out=w)
        np.right_shift(given, 13, out=w)
        w &= 1  # the last kept bit: a tie rounds up if it is set
        w += _ROUND
        w += given
        w >>= 13
        part = bits[start : start + BLOCK]
        part[...] = w
        part |= np.bitwise_and(u, 0x8000, out=s)
        u <<= 1
        u -= _LEAST  # numbers below the smallest normal one have wrapped around
        other = u >= _MOST - _LEAST
        if np.count_nonzero(other) > n // 32:  # many zeros, as after relu, of which only the sign is kept
            there = given << 1 != 0
            part *= there
            part |= s
            other &= there
        rest = other.nonzero()[0]
        if rest.size:
            halves[start : start + BLOCK][rest] = numbers[start : start + BLOCK][rest]


_SIGN_AND_NUMBER = np.int32(0x8FFFE000 - (1 << 32))
_REBIASED = np.float32(2.0**112)


def _from_half(out: Array, x: Array) -> None:
    """Convert from float16: the bits of a half, placed as those of a float32, represent the number times 2^-112."""
    if x.size < _LARGE or not (x.flags.c_contiguous and out.flags.c_contiguous):
        _copy(out, x)
        return
    halves, numbers = x.reshape(-1), out.reshape(-1)
    word, magnitude = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.uint16)
    for start in range(0, x.size, BLOCK):
        given, part = halves[start : start + BLOCK], numbers[start : start + BLOCK]
        w = word[: given.size]
        w[...] = given.view(np.int16)  # extends the sign to all bits above
        w <<= 13
        w &= _SIGN_AND_NUMBER
        np.multiply(w.view(np.float32), _REBIASED, out=part)
        m = np.bitwise_and(given.view(np.uint16), 0x7FFF, out=magnitude[: given.size])
        if m.max() >= 0x7C00:  # infinities and NaNs
            rest = (m >= 0x7C00).nonzero()[0]
            part[rest] = given[rest]


def _same(kind: dtype) -> Store:
    if kind.numpy.isbuiltin == 1:
        return _copy
    # copy as integers, because NumPy copies its own types faster and preserves the bits of NaNs
    bits = _BITS[kind.itemsize]

    def store(out: Array, x: Array) -> None:
        _copy(out.view(bits), x.view(bits))

    return store


def _to_bool(source: dtype) -> Store:
    if source is complex32 or _narrow(source):
        wide = (complex64 if source.is_complex else float32).numpy
        return lambda out, x: np.copyto(out, x.astype(wide) != 0)
    return lambda out, x: np.copyto(out, x != 0)


def _through(middle: dtype, source: dtype, target: dtype) -> Store:
    """Convert in two steps, through an array of dtype `middle`."""
    first, second = caster(source, middle), caster(middle, target)

    def store(out: Array, x: Array) -> None:
        wide = np.empty(x.shape, middle.numpy)
        first(wide, x)
        second(out, wide)

    return store


def _real_part(source: dtype, target: dtype) -> Store:
    store = caster(source.to_real(), target)
    return lambda out, x: store(out, x.real)


# -- copy: params (dtype, shape) of the target; the source is broadcast ---------------------------------


def _copy_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    (source,) = operands
    assert isinstance(source, Meta)
    to, shape = params
    seen = source
    if source.shape != shape:
        if broadcast_shapes([shape, source.shape]) != shape:
            raise RuntimeError(
                f"output with shape {list(shape)} doesn't match the broadcast shape "
                f"{list(broadcast_shapes([shape, source.shape]))}"
            )
        seen = source.with_(shape, expand_strides(source.shape, source.strides, shape))
    return Signature((Meta.contiguous_of(shape, to, source.device),), (seen,))


def _copy_host(launch: Launch) -> Body:
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    store = caster(source.dtype, launch.outputs[0].dtype)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        store(outputs[0], inputs[0])

    return body


def _copy_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4),), (kind, (3, 4))
    yield (make(4),), (float32, (3, 4))
    yield (make(),), (kind, ())
    yield (make(0, 2),), (kind, (0, 2))


def _copy_name(metas: Sequence[Meta | None], params: tuple[Any, ...]) -> str:
    """Return the node name of a copy: `copy_` if there are no params, else `clone` or `to`."""
    if not params:
        return "CopyBackwards"
    source = metas[0]
    same = source is not None and params[0] is source.dtype and params[2:] in ((), (source.device,))
    return "CloneBackward0" if same else "ToCopyBackward0"


copy = define(
    Op(
        "copy",
        _copy_rule,
        Kernel("copy", _copy_host, cuda=Expression("a")),
        DTYPES,
        _copy_samples,
        derivative=Derivative(lambda grad: grad, name=_copy_name, linear="together"),
    )
)
note(copy, overwrites=True)
weight_cast = copy.with_(kernel=copy.kernel.with_(name=AUTOCAST))  # `copy` under another name, for reports


# -- fill: params (dtype, shape, device) of the target; the value travels by value ----------------------


def _fill_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    kind, shape, device = params
    return Signature((Meta.contiguous_of(shape, kind, device),), (kind,))


def _fill_host(launch: Launch) -> Body:
    return lambda outputs, inputs: outputs[0].fill(inputs[0])


def _fill_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (1,), (kind, (3, 4), CPU)
    yield (0,), (kind, (), CPU)
    yield (1,), (kind, (0, 2), CPU)


fill = define(
    Op(
        "fill",
        _fill_rule,
        Kernel("fill", _fill_host, cuda=Expression("a")),
        DTYPES,
        _fill_samples,
        derivative=Derivative(None, name="FillBackward2"),
    )
)
note(fill, overwrites=True)


# -- scalars --------------------------------------------------------------------------------------------

_C_NAMES = {
    "bool": "bool", "uint8": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int",
    "int64": "int64_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
    "float16": "c10::Half", "bfloat16": "c10::BFloat16", "float32": "float", "float64": "double",
    "complex32": "c10::complex<at::Half>", "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>", "float8_e4m3fn": "c10::Float8_e4m3fn",
    "float8_e5m2": "c10::Float8_e5m2",
}  # fmt: skip


def checked_scalar(value: complex, kind: dtype) -> bool | int | float | complex:
    """Return `value` as PyTorch stores it in a tensor of `kind`: floats truncate, negative integers wrap in unsigned
    types.

    Raises:
        OverflowError: If the value is an integer that neither int64 nor uint64 represents.
        RuntimeError: If the value is out of the dtype's range, or has an imaginary part that is lost.
    """
    require_64_bits(value)
    if kind.category == BOOL:
        return bool(value)
    if kind.is_complex:
        return _checked_complex(complex(value), kind)
    if isinstance(value, complex):
        if value.imag != 0:
            raise RuntimeError(_overflow(kind))
        value = value.real
    if kind.is_floating_point:
        return _checked_float(value, kind)
    return _checked_int(value, kind)


def require_64_bits(number: Any) -> None:
    """Raise OverflowError if a number is an integer that neither int64 nor uint64 represents."""
    if isinstance(number, int) and not -(1 << 63) <= number < 1 << 64:
        raise OverflowError(
            "int too big to convert" if number > 0 else "can't convert negative int to unsigned"
        )


def wide_scalar(number: Any) -> Any:
    """Return a number that kernels accept: an integer from 2**63 to 2**64 - 1, which PyTorch takes, as a float.

    Raises:
        OverflowError: If an integer has more bits.
    """
    require_64_bits(number)
    return float(number) if isinstance(number, int) and number >= 1 << 63 else number


def _checked_complex(value: complex, kind: dtype) -> complex:
    largest = _largest(kind.to_real())
    if any(abs(part) > largest and math.isfinite(part) for part in (value.real, value.imag)):
        raise RuntimeError(_overflow(kind))
    return value


def _checked_float(value: float, kind: dtype) -> float:
    number = float(value)
    if abs(number) > _largest(kind) and math.isfinite(number):
        raise RuntimeError(_overflow(kind))
    return number


def _checked_int(value: float, kind: dtype) -> int:
    low, high = _LIMITS[kind]
    if isinstance(value, float) and not kind.is_signed:
        low = 0
    if not math.isfinite(value) or not low <= value <= high:
        raise RuntimeError(_overflow(kind))
    number = int(value)
    return number if kind.is_signed else number % (high + 1)


@cache
def _largest(kind: dtype) -> float:
    return finfo(kind).max


def _limits(kind: dtype) -> tuple[int, int]:
    limits = np.iinfo(kind.numpy)
    low = int(limits.min) if kind.is_signed else -int(limits.max)  # PyTorch lets negatives wrap
    return low, int(limits.max)


_LIMITS = {kind: _limits(kind) for kind in DTYPES if kind.category == INTEGRAL}


def _overflow(kind: dtype) -> str:
    return f"value cannot be converted to type {_C_NAMES[kind.name]} without overflow"
