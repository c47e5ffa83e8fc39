"""Scans, whose results along a dimension each combine all elements so far, and the counts of bins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flambeau.core.dtype import (
    INTEGRAL,
    bfloat16,
    bool_,
    complex32,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from flambeau.core.errors import devices_differ
from flambeau.core.layout import wrap_dim
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Routine, Scan, Work
from flambeau.ops.autocast_rules import FLOAT32_ON_CUDA, UNCHANGED, AutocastRule
from flambeau.ops.derivative_helpers import by_place, conj, refuse_derivative
from flambeau.ops.index_common import as_counted
from flambeau.ops.op import (
    MISSING,
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    define,
)
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import ALL, FLOATING_OR_COMPLEX, INTEGERS, REALS, wide
from flambeau.ops.work import row_work

Array = np.ndarray[Any, Any]
Run = Callable[[Array, int], Any]
"""`run(x, axis)`: the scan of an array of at least one dimension; an array, or values and indices."""


def scanner(
    name: str,
    run: Run,
    dtypes: tuple[dtype, ...],
    stub: str,
    join: str,
    *,
    widens: bool = False,
    places: bool = False,
    derivative: Derivative = MISSING,
    autocast: AutocastRule = UNCHANGED,
    work: Callable[[Launch], Work] = row_work.scan,
    fast: HostRoutine | None = None,
) -> Op:
    """Define a scan. Its params are (dim, dtype or None). `join`: of states a and b in C++; floats of 16 bits are
    float32 there. `widens`: integers become int64. `places`: indices too, and a state has a value v and a place at.
    """

    def rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
        x = operands[0]
        assert isinstance(x, Meta)
        dim = wrap_dim(params[0], x.ndim)
        kind = params[1] or (int64 if widens and x.dtype.category <= INTEGRAL else x.dtype)
        if kind not in dtypes and not (widens and kind is bool_):
            raise NotImplementedError(f"\"{stub}\" not implemented for '{kind.torch_name}'")
        out = Meta.contiguous_of(x.shape, kind, x.device)
        return Signature((out, out.with_(dtype=int64)) if places else (out,), (x,), (dim, kind))

    def samples(make: Make, kind: dtype) -> Iterable[Sample]:
        yield (make(3, 4),), (0, None)
        yield (make(5),), (-1, None)

    form = _placed_scan(join) if places else _scan("decltype(widen(T{}))", "widen(x)", join, ("s",))
    return define(
        Op(
            name,
            rule,
            Kernel(name, partial(scan_body, run), _flops, cuda=form, work=work, fast=fast),
            dtypes,
            samples,
            derivative=derivative,
            autocast=autocast,
        )
    )


def scan_body(run: Run, launch: Launch) -> Body:
    """Return the reference implementation that runs a scan along the launch's dimension."""
    dim, kind = launch.params
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    convert = to_computing(kind, source.dtype)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        results = run(np.atleast_1d(convert(inputs[0])), dim)
        for out, value in zip(outputs, results if isinstance(results, tuple) else (results,), strict=True):
            np.copyto(out, value.reshape(out.shape), casting="unsafe")

    return body


def _placed_scan(join: str) -> Scan:
    return _scan("Placed<T>", "S{x, i}", join, ("s.v", "s.at"))


def _scan(state: str, lift: str, join: str, lower: tuple[str, ...]) -> Scan:
    return Scan(
        lambda launch: launch.params[0],
        lambda launch: (launch.params[1],),
        state,
        lift,
        join,
        lower,
        "log" in join,
    )


def _flops(launch: Launch) -> int:
    return launch.outputs[0].numel


def accumulating(x: Array) -> Any:
    """Return the dtype in which scans accumulate: PyTorch's CPU scans of float32 use doubles."""
    return {"f": np.float64, "c": np.complex128}.get(x.dtype.kind, x.dtype)


def _accumulate(ufunc: np.ufunc, x: Array, axis: int) -> Array:
    return ufunc.accumulate(x, axis=axis, dtype=accumulating(x))


def _log_sums(x: Array, axis: int) -> Array:
    """Return logarithms of running sums of exponentials. For complex numbers, each pass doubles the distance.

    Their angles are PyTorch's but for whole turns, which its own order of sums decides.
    """
    if x.dtype.kind != "c":
        return _accumulate(np.logaddexp, x, axis)
    found = np.moveaxis(x.astype(np.complex128), axis, -1)
    found[np.isnan(found)] = complex(np.nan, np.nan)
    found[found.real == -np.inf] = -np.inf  # zero, whatever its angle is
    step = 1
    while step < found.shape[-1]:
        found[..., step:] = log_add(found[..., :-step], found[..., step:])
        step *= 2
    return np.moveaxis(found, -1, axis)


def log_add(a: Array, b: Array) -> Array:
    """Return log(exp(a) + exp(b)) of complex numbers whose real and imaginary parts are either both NaN or both not."""
    with np.errstate(all="ignore"):
        less = a.real <= b.real
        least, most = np.where(less, a, b), np.where(less, b, a)
        ratio = np.exp(least - most)
        found = most + np.log1p(ratio)
        found = np.where(
            np.isinf(most.real) & (most.real == least.real), np.log(np.exp(least) + np.exp(most)), found
        )
        found = np.where(most.real == -np.inf, -np.inf, found)
        return np.where(np.isnan(a) | np.isnan(b), complex(np.nan, np.nan), found)


def _running(ufunc: np.ufunc) -> Run:
    def run(x: Array, axis: int) -> tuple[Array, Array]:
        """Return the running extreme and the index of its last occurrence; a NaN stays from its first index on."""
        best = ufunc.accumulate(x, axis=axis)
        reached = x == best
        if x.dtype.kind == "f":
            reached |= np.isnan(x)
        shape = [1] * x.ndim
        shape[axis] = -1
        place = np.arange(x.shape[axis]).reshape(shape)
        return best, np.maximum.accumulate(np.where(reached, place, 0), axis=axis)

    return run


def _later(compared: str) -> str:
    """Return C++ for the state with the better value; of equal values the later one. NaN is better than every
    number.
    """
    return f"is_nan(widen(b.v)) || (!is_nan(widen(a.v)) && widen(b.v) {compared} widen(a.v)) ? b : a"


def _back_sums(grad: Any, dim: int) -> Any:
    """Return the running sums from the end of a dimension to its beginning."""
    return grad.flip([dim]).cumsum(dim).flip([dim]) if grad.meta.ndim else grad


def _cumprod_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    dim = params[0]
    if not a.meta.ndim or a.meta.shape[dim] == 1:
        return grad
    if not bool((a == 0).any()):
        return conj(_back_sums(conj(grad) * out, dim) / a)
    grad, a = (x.to(wide(x.meta.dtype)) for x in (grad, a))
    size = a.meta.shape[dim]
    before = a * 0 + 1
    before.narrow(dim, 1, size - 1).copy_(a.narrow(dim, 0, size - 1).cumprod(dim))
    return _sums_of_products(grad, conj(a), dim) * conj(before)


def _sums_of_products(grad: Any, a: Any, dim: int) -> Any:
    """Return s with s[k] = grad[k] + a[k + 1] s[k + 1] along a dimension, in log2(length) steps.

    Each step doubles the distance between the combined elements. There are no divisions, so that an element may
    be 0.
    """
    size = a.meta.shape[dim]
    sums, factors = grad, a * 0
    factors.narrow(dim, 0, size - 1).copy_(a.narrow(dim, 1, size - 1))
    step = 1
    while step < size:
        first, later = (0, size - step), (step, size - step)
        joined, products = sums.clone(), factors.clone()
        joined.narrow(dim, *first).add_(factors.narrow(dim, *first) * sums.narrow(dim, *later))
        products.narrow(dim, *first).copy_(factors.narrow(dim, *first) * factors.narrow(dim, *later))
        sums, factors, step = joined, products, 2 * step
    return sums


def _logcumsumexp_back(grad: Any, a: Any, out: Any, params: Any) -> Any:
    """Return the gradient of logcumsumexp, computed in logarithms separately for each sign, to avoid overflow.

    The logarithm of a gradient of 0 has no derivative. Where `grad` is itself differentiated, as in forward mode,
    the result is computed without it, in more steps. No factor there is above 1 for real numbers.
    """
    dim = params[0]
    if not a.meta.ndim:
        return grad
    if grad.requires_grad:
        size = out.meta.shape[dim] - 1
        ratios = grad.detach() * 0  # the first one has no predecessor and is not used
        ratios.narrow(dim, 1, size).copy_(
            _exp_of_difference(out.narrow(dim, 0, size), out.narrow(dim, 1, size))
        )
        return conj(_sums_of_products(conj(grad), ratios, dim) * _exp_of_difference(a, out))
    if a.meta.dtype.is_complex:
        turned = (conj(grad).log() - out).flip([dim])
        return conj((turned.logcumsumexp(dim).flip([dim]) + a).exp())
    size = grad.abs().log()

    def part(sign: Any) -> Any:
        masked = (size - out).masked_fill(~sign, -np.inf)
        return (masked.flip([dim]).logcumsumexp(dim).flip([dim]) + a).exp()

    return part(grad > 0) - part(grad < 0)


def _exp_of_difference(a: Any, b: Any) -> Any:
    """Return exp(a - b), and 1 where both are the same infinity."""
    return (a - b).masked_fill(a == b, 0).exp()


cumsum = scanner(
    "cumsum",
    partial(_accumulate, np.add),
    ALL,
    "cumsum_out_cpu",
    "add(a, b)",
    widens=True,
    derivative=Derivative(lambda grad, params: _back_sums(grad, params[0]), linear="together"),
    autocast=FLOAT32_ON_CUDA,
    work=row_work.cumulative_sum,
    fast=HostRoutine("scan:cumsum"),
)
cumprod = scanner(
    "cumprod",
    partial(_accumulate, np.multiply),
    ALL,
    "cumprod_out_cpu",
    "mul(a, b)",
    widens=True,
    derivative=Derivative(_cumprod_back),
    autocast=FLOAT32_ON_CUDA,
    work=row_work.cumulative_sum,
    fast=HostRoutine("scan:cumprod"),
)
cummax = scanner(
    "cummax",
    _running(np.maximum),
    REALS,
    "cummax_cpu",
    _later(">="),
    places=True,
    derivative=Derivative(lambda grad, out1, metas, params: by_place(grad, out1, metas[0], params[0])),
)
cummin = scanner(
    "cummin",
    _running(np.minimum),
    REALS,
    "cummin_cpu",
    _later("<="),
    places=True,
    derivative=Derivative(lambda grad, out1, metas, params: by_place(grad, out1, metas[0], params[0])),
)
logcumsumexp = scanner(
    "logcumsumexp",
    _log_sums,
    tuple(d for d in FLOATING_OR_COMPLEX if d is not complex32),
    "logcumsumexp_out_cpu",
    "log_join(a, b)",
    derivative=Derivative(_logcumsumexp_back),
    work=row_work.cumulative_sum,
    fast=HostRoutine("scan:logcumsumexp"),
)


# -- counts ---------------------------------------------------------------------------------------------


def _bincount_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    metas = [x for x in operands if isinstance(x, Meta)]
    kind = int64
    if len(metas) == 2:
        kind = float32 if metas[1].dtype is float32 else float64
        if metas[1].device is not metas[0].device:
            raise RuntimeError(devices_differ(metas[0].device, metas[1].device))
    return Signature((Meta.contiguous_of((params[0],), kind, metas[0].device),), tuple(metas))


def _bincount_host(launch: Launch) -> Body:
    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, bins = inputs[0], len(outputs[0])
        weights = inputs[1].astype(np.float64) if len(inputs) == 2 else None
        # a race, as in `fit`: the host checked the input before
        if x.size and (x.min() < 0 or x.max() >= bins):
            as_counted(launch, False)
            inside = (x >= 0) & (x < bins)
            x, weights = x[inside], None if weights is None else weights[inside]
        outputs[0][...] = np.bincount(x, weights, bins)

    return body


bincount = define(
    Op(
        "bincount",
        _bincount_rule,
        Kernel("bincount", _bincount_host, _flops, cuda=Routine("index.histogram:bincount")),
        INTEGERS,
        lambda make, kind: [((make(6, low=0, high=4),), (5,))],
        derivative=refuse_derivative("bincount"),
    )
)


_COUNTED = {
    "cpu": (float16, bfloat16, float32, float64),
    "cuda": (float32, float64, uint8, int8, int16, int32, int64),
}
"""What PyTorch counts into bins on each kind of device."""


def _histc_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: a tensor and the ends, least first. Params: the number of bins."""
    x = operands[0]
    assert isinstance(x, Meta)
    where = "cuda" if x.device.type == "cuda" else "cpu"
    if x.dtype not in _COUNTED[where]:
        if where == "cuda" and x.dtype is float16:
            raise RuntimeError("HalfTensor is not supported")
        stub = "histogram_cpu" if where == "cpu" else "histc"
        raise NotImplementedError(f"\"{stub}\" not implemented for '{x.dtype.torch_name}'")
    end = int64 if x.dtype.category == INTEGRAL else float64
    return Signature((Meta.contiguous_of(params, x.dtype, x.device),), (x, end, end), params)


def _histc_host(launch: Launch) -> Body:
    (bins,) = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, least, most = inputs[0].reshape(-1), *inputs[1:]
        if x.dtype.kind == "i" or x.dtype.kind == "u":
            x = x.astype(np.int64)
            at = (x[(x >= least) & (x <= most)] - least) * bins // (most - least)
        else:
            least, most = x.dtype.type(least), x.dtype.type(most)
            x = x[(x >= least) & (x <= most)]
            at = (
                _places(x, least, most, bins) if least < most else np.full(x.size, bins // 2)
            )  # in float32, 1e30 - 1 equals 1e30
        outputs[0][...] = np.bincount(np.minimum(at, bins - 1), minlength=bins)

    return body


def _places(x: Array, least: Any, most: Any, bins: int) -> Array:
    """Return the bins of numbers between two ends. Each step rounds to their dtype, unless a half would overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = (x - least) * x.dtype.type(bins) / (most - least)
    if x.dtype.itemsize == 2 and not np.isfinite(found).all():
        wide = (x.astype(np.float32) - np.float32(least)) * bins / (np.float32(most) - np.float32(least))
        found = np.where(np.isfinite(found), found, wide)
    return found.astype(np.int64)


histc = define(
    Op(
        "histc",
        _histc_rule,
        Kernel("histc", _histc_host, _flops, cuda=Routine("index.histogram:histc"), work=row_work.histogram),
        (float32, float64),
        lambda make, kind: [((make(20), -2.0, 2.0), (4,))],
        derivative=NOT_DIFFERENTIABLE,
    )
)
