"""The reduction family: each result is computed from all elements along the reduced dimensions.

The author of an operator writes a `ReductionDefinition`, with arithmetic on a plain array. The family supplies dims,
the result's shape, dtypes, errors, and the conversions of the reference implementation.

# Note [How a reduction body computes]
The input is reshaped to two axes, the remaining dimensions and the reduced ones, and the arithmetic reduces the last.
Sums of float32 and float64 are NumPy's pairwise sums. They run along memory if the reduced dimensions do, in runs
across rows of memory if these are long, and otherwise over a copy, so that the error is logarithmic in the length for
every layout. float16, bfloat16 and complex32 are widened, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.dtype import COMPLEX, FLOATING, INTEGRAL, bool_, dtype, int64, uint8
from flambeau.core.frozen import Record
from flambeau.core.layout import wrap_dim
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Routine, Steps, Work
from flambeau.driver.protocol import Fold as Form
from flambeau.ops.autocast_rules import FLOAT32, FLOAT32_ON_CPU, FLOAT32_ON_CUDA, UNCHANGED, AutocastRule
from flambeau.ops.op import (
    MISSING,
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    as_function,
    define,
    note,
)
from flambeau.ops.pointwise.compute_dtype import computing_steps, to_computing
from flambeau.ops.pointwise.dtype_promotion import ALL, FLOATING_OR_COMPLEX, REALS
from flambeau.ops.reduce import reduce_rows
from flambeau.ops.reduce.reduce_rows import Array, Fold, group_dims, grouping
from flambeau.ops.reduce.reduction_gradients import (
    extreme_back,
    logsumexp_back,
    mean_back,
    nanmean_back,
    norm_back,
    place_back,
    prod_back,
    quantile_back,
    quantile_levels_back,
    std_back,
    summed_back,
    tied_back,
    var_back,
)
from flambeau.ops.work import row_work, workspaces

Dims = tuple[int, ...] | int | None
Empty = Callable[[str, Meta, tuple[int, ...], bool], None]


# -- shapes ---------------------------------------------------------------------------------------------


def reduced_dims(dims: Dims, ndim: int, name: str = "") -> tuple[int, ...]:
    """Return `dims` as sorted non-negative ints; None and () mean all dims. Raises as PyTorch does."""
    if dims is None or (isinstance(dims, tuple) and not dims):
        return tuple(range(ndim))
    wrapped = [wrap_dim(d, ndim) for d in (dims if isinstance(dims, tuple) else (dims,))]
    for at, dim in enumerate(wrapped):
        if dim in wrapped[:at]:
            raise RuntimeError(f"dim {dim} appears multiple times in the list of dims")
    return tuple(sorted(wrapped)) if ndim else ()


def reduced_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    if keepdim:
        return tuple([1 if d in dims else n for d, n in enumerate(shape)])
    return tuple([n for d, n in enumerate(shape) if d not in dims])


# -- refusals of empty dimensions -----------------------------------------------------------------------


def _nonempty_for(text: str, error: type[Exception] = RuntimeError) -> Empty:
    """Return a check that refuses to reduce no elements. Without a dim, it raises `error` with `text`."""

    def check(name: str, x: Meta, dims: tuple[int, ...], given: bool) -> None:
        if given:
            for dim in dims:
                if x.shape[dim] == 0:
                    raise IndexError(f"{name}: Expected reduction dim {dim} to have non-zero size.")
        elif x.numel == 0:
            raise error(f"{name}: {text}")

    return check


_SPECIFY = "Expected reduction dim to be specified for input.numel() == 0."
_needs_dim = _nonempty_for(f"{_SPECIFY} Specify the reduction dim with the 'dim' argument.")
_needs_dim_index = _nonempty_for(_SPECIFY, IndexError)
_no_identity = _nonempty_for(
    "cannot compute aminmax over an empty dimension as the operation has no identity."
)


def _anything(name: str, x: Meta, dims: tuple[int, ...], given: bool) -> None:
    """Accept a reduction of no elements, because its result is defined."""


# -- dtypes ---------------------------------------------------------------------------------------------

Result = Callable[[str, dtype, dtype | None], tuple[dtype, dtype]]
"""(name, input's dtype, dtype= or None) -> the dtype computed in and the result's. Raises refusals."""


def _dtypes_of_sum(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    out = asked or (int64 if kind.category <= INTEGRAL else kind)
    return out, out


def _dtypes_of_mean(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    out = asked or kind
    if out.category < FLOATING:
        which = "Optional" if asked else "Input"
        raise RuntimeError(
            f"{name}(): could not infer output dtype. {which} dtype must be either a floating point or "
            "complex "
            f"dtype. Got: {out.torch_name}"
        )
    return out, out


def _dtypes_unchanged(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    return kind, kind


def _dtypes_unchanged_real(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    if kind.category == COMPLEX:
        raise NotImplementedError(f"\"{name}\" not implemented for '{kind.torch_name}'")
    return kind, kind


def _dtypes_of_order(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    if kind is bool_:
        raise NotImplementedError(f"\"{name}\" not implemented for '{kind.torch_name}'")
    return _dtypes_unchanged_real(name, kind, asked)


def _dtypes_of_count(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    return kind, int64


def _dtypes_of_test(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    return bool_, uint8 if kind is uint8 else bool_


def _spread(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    if kind.category < FLOATING:
        raise RuntimeError("std and var only support floating point and complex dtypes")
    return kind, kind.to_real()


def _dtypes_of_norm(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    if kind.category < FLOATING:
        raise RuntimeError(
            f"linalg.vector_norm: Expected a floating point or complex tensor as input. Got {kind.torch_name}"
        )
    kind = asked or kind
    return kind, kind.to_real()


def _whole_or_default(name: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
    assert asked is not None  # the default dtype of the computation
    out = asked if kind.category <= INTEGRAL else kind
    return out, out


# -- the family -----------------------------------------------------------------------------------------


class Folded(NamedTuple):
    """The data of a reduction's kernel: the reduced dims, the dtype of computation, the params of the arithmetic."""

    dims: tuple[int, ...]
    kind: dtype
    extra: tuple[Any, ...]


class ReductionDefinition(Record):
    """The definition of a reduction, as its author writes it. Its params are (dims, keepdim, dtype or None, *extra).

    Attributes:
        name: PyTorch's public name.
        fold: The arithmetic, which reduces the last axis of an array.
        result: The rule for the dtypes of computation and of the result.
        also: Contents of further outputs: "index" (int64) or "input" (the input's dtype).
        empty: The check of empty dims.
        dtypes: Dtypes of the input that it accepts.
        label: The name in errors.
        extra: Sample extra params.
        default: True if the default dtype replaces a `dtype` of None.
        global_form: True if samples reduce all dims, too.
        check: `check(meta, dims, extra)` raises further errors.
        cuda: The reduction for real GPUs, or the routine if it needs whole rows (medians).
        derivative, autocast: See `Op`.
        work: See `Kernel.work`.
        workspace: See `Kernel.workspace`.
    """

    name: str
    fold: Fold
    result: Result
    also: tuple[str, ...] = ()
    empty: Empty = _anything
    dtypes: tuple[dtype, ...] = ALL
    label: str = ""
    extra: tuple[tuple[Any, ...], ...] = ((),)
    default: bool = False
    global_form: bool = True
    check: Callable[[Meta, tuple[int, ...], tuple[Any, ...]], None] | None = None
    cuda: Form | Routine | None = None
    derivative: Derivative = MISSING
    autocast: AutocastRule = UNCHANGED
    work: Callable[[Launch], Work] = row_work.reduction()
    workspace: Callable[[Launch], tuple[int, ...]] = workspaces.partial_sums

    def operator(self) -> Op:
        """Return the operator, after adding it to the table of operators."""
        kernel = Kernel(
            self.name,
            _host(self.fold),
            _flops,
            cuda=self.cuda,
            work=self.work,
            workspace=self.workspace,
            fast=_FAST.get(self.fold),
        )
        return define(
            Op(
                self.name, self._infer, kernel, self.dtypes, self._samples, derivative=self.derivative,
                flags=("default_dtype",) if self.default else (), autocast=self.autocast,
            )
        )  # fmt: skip

    def _infer(self, operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
        x = operands[0]
        assert isinstance(x, Meta)
        if self.default:
            *params_, fallback = params
            params = (params_[0], params_[1], params_[2] or fallback, *params_[3:])
        dims, keepdim, asked, *rest = params
        around = reduced_dims(dims, x.ndim)
        if x.ndim:
            self.empty(self.label or f"{self.name}()", x, around, dims is not None and dims != ())
        if self.check is not None:
            self.check(x, around, tuple(rest))
        kind, out = self.result(self.name, x.dtype, asked)
        shape = reduced_shape(x.shape, around, keepdim)
        outputs = [Meta.contiguous_of(shape, out, x.device)]
        outputs += [outputs[0].with_(dtype=int64 if which == "index" else x.dtype) for which in self.also]
        return Signature(tuple(outputs), (x,), (Folded(around, kind, tuple(rest)),))

    def _samples(self, make: Make, kind: dtype) -> Iterable[Sample]:
        for more in self.extra:
            yield (make(3, 4),), (1, False, None, *more)
            yield (make(2, 3, 4),), (0, True, None, *more)
            if self.global_form:
                yield (make(5, 3),), (None, False, None, *more)


reduction = as_function(ReductionDefinition)
"""Define a reduction and return it. The arguments are the fields of `ReductionDefinition`."""


def _flops(launch: Launch) -> int:
    source = launch.inputs[0]
    return source.numel if isinstance(source, Meta) else 0


_FAST: dict[Fold, HostRoutine] = {
    reduce_rows.total: HostRoutine("reduction:total", ulps=8),
    reduce_rows.mean: HostRoutine("reduction:mean", ulps=8),
    reduce_rows.product: HostRoutine("reduction:product", ulps=8),
    reduce_rows.greatest: HostRoutine("reduction:greatest"),
    reduce_rows.least: HostRoutine("reduction:least"),
}


def _host(fold: Fold) -> Callable[[Launch], Body]:
    def host(launch: Launch) -> Body:
        how: Folded = launch.params[0]
        source = launch.inputs[0]
        assert isinstance(source, Meta)
        convert, group = to_computing(how.kind, source.dtype), grouping(source.shape, how.dims)

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            results = fold(group(convert(inputs[0])), *how.extra)
            if results.__class__ is not tuple:
                results = (results,)
            for out, value in zip(outputs, results, strict=False):
                out[...] = value.reshape(out.shape)

        return body

    return host


# -- what real GPUs fold: see `Fold` in driver/protocol.py ------------------------------------------------------


def _form(
    state: str,
    start: str,
    lift: str,
    join: str,
    *lower: str,
    constants: Callable[[Launch], Sequence[float]] = lambda launch: (),
    first: bool = False,
    follow: str = "",
) -> Form:
    def steps(launch: Launch) -> Steps:
        source = launch.inputs[0]
        assert isinstance(source, Meta)
        return computing_steps(launch.params[0].kind, source.dtype)

    return Form(
        lambda launch: launch.params[0].dims, steps, state, start, lift, join, lower, constants, first,
        follow,
    )  # fmt: skip


def _extra(launch: Launch) -> tuple[float, ...]:
    return tuple([float(x) for x in launch.params[0].extra])


def _moments(*lower: str) -> Form:
    spread = "spread(moments(s, first, n).m2, n, k0)"
    lowered = [x.format(spread) for x in lower]
    return _form(
        "Deviations<T>", "{}", "deviation(x, first)", "a + b", *lowered, constants=_extra, first=True
    )


_SUM = _form("T", "T{}", "x", "add(a, b)", "s")
_GREATEST = _form("T", "lowest<T>()", "x", "greater(a, b)", "s")
_LEAST = _form("T", "highest<T>()", "x", "lesser(a, b)", "s")


def _place_form(start: str, order: str, *lower: str) -> Form:
    """Return the form of the first extreme element. If no element is beyond the start, the first one equals it."""
    return _form(
        "Placed<T>", f"{{{start}<T>(), NOWHERE}}", "{x, i}", f"first_{order}(a, b)",
        *[text.replace("place", "(s.at == NOWHERE ? 0 : s.at)") for text in lower], follow=f"later_{order}(a, b)",
    )  # fmt: skip


# -- the records -------------------------------------------------------------------


def _form_name(stem: str) -> Callable[[Any, tuple[Any, ...]], str]:
    """Return a function that names the node, which differs for a reduction of all elements and along dimensions."""
    return lambda metas, params: f"{stem}Backward{0 if params and params[0] is None else 1}"


sum_ = reduction(
    "sum",
    reduce_rows.total,
    _dtypes_of_sum,
    cuda=_SUM,
    derivative=Derivative(summed_back, name=_form_name("Sum"), linear="together"),
    autocast=FLOAT32_ON_CUDA,
)
nansum = reduction(
    "nansum",
    reduce_rows.nansum,
    _dtypes_of_sum,
    dtypes=REALS,
    cuda=_form("T", "T{}", "is_nan(x) ? T{} : x", "add(a, b)", "s"),
    derivative=Derivative(lambda grad, a, metas, params: summed_back(grad, metas, params) * ~a.isnan()),
)
mean = reduction(
    "mean",
    reduce_rows.mean,
    _dtypes_of_mean,
    dtypes=FLOATING_OR_COMPLEX,
    cuda=_form("T", "T{}", "x", "a + b", "over(s, n)"),
    derivative=Derivative(mean_back, name=_form_name("Mean"), linear="together"),
)
nanmean = reduction(
    "nanmean",
    reduce_rows.nanmean,
    _dtypes_of_mean,
    dtypes=FLOATING_OR_COMPLEX,
    cuda=_form("Counted<T>", "{}", "{is_nan(x) ? T{} : x, !is_nan(x)}", "a + b", "over(s.v, s.n)"),
    derivative=Derivative(nanmean_back),
)
prod = reduction(
    "prod",
    reduce_rows.product,
    _dtypes_of_sum,
    cuda=_form("T", "one<T>()", "x", "mul(a, b)", "s"),
    derivative=Derivative(prod_back, name=_form_name("Prod")),
    autocast=FLOAT32,
)
amax = reduction(
    "amax",
    reduce_rows.greatest,
    _dtypes_unchanged_real,
    empty=_needs_dim,
    dtypes=REALS,
    cuda=_GREATEST,
    derivative=Derivative(lambda grad, a, out, params: tied_back(grad, a, out, params)),
    work=row_work.reduction_of_extremes,
    workspace=workspaces.partial_elements,
)
amin = reduction(
    "amin",
    reduce_rows.least,
    _dtypes_unchanged_real,
    empty=_needs_dim,
    dtypes=REALS,
    cuda=_LEAST,
    derivative=Derivative(lambda grad, a, out, params: tied_back(grad, a, out, params)),
    work=row_work.reduction_of_extremes,
    workspace=workspaces.partial_elements,
)
aminmax = reduction(
    "aminmax", lambda x: (np.minimum.reduce(x, axis=1), np.maximum.reduce(x, axis=1)), _dtypes_unchanged_real,
    also=("input",), empty=_no_identity, dtypes=REALS,
    cuda=_form("Range<T>", "{highest<T>(), lowest<T>()}", "{x, x}",
               "{lesser(a.low, b.low), greater(a.high, b.high)}", "s.low", "s.high"),
    derivative=Derivative(
        lambda grads, a, outs, params: (
            tied_back(grads[0], a, outs[0], params) + tied_back(grads[1], a, outs[1], params)
        )
    ),
)  # fmt: skip
max_all = reduction(
    "max_all",
    reduce_rows.greatest,
    _dtypes_unchanged_real,
    label="max()",
    empty=_needs_dim,
    dtypes=REALS,
    cuda=_GREATEST,
    derivative=Derivative(
        lambda grad, a, out, params: extreme_back(grad, a, out, params), name="MaxBackward1"
    ),
)
note(max_all, "max")
min_all = reduction(
    "min_all",
    reduce_rows.least,
    _dtypes_unchanged_real,
    label="min()",
    empty=_needs_dim,
    dtypes=REALS,
    cuda=_LEAST,
    derivative=Derivative(
        lambda grad, a, out, params: extreme_back(grad, a, out, params), name="MinBackward1"
    ),
)
note(min_all, "min")


def _one_dim(name: str, refused: bool = False) -> Result:
    def result(_: str, kind: dtype, asked: dtype | None) -> tuple[dtype, dtype]:
        if kind.category == COMPLEX:
            raise RuntimeError(f"{name}(): does not support complex input")
        if refused and kind is bool_:
            raise RuntimeError(f"{name}(): does not support bool input")
        return kind, int64 if refused else kind

    return result


def _with_place(arg: Callable[..., Any]) -> Fold:
    def fold(x: Array) -> tuple[Array, Array]:
        x = reduce_rows.as_bytes_if_bool(x)
        at = arg(x, axis=1)
        if x.flags.c_contiguous:
            return x.reshape(-1)[at + np.arange(0, x.size, x.shape[1])], at
        return x[np.arange(len(x)), at], at

    return fold


max_dim = reduction(
    "max",
    _with_place(np.ndarray.argmax),
    _one_dim("max"),
    also=("index",),
    cuda=_place_form("lowest", "greatest", "s.v", "place"),
    empty=_needs_dim,
    dtypes=REALS,
    global_form=False,
    derivative=Derivative(lambda grad, out1, metas, params: place_back(grad, out1, metas[0], params)),
    work=row_work.reduction_of_pairs,
    workspace=workspaces.partial_pairs,
)
min_dim = reduction(
    "min",
    _with_place(np.ndarray.argmin),
    _one_dim("min"),
    also=("index",),
    cuda=_place_form("highest", "least", "s.v", "place"),
    empty=_needs_dim,
    dtypes=REALS,
    global_form=False,
    derivative=Derivative(lambda grad, out1, metas, params: place_back(grad, out1, metas[0], params)),
    work=row_work.reduction_of_pairs,
    workspace=workspaces.partial_pairs,
)
_NUMBERS = tuple(d for d in REALS if d is not bool_)
argmax = reduction(
    "argmax",
    lambda x: np.argmax(x, axis=1),
    _one_dim("argmax", True),
    cuda=_place_form("lowest", "greatest", "place"),
    empty=_needs_dim_index,
    dtypes=_NUMBERS,
    derivative=NOT_DIFFERENTIABLE,
    work=row_work.reduction_of_pairs,
    workspace=workspaces.partial_pairs,
)
argmin = reduction(
    "argmin",
    lambda x: np.argmin(x, axis=1),
    _one_dim("argmin", True),
    cuda=_place_form("highest", "least", "place"),
    empty=_needs_dim_index,
    dtypes=_NUMBERS,
    derivative=NOT_DIFFERENTIABLE,
    work=row_work.reduction_of_pairs,
    workspace=workspaces.partial_pairs,
)
all_ = reduction(
    "all",
    lambda x: np.logical_and.reduce(x, axis=1),
    _dtypes_of_test,
    cuda=_form("T", "true", "x", "a && b", "s"),
    derivative=NOT_DIFFERENTIABLE,
    workspace=workspaces.partial_elements,
)
any_ = reduction(
    "any",
    lambda x: np.logical_or.reduce(x, axis=1),
    _dtypes_of_test,
    cuda=_form("T", "false", "x", "a || b", "s"),
    derivative=NOT_DIFFERENTIABLE,
    workspace=workspaces.partial_elements,
)
count_nonzero = reduction(
    "count_nonzero",
    lambda x: np.count_nonzero(x, axis=1),
    _dtypes_of_count,
    cuda=_form("i64", "0", "nonzero(x)", "a + b", "s"),
    derivative=NOT_DIFFERENTIABLE,
    work=row_work.count_of_nonzero,
    workspace=workspaces.mask_and_counts,
)
var_mean = reduction(
    "var_mean",
    reduce_rows.var,
    _spread,
    also=("input",),
    dtypes=FLOATING_OR_COMPLEX,
    extra=((1,), (0,)),
    cuda=_moments("{}", "mean_of(s, first, n)"),
    derivative=Derivative(
        lambda grads, a, metas, params: var_back(grads[0], a, params) + mean_back(grads[1], metas, params)
    ),
    work=row_work.reduction_of_moments,
    workspace=workspaces.partial_pairs,
)
std_mean = reduction(
    "std_mean",
    reduce_rows.std,
    _spread,
    also=("input",),
    dtypes=FLOATING_OR_COMPLEX,
    extra=((1,), (0,)),
    cuda=_moments("sqrt({})", "mean_of(s, first, n)"),
    derivative=Derivative(
        lambda grads, a, out, metas, params: (
            std_back(grads[0], a, out, params) + mean_back(grads[1], metas, params)
        )
    ),
    work=row_work.reduction_of_moments,
    workspace=workspaces.partial_pairs,
)
var = reduction(
    "var",
    lambda x, correction: reduce_rows.var(x, correction)[0],
    _spread,
    cuda=_moments("{}"),
    dtypes=FLOATING_OR_COMPLEX,
    extra=((1,), (0,)),
    derivative=Derivative(var_back),
    work=row_work.reduction_of_moments,
    workspace=workspaces.partial_pairs,
)
std = reduction(
    "std",
    lambda x, correction: reduce_rows.std(x, correction)[0],
    _spread,
    cuda=_moments("sqrt({})"),
    dtypes=FLOATING_OR_COMPLEX,
    extra=((1,), (0,)),
    derivative=Derivative(std_back),
    work=row_work.reduction_of_moments,
    workspace=workspaces.partial_pairs,
)


def _check_norm(x: Meta, dims: tuple[int, ...], extra: tuple[Any, ...]) -> None:
    p = extra[0]
    if p < 0 or (math.isinf(p) and p > 0):
        for dim in dims:
            if x.shape[dim] == 0:
                raise RuntimeError(
                    f"linalg.vector_norm cannot compute the {p} norm on the dimension {dim} because this "
                    "dimension is empty and the operation does not have an identity"
                )


norm = reduction(
    "norm", reduce_rows.norm, _dtypes_of_norm, dtypes=FLOATING_OR_COMPLEX,
    extra=((2.0,), (1.0,), (math.inf,), (3.0,), (0.0,)),
    check=_check_norm,
    cuda=_form("double", "k0 == -INF ? (double)INF : 0.0", "norm_lift(absolute(x), k0)", "norm_join(a, b, k0)",
               "norm_lower(s, k0)", constants=_extra),
    derivative=Derivative(norm_back, name="LinalgVectorNormBackward0"), autocast=FLOAT32_ON_CUDA,
)  # fmt: skip
logsumexp = reduction(
    "logsumexp",
    reduce_rows.logsumexp,
    _whole_or_default,
    default=True,
    cuda=_form("LogSum<T>", "{-INF, T{}}", "log_lift(x)", "a + b", "log_lower(s)"),
    derivative=Derivative(logsumexp_back),
    autocast=FLOAT32_ON_CUDA,
    work=row_work.logarithm_of_sum,
    workspace=workspaces.exponentials,
)
median = reduction(
    "median",
    reduce_rows.median,
    _dtypes_of_order,
    also=("index",),
    empty=_needs_dim,
    dtypes=_NUMBERS,
    global_form=False,
    cuda=Routine("index.order_statistics:median"),
    work=row_work.rank,
    workspace=workspaces.nothing,
    derivative=Derivative(
        lambda grad, out1, metas, params: place_back(grad, out1, metas[0], params), name="MedianBackward1"
    ),
)
nanmedian = reduction(
    "nanmedian",
    reduce_rows.nanmedian,
    _dtypes_of_order,
    also=("index",),
    empty=_needs_dim,
    dtypes=_NUMBERS,
    global_form=False,
    cuda=Routine("index.order_statistics:nanmedian"),
    work=row_work.rank,
    workspace=workspaces.nothing,
    derivative=Derivative(
        lambda grad, out1, metas, params: place_back(grad, out1, metas[0], params), name="NanmedianBackward1"
    ),
)
median_all = reduction(
    "median_all",
    reduce_rows.whole_median,
    _dtypes_of_order,
    dtypes=_NUMBERS,
    cuda=Routine("index.order_statistics:median"),
    work=row_work.rank,
    workspace=workspaces.nothing,
    derivative=Derivative(
        lambda grad, a, out, params: extreme_back(grad, a, out, params), name="MedianBackward0"
    ),
)
note(median_all, "median")
nanmedian_all = reduction(
    "nanmedian_all",
    partial(reduce_rows.whole_median, skip_nan=True),
    _dtypes_of_order,
    dtypes=_NUMBERS,
    cuda=Routine("index.order_statistics:nanmedian"),
    work=row_work.rank,
    workspace=workspaces.nothing,
    derivative=Derivative(
        lambda grad, a, out, params: extreme_back(grad, a, out, params), name="NanmedianBackward0"
    ),
)
note(nanmedian_all, "nanmedian")
mode = reduction(
    "mode",
    reduce_rows.mode,
    _dtypes_unchanged_real,
    also=("index",),
    empty=_needs_dim,
    dtypes=REALS,
    global_form=False,
    cuda=Routine("index.order_statistics:mode"),
    derivative=Derivative(lambda grad, out1, metas, params: place_back(grad, out1, metas[0], params)),
)


def _check_rank(x: Meta, dims: tuple[int, ...], extra: tuple[Any, ...]) -> None:
    size = math.prod([x.shape[d] for d in dims])
    if not 1 <= extra[0] <= size:
        raise RuntimeError(
            f"kthvalue(): selected number k out of range for dimension {dims[0] if dims else 0}"
        )


kthvalue = reduction(
    "kthvalue", reduce_rows.kthvalue, _dtypes_of_order, also=("index",), empty=_needs_dim, dtypes=_NUMBERS,
    extra=((1,), (2,)), global_form=False,
    check=_check_rank, cuda=Routine("index.order_statistics:kthvalue"), work=row_work.kth_value,
    workspace=workspaces.nothing,
    derivative=Derivative(
        lambda grad, out1, metas, params: place_back(grad, out1, metas[0], params),
    ),
)  # fmt: skip


# -- quantiles: the levels are a second input -----------------------------------------------------------


def _quantile_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x, q = operands
    dims, keepdim, *how = params
    assert isinstance(x, Meta) and isinstance(q, Meta)
    if q.device is not x.device:
        raise RuntimeError("quantile() q tensor must be on the same device as the input tensor")
    around = reduced_dims(dims, x.ndim)
    shape = reduced_shape(x.shape, around, keepdim)
    out = Meta.contiguous_of(q.shape + shape, x.dtype, x.device)
    return Signature((out,), (x, q), (around, *how))


def _quantile_host(launch: Launch) -> Body:
    dims, interpolation, skip_nan = launch.params

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, q = inputs
        outputs[0][...] = reduce_rows.quantile(
            group_dims(x, dims), interpolation, skip_nan, q.reshape(-1)
        ).reshape(outputs[0].shape)

    return body


def _quantile_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for how in ("linear", "midpoint", "nearest"):
        yield (make(3, 5), make(2, low=0, high=1)), (1, False, how, False)
    yield (make(3, 4, 2), make(3, low=0, high=1)), (1, True, "linear", True)
    yield (make(3, 4), make(low=0, high=1)), (None, True, "linear", False)


quantile = define(
    Op(
        "quantile",
        _quantile_rule,
        Kernel(
            "quantile",
            _quantile_host,
            _flops,
            cuda=Routine("index.order_statistics:quantile"),
            work=row_work.rank,
        ),
        FLOATING_OR_COMPLEX[2:4],
        _quantile_samples,
        derivative=Derivative(quantile_back, quantile_levels_back),
        autocast=FLOAT32_ON_CPU,
    )
)


# -- trace: a sum over the diagonal, a view whose layout `_trace_rule` sets -----------------------------


def _trace_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x = operands[0]
    assert isinstance(x, Meta)
    if x.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {x.ndim}")
    diagonal = x.with_((min(x.shape),), (x.strides[0] + x.strides[1],))
    kind, out = _dtypes_of_sum("trace", x.dtype, None)
    return Signature((Meta.contiguous_of((), out, x.device),), (diagonal,), (Folded((0,), kind, ()),))


def _identity(grad: Any, shape: Any) -> Any:
    ones = grad.new_zeros(shape)
    ones.diagonal().fill_(1)
    return ones


trace = define(
    Op(
        "trace",
        _trace_rule,
        Kernel("trace", _host(reduce_rows.total), _flops, cuda=_SUM),
        ALL,
        lambda make, kind: [((make(3, 4),), ())],
        derivative=Derivative(lambda grad, metas: grad * _identity(grad, metas[0].shape), linear="together"),
        autocast=FLOAT32_ON_CPU,
    )
)
