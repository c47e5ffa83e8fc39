"""Normalization: rows in registers where they fit, else moments by the reduction template and a pointwise pass.

Weights and biases are read with the elements, through strides that repeat them: one text for layers, groups and
channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen import pointwise, reduction
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout, no_host
from flambeau.driver.cuda.codegen.rows import HeldRows, Rows, computing
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Expression, Fold, Kernel, Launch

Builder = Callable[[Launch, CudaDevice], KernelProgram | KernelPlan]


@dataclass(frozen=True, slots=True, eq=False)
class _Norm:
    """The operands of a normalization as metas of one shape: out, x, maybe weight and bias; and the normalized dims.

    Attributes:
        rms: Divide by the root of the mean square, without subtracting the mean.
    """

    out: Meta
    x: Meta
    more: tuple[Meta, ...]
    given: tuple[bool, bool]
    dims: tuple[int, ...]
    eps: float
    rms: bool = False

    def affine(self, value: str, names: Sequence[str]) -> str:
        """Return C++ for `value` times the weight plus the bias."""
        at = iter(names)
        for given, sign in zip(self.given, "*+", strict=True):
            value = f"({value}) {sign} {next(at)}" if given else value
        return value


# -- what the operators normalize --------------------------------------------------------------------------------


def _expand(x: Meta, shape: Sequence[int], strides: Sequence[int]) -> Meta:
    return x.with_(tuple(shape), tuple(strides))


def _layer(launch: Launch, rms: bool = False) -> _Norm:
    """Return the operands of layer_norm or rms_norm. Params: (number of trailing dimensions, eps, (weight?, bias?))."""
    ndim, eps, given = launch.params
    (out,), (x, *more) = launch.outputs, _metas(launch)
    lead = x.ndim - ndim
    beside = [_expand(w, x.shape, (*(0,) * lead, *w.strides)) for w in more]
    return _Norm(out, x, tuple(beside), given, tuple(range(lead, x.ndim)), eps, rms)


def _group(launch: Launch) -> _Norm:
    """Return the operands of group_norm, with the channels as two dimensions. Params: (groups, eps, (weight?,
    bias?)).
    """
    groups, eps, given = launch.params
    (out,), (x, *more) = launch.outputs, _metas(launch)
    each = x.shape[1] // groups
    shape = (x.shape[0], groups, each, *x.shape[2:])

    def split(meta: Meta) -> Meta:
        n, c, *space = meta.strides
        return _expand(meta, shape, (n, c * each, c, *space))

    beside = [_expand(w, shape, (0, w.strides[0] * each, w.strides[0], *(0,) * (x.ndim - 2))) for w in more]
    return _Norm(split(out), split(x), tuple(beside), given, tuple(range(2, len(shape))), eps)


def _metas(launch: Launch) -> list[Meta]:
    return [x for x in launch.inputs if isinstance(x, Meta)]


def _by_channel(x: Meta, vectors: Sequence[Meta]) -> list[Meta]:
    """Return vectors with one element per channel, repeated to the shape of x."""
    return [
        _expand(w, x.shape, tuple([w.strides[0] if d == 1 else 0 for d in range(x.ndim)])) for w in vectors
    ]


# -- rows in registers --------------------------------------------------------------------------------------------


def _build_one_pass(norm: _Norm, rows: Rows) -> KernelProgram:
    beside = range(2, 2 + len(norm.more))
    loads = "".join([f"    auto w{at} = taken(p{at} + p[{at}], along.stride[{at}][0]);\n" for at in beside])
    value = norm.affine("held[k][v] * scale", [f"to<C>(w{at}[v])" for at in beside])
    body = f"""{_statements(norm.rms)}
#pragma unroll
  for (int k = 0; k < K; ++k) {{
    Index j, p[OPS];
    if (!reach(row, along, k, j, p)) break;
{loads}    Vector<O, V> r;
#pragma unroll
    for (int v = 0; v < V; ++v) r[v] = to<O>({value});
    put(out + p[0], r);
  }}"""
    return rows.program(body, numbers=(norm.eps,))


def _statements(rms: bool) -> str:
    """Return C++ that computes the scale of the row that threads hold in registers, and subtracts its mean."""
    return f"""  auto sum = [](C a, C b) {{ return a + b; }};
{_ROOT if rms else _CENTER}  const C scale = 1 / sqrt_(squares / (C)n + (C)k0);"""


def held_rows(launch: Launch) -> HeldRows:
    """Return the computation of layer_norm or rms_norm."""
    norm = _layer(launch, rms=launch.kernel.name == "rms_norm")
    names = [f"b{k}" for k in range(len(norm.more))]
    return HeldRows(
        _rows_of(norm), (0,), "", _statements(norm.rms), norm.affine("a * scale", names), (norm.eps,)
    )


def _rows_of(norm: _Norm) -> Rows:
    operands = (norm.out, norm.x, *norm.more)
    return Rows(norm.x.dtype, norm.x.shape, operands, [meta.strides for meta in operands], norm.dims)


_ROOT = """  const C squares = over_row(held, row, C(0), [](C a) { return a * a; }, sum);
"""
_CENTER = """  const C mean = over_row(held, row, C(0), [](C a) { return a; }, sum) / (C)n;
  const C squares = over_row(held, row, C(0), [&](C& a) { a = a - mean; return a * a; }, sum);
"""


# -- moments, then each element -----------------------------------------------------------------------------------


def _two_passes(norm: _Norm, device: CudaDevice) -> KernelPlan:
    number = computing(norm.x.dtype)
    shape = tuple([1 if d in norm.dims else n for d, n in enumerate(norm.x.shape)])
    state = Meta.contiguous_of(shape, number, norm.x.device)
    across = _expand(state, norm.x.shape, [0 if d in norm.dims else s for d, s in enumerate(state.strides)])
    work = WorkspaceLayout()
    means, scales = work.take(state.nbytes), work.take(state.nbytes)
    scale = "1 / sqrt_({} + T(k0))"
    fold = _mean_square(norm, scale) if norm.rms else _moments(norm, MEAN, scale.format(VARIANCE))
    outputs = (scales,) if norm.rms else (means, scales)
    folding = _pass(fold, (state,) * len(outputs), (norm.x,), device)
    centered = (across, across)[: len(outputs)]
    value = "a * b" if norm.rms else "(a - b) * c"
    apply = _build_apply(norm, value, centered)
    named = tuple([(2 + at, 0) for at in range(len(norm.more))])
    return KernelPlan(
        (
            Pass(folding, (*outputs, (1, 0))),
            Pass(apply, ((0, 0), (1, 0), *outputs, *named)),
        ),
        work.nbytes,
    )


MEAN, VARIANCE = "T(mean_of(s, first, n))", "T(moments(s, first, n).m2 / n)"


def spread_of(kind: dtype, dims: tuple[int, ...], eps: float, *lower: str) -> Fold:
    """Return the reduction of elements along `dims`, computed in `kind`, to MEAN and VARIANCE."""
    return Fold(
        lambda launch: dims, lambda launch: (kind,), "Deviations<T>", "{}", "deviation(x, first)", "a + b", lower,
        lambda launch: (float(eps),), first=True,
    )  # fmt: skip


def _moments(norm: _Norm, *lower: str) -> Fold:
    return spread_of(computing(norm.x.dtype), norm.dims, norm.eps, *lower)


def _mean_square(norm: _Norm, scale: str) -> Fold:
    kind = computing(norm.x.dtype)
    return Fold(
        lambda launch: norm.dims, lambda launch: (kind,), "T", "T{}", "x * x", "a + b", (scale.format("s / T(n)"),),
        lambda launch: (float(norm.eps),),
    )  # fmt: skip


def _pass(
    form: Fold, outputs: tuple[Meta, ...], inputs: tuple[Meta, ...], device: CudaDevice
) -> KernelProgram:
    launch = Launch(Kernel("moments", no_host, cuda=form), outputs, inputs)
    return reduction.program(launch, form, device.properties.multi_processor_count)


def _build_apply(norm: _Norm, value: str, moments: Sequence[Meta]) -> KernelProgram:
    """Return the kernel of `value`, C++ of the element a and the moments b and c, then weight and bias."""
    kind = computing(norm.x.dtype)
    first = 1 + len(moments)
    text = norm.affine(value, "abcde"[first : first + len(norm.more)])
    inputs = (norm.x, *moments, *norm.more)
    form = Expression(text, lambda launch: (((kind,),) * len(inputs), ()), lambda launch: (float(norm.eps),))
    return pointwise.program(Launch(Kernel("normalize", no_host, cuda=form), (norm.out,), inputs), form)


# -- the operators ------------------------------------------------------------------------------------------------


def _normalization_builder(described: Callable[[Launch], _Norm]) -> Builder:
    def build(launch: Launch, device: CudaDevice) -> KernelProgram | KernelPlan:
        norm = described(launch)
        rows = _rows_of(norm)
        return _build_one_pass(norm, rows) if rows.fits else _two_passes(norm, device)

    return build


_CENTERED = "(a - b) * (1 / sqrt_(c + T(k0)))"


def batch_norm_train(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of batch_norm_train. Outputs: the normalized; mean, scale and variance of each channel.
    params: (eps, (weight?, bias?)).
    """
    eps, given = launch.params
    out, *states = launch.outputs
    x, *more = _metas(launch)
    norm = _Norm(out, x, tuple(_by_channel(x, more)), given, tuple([d for d in range(x.ndim) if d != 1]), eps)
    fold = _moments(norm, MEAN, f"1 / sqrt_({VARIANCE} + T(k0))", VARIANCE)
    applied = _build_apply(norm, "(a - b) * c", _by_channel(x, states[:2]))
    named = tuple([(5 + at, 0) for at in range(len(more))])
    places = ((1, 0), (2, 0), (3, 0))
    folding = Pass(_pass(fold, tuple(states), (x,), device), (*places, (4, 0)))
    return KernelPlan((folding, Pass(applied, ((0, 0), (4, 0), *places[:2], *named))))


def batch_norm_infer(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of batch_norm_infer. Inputs: x, mean, variance, maybe weight and bias. Params: (eps, (has
    weight, has bias)).
    """
    eps, given = launch.params
    x, *vectors = _metas(launch)
    mean, variance, *more = _by_channel(x, vectors)
    norm = _Norm(launch.outputs[0], x, tuple(more), given, (), eps)
    return _build_apply(norm, _CENTERED, (mean, variance))


layer_norm = _normalization_builder(_layer)
rms_norm = _normalization_builder(lambda launch: _layer(launch, rms=True))
group_norm = _normalization_builder(_group)
