"""Sequences of numbers and the identity matrix, computed directly in the result's memory.

All operators take their numbers by value; the last params are dtype and device of the new tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import (
    BOOL,
    DTYPES,
    INTEGRAL,
    bfloat16,
    complex32,
    complex64,
    complex128,
    dtype,
    float16,
    float32,
    float64,
    int64,
)
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Expression, Kernel, Launch
from flambeau.ops.copy import caster
from flambeau.ops.op import NOT_DIFFERENTIABLE, Make, Op, Operand, Sample, Signature, define
from flambeau.ops.work import element_work

Array = np.ndarray[Any, Any]
_NUMBERS = tuple(d for d in DTYPES if d.category != BOOL)


def _wide(kind: dtype) -> dtype:
    """Return the dtype in which the numbers are computed before they are rounded once."""
    if kind.is_complex:
        return complex128
    return float64 if kind.is_floating_point else int64


def _sequence_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Params: count, dtype, device, then the operator's own."""
    count, kind, device = params[:3]
    number = _wide(kind)
    return Signature((Meta.contiguous_of((count,), kind, device),), tuple([number for _ in operands]), params)


def _arange_host(launch: Launch) -> Body:
    (target,) = launch.outputs
    wide = _wide(target.dtype)
    store = caster(wide, target.dtype)

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        start, step = inputs
        # computed at each call, because a plan should not hold data as large as its output
        count = np.arange(target.numel, dtype=wide.numpy)
        store(outputs[0], wide.numpy.type(start) + wide.numpy.type(step) * count)

    return body


def spaced_operands(start: Any, end: Any, count: int, kind: dtype) -> tuple[Any, Any, Any]:
    """Return the operands of linspace: both ends and the step between numbers, rounded to `kind` as in PyTorch.

    Each number is a multiple of the rounded step away from an end. So spacings are equal, though the numbers are less
    exact than with the exact step.
    """
    rounded = kind in (float32, float64, complex64, complex128)
    number: Any = kind.numpy.type if rounded else np.complex128 if kind.is_complex else np.float64
    with np.errstate(all="ignore"):
        first, last = number(start), number(end)
        step = _divide(last - first, count - 1) if count > 1 else number(0)
    return first.item(), last.item(), step.item()


def _divide(x: Any, count: int) -> Any:
    """Return a NumPy number divided by a count; a complex number by its parts."""
    divisor = x.real.dtype.type(count)
    return x.dtype.type(complex(x.real / divisor, x.imag / divisor)) if np.iscomplexobj(x) else x / divisor


def _linspace_host(launch: Launch) -> Body:
    """Return linspace computed from both ends towards the middle, so that the last number is exactly `end`.

    As in PyTorch's CPU build, half dtypes round the step, the product and the sum. Other dtypes round the sum alone.
    """
    (target,) = launch.outputs
    kind, n = target.dtype, target.numel
    number = _spacing_dtype(kind)
    store = caster(number, kind)

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        start, end, step = (number.numpy.type(each) for each in inputs)
        lower, count = _count_steps(n)
        with np.errstate(all="ignore"):
            if _is_half(kind):
                step = (end - start) / number.numpy.type(max(n - 1, 1))
                product = np.where(lower, step, -step) * count.astype(number.numpy)
                numbers = np.where(lower, start, end) + product
            else:
                numbers = _add_product(np.where(lower, start, end), np.where(lower, step, -step), count)
        if n == 1:
            numbers[...] = start
        store(outputs[0], numbers)

    return body


def _logspace_host(launch: Launch) -> Body:
    """Return powers of a base with the exponents of linspace.

    As in PyTorch's CPU build, the ends are rounded to the result's dtype, and the step is a double.
    """
    (target,) = launch.outputs
    kind, n, base = target.dtype, target.numel, launch.params[3]
    number = complex128 if kind.is_complex else float64
    own: Any = None if kind.category == INTEGRAL or kind.itemsize == 1 else _spacing_dtype(kind).numpy.type
    store = caster(number, kind)

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        start, end, _step = inputs
        with np.errstate(all="ignore"):
            if n > 1 and own:
                start, end = own(start), own(end)
            step = number.numpy.type(end - start) / max(n - 1, 1)
            start, end = number.numpy.type(start), number.numpy.type(end)
            lower, count = _count_steps(n)
            exponents = np.where(lower, start, end) + np.where(lower, step, -step) * count
            if not kind.is_complex:  # NumPy's own powers of doubles are less exact than the C library's
                exponents = exponents.astype(np.longdouble)
            powers = np.power(exponents.dtype.type(base), exponents)
            store(outputs[0], powers.astype(number.numpy, copy=False))

    return body


def _count_steps(n: int) -> tuple[Array, Array]:
    """Return which of `n` numbers are counted from the start, and how many steps each is away from its end."""
    index = np.arange(n)
    lower = (index < n // 2) | (n == 1)
    return lower, np.where(lower, index, n - 1 - index)


def _add_product(a: Array, b: Array, count: Array) -> Array:
    """Return `a + b * count`, rounded once; a complex number is rounded by its parts."""
    if a.dtype.kind == "c":
        sums = np.empty_like(a)
        sums.real = _add_product(a.real, b.real, count)
        sums.imag = _add_product(a.imag, b.imag, count)
        return sums
    if a.dtype != np.float64:
        return (a + b.astype(np.float64) * count).astype(a.dtype)  # the product is exact
    product = b * count
    high = b * 134217729.0  # Dekker's product: `product + low` is exact for counts of up to 26 bits
    high = high - (high - b)
    low = (high * count - product) + (b - high) * count
    total = a + product
    rest = total - a
    error = (a - (total - rest)) + (product - rest)
    correction = error + low
    return np.where(np.isfinite(low) & (correction != 0), total + correction, total)


def _is_half(kind: dtype) -> bool:
    return kind in (float16, bfloat16)


def _spacing_dtype(kind: dtype) -> dtype:
    """Return the dtype in which linspace computes: float64 for integers, otherwise the result's."""
    if kind is complex32:
        return complex64
    return float64 if kind.category == INTEGRAL or kind.itemsize == 1 else kind


def _linspace_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: both ends and the step (`spaced_operands`)."""
    count, kind, device = params[:3]
    number = complex128 if kind.is_complex else float64
    return Signature((Meta.contiguous_of((count,), kind, device),), (number, number, number), params)


def _eye_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    rows, columns, kind, device = params
    return Signature((Meta.contiguous_of((rows, columns), kind, device),), (), params)


def _eye_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Any]) -> None:
        outputs[0][...] = 0
        np.einsum("ii->i", outputs[0][: min(outputs[0].shape), : min(outputs[0].shape)])[...] = 1

    return body


def _sequence_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (0, 1), (5, kind, CPU)
    yield (1, 2), (0, kind, CPU)


def _linspace_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (0, 8, 2), (5, kind, CPU)
    yield (1, 2, 0), (1, kind, CPU)


def _logspace_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (0, 3, 1), (4, kind, CPU, 2.0)


def _eye_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (), (3, 3, kind, CPU)
    yield (), (2, 4, kind, CPU)


_ARANGE = Expression("add(a, mul(b, to<T>(i)))", indexed=True)
_EYE = Expression("i / k0 == i % k0", constants=lambda launch: (launch.params[1],), indexed=True)


def _linspace_form(of: str) -> Expression:
    number = "(k0 == 1 ? a : i < k0 / 2 ? a + line(c, i) : b - line(c, k0 - 1 - i))"

    def constants(launch: Launch) -> Sequence[float]:
        base = launch.params[3:4]
        return (launch.outputs[0].numel, *[float(x) for x in base])

    return Expression(of.format(number), constants=constants, indexed=True)


arange = define(
    Op(
        "arange",
        _sequence_rule,
        Kernel("arange", _arange_host, cuda=_ARANGE, work=element_work.per_element(280)),
        _NUMBERS,
        _sequence_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
linspace = define(
    Op(
        "linspace",
        _linspace_rule,
        Kernel("linspace", _linspace_host, cuda=_linspace_form("{}")),
        _NUMBERS,
        _linspace_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
logspace = define(
    Op(
        "logspace",
        _linspace_rule,
        Kernel("logspace", _logspace_host, cuda=_linspace_form("power_(to<T>(k1), {})")),
        _NUMBERS,
        _logspace_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
eye = define(
    Op(
        "eye",
        _eye_rule,
        Kernel("eye", _eye_host, cuda=_EYE, work=element_work.two_kernels),
        DTYPES,
        _eye_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
