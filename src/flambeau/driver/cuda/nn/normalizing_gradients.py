"""The gradients of normalization: by x with rows in registers where they fit, else by folds and a pointwise pass.

By weight and bias they are one fold over all that share a weight, of the moments that the first pass left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flambeau.core.layout import view_strides
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen import pointwise, reduction
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout, no_host
from flambeau.driver.cuda.codegen.rows import Rows, computing
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.nn.normalizing import MEAN, VARIANCE, spread_of
from flambeau.driver.protocol import Expression, Fold, Kernel, Launch

Place = tuple[int, int]
"""The position of an address among the operands, or in the workspace, and bytes to add."""


@dataclass(frozen=True, slots=True, eq=False)
class _Operand:
    """An operand's layout in the shape of x or of a reduction's result, with its index among the operands."""

    meta: Meta
    place: Place


class _GradientOperands:
    """The operands of a launch: gradients of x, weight and bias, then grad, x and weight; each may be absent.

    Attributes:
        seen: The shape as which x is viewed, with the dims that are normalized and those of the weight.
        eps: The number that is added to the variance.
        given: Two bools: True if there is a weight, and a bias.
        centered: True if the mean is subtracted.
    """

    def __init__(self, launch: Launch, device: CudaDevice, centered: bool) -> None:
        self.seen, self.eps, self.given = launch.params
        self.device, self.centered = device, centered
        metas, count = launch.operands, len(launch.outputs)
        self.out, self.grad, self.x = (self._whole(metas[at], at) for at in (0, count, count + 1))
        self.weight = self._beside(metas[-1], len(metas) - 1) if self.given[0] else None
        self.made = [self.vector(meta, at) for at, meta in enumerate(metas[1:count], 1)]
        self.number = computing(self.x.meta.dtype)
        self.work = WorkspaceLayout()
        kept = tuple([1 if d in self.seen.dims else n for d, n in enumerate(self.seen.shape)])
        self.state = Meta.contiguous_of(kept, self.number, self.x.meta.device)

    def _whole(self, meta: Meta, at: int) -> _Operand:
        strides = view_strides(meta.shape, meta.strides, self.seen.shape)
        assert strides is not None, "channels are split, which needs no copy"
        return _Operand(meta.with_(self.seen.shape, strides), (at, 0))

    def vector(self, meta: Meta, at: int) -> _Operand:
        """Return a weight's gradient, with the dims of the weight."""
        shape = tuple([self.seen.shape[d] for d in self.seen.weighted])
        strides = view_strides(meta.shape, meta.strides, shape)
        assert strides is not None, "channels are split, which needs no copy"
        return _Operand(meta.with_(shape, strides), (at, 0))

    def _beside(self, meta: Meta, at: int) -> _Operand:
        """Return the weight's layout, repeated to the shape of x."""
        steps = dict(zip(self.seen.weighted, self.vector(meta, at).meta.strides, strict=True))
        strides = tuple([steps.get(d, 0) for d in range(len(self.seen.shape))])
        return _Operand(meta.with_(self.seen.shape, strides), (at, 0))

    @property
    def weights(self) -> list[_Operand]:
        return [] if self.weight is None else [self.weight]

    @property
    def others(self) -> tuple[int, ...]:
        """Return the dims over which a weight is shared."""
        return tuple([d for d in range(len(self.seen.shape)) if d not in self.seen.weighted])

    def states(self, count: int) -> list[_Operand]:
        """Return `count` temporary arrays with one number for each row."""
        return [_Operand(self.state, self.work.take(self.state.nbytes)) for _ in range(count)]

    def across(self, states: Sequence[_Operand]) -> list[_Operand]:
        """Return the layouts of arrays with one number for each row, repeated to the shape of x."""
        return [
            _Operand(each.meta.with_(self.seen.shape, _standing(each.meta)), each.place) for each in states
        ]

    def fold_pass(self, fold: Fold, outputs: Sequence[_Operand], inputs: Sequence[_Operand]) -> Pass:
        form = Launch(Kernel("fold", no_host, cuda=fold), _metas(outputs), _metas(inputs))
        program = reduction.program(form, fold, self.device.properties.multi_processor_count)
        return Pass(program, tuple([x.place for x in (*outputs, *inputs)]))


def _standing(state: Meta) -> tuple[int, ...]:
    """Return the strides, with 0 for dimensions of size 1."""
    return tuple([0 if n == 1 else s for n, s in zip(state.shape, state.strides, strict=True)])


def _metas(operands: Sequence[_Operand]) -> tuple[Meta, ...]:
    return tuple([x.meta for x in operands])


# -- by x, rows in registers; the moments go to memory where a fold needs them -------------------------------------


def _build_one_pass(x: _GradientOperands, rows: Rows, moments: Sequence[_Operand]) -> Pass:
    operands = (x.out, x.x, x.grad, *x.weights, *moments)
    first = len(operands) - len(moments)
    names = ("mean", "scale") if x.centered else ("scale",)
    kept = (
        [f"p{first + at}[row.o[{first + at}]] = {name};" for at, name in enumerate(names)] if moments else []
    )
    scaled = [_WEIGHTED] * len(x.weights) + [_MEAN] * x.centered
    body = f"""  auto sum = [](C a, C b) {{ return a + b; }};
{_CENTER if x.centered else _ROOT}  const C scale = 1 / sqrt_(squares / (C)n + (C)k0);
  if (row.at == 0 && row.n) {{ {" ".join(kept)} }}
  Two two[K][V];
  hold_beside<2>(two, held, p2, row, along);
{"".join(scaled)}  const C slope = scale / (C)n * over_row(two, row, C(0), [](Two e) {{ return e.x * e.y; }}, sum);
#pragma unroll
  for (int k = 0; k < K; ++k) {{
    Index j, p[OPS];
    if (!reach(row, along, k, j, p)) break;
    Vector<O, V> r;
#pragma unroll
    for (int v = 0; v < V; ++v)
      r[v] = to<O>((two[k][v].y - {"level - " if x.centered else ""}two[k][v].x * scale * slope) * scale);
    put(out + p[0], r);
  }}"""
    return Pass(rows.program(body, numbers=(x.eps,)), tuple([each.place for each in operands]))


_ROOT = """  const C squares = over_row(held, row, C(0), [](C a) { return a * a; }, sum);
"""
_CENTER = """  const C mean = over_row(held, row, C(0), [](C a) { return a; }, sum) / (C)n;
  const C squares = over_row(held, row, C(0), [&](C& a) { a = a - mean; return a * a; }, sum);
"""
_WEIGHTED = """#pragma unroll
  for (int k = 0; k < K; ++k) {
    Index j, p[OPS];
    if (!reach(row, along, k, j, p)) break;
    auto w = taken(p3 + p[3], along.stride[3][0]);
#pragma unroll
    for (int v = 0; v < V; ++v) two[k][v].y = two[k][v].y * to<C>(w[v]);
  }
"""
_MEAN = """  const C level = over_row(two, row, C(0), [](Two e) { return e.y; }, sum) / (C)n;
"""


# -- by x, in three passes ----------------------------------------------------------------------------------------


def _moments(x: _GradientOperands, moments: Sequence[_Operand]) -> Pass:
    scale = "1 / sqrt_({} + T(k0))"
    if x.centered:
        fold = spread_of(x.number, x.seen.dims, x.eps, MEAN, scale.format(VARIANCE))
    else:
        fold = Fold(
            lambda launch: x.seen.dims, lambda launch: (x.number,), "T", "T{}", "x * x", "a + b",
            (scale.format("s / T(n)"),), lambda launch: (float(x.eps),),
        )  # fmt: skip
    return x.fold_pass(fold, moments, (x.x,))


def _sums(dims: tuple[int, ...], x: _GradientOperands, lifted: Sequence[str], lower: Sequence[str]) -> Fold:
    """Return a reduction that computes one or two sums. `lower` selects the sum for each output."""
    single = len(lifted) == 1
    return Fold(
        lambda launch: dims, lambda launch: (x.number,), "T" if single else "Vector<T, 2>", "T{}" if single else "{}",
        lifted[0] if single else f"{{{{{lifted[0]}, {lifted[1]}}}}}",
        "a + b" if single else "{{a.v[0] + b.v[0], a.v[1] + b.v[1]}}", tuple(lower),
    )  # fmt: skip


_FACTORS = {True: "{} * (y - z) * w", False: "{} * y * z"}
"""C++ of a factor times the normalized x: from mean and scale if x is centered, else from the scale alone."""


def _by_folds(x: _GradientOperands, moments: Sequence[_Operand], together: bool) -> list[Pass]:
    """Return the launches of a normalization's gradients, given its moments."""
    beside = x.across(moments)
    slopes = x.states(2 if x.centered else 1)
    weight = [] if together else x.weights
    grad = f"x * {'v' if x.centered else 'w'}" if weight else "x"
    lifted = [_FACTORS[x.centered].format(grad), *([grad] if x.centered else [])]
    lower = ["s.v[0]", "s.v[1]"] if x.centered else ["s"]
    made = [("s.v[0]", "s.v[1]")[at] for at in (0, 1) if x.given[at]] if together else []
    fold = _sums(x.seen.dims, x, lifted, [*lower, *made])
    outputs = [*slopes, *(_with_dims(x, each) for each in x.made if together)]
    summing = x.fold_pass(fold, outputs, (x.grad, x.x, *beside, *weight))
    return [summing, _build_apply(x, beside, x.across(slopes), together)]


def _with_dims(x: _GradientOperands, made: _Operand) -> _Operand:
    """Return a gradient of weights in the shape of a reduction over dims of x."""
    steps = dict(zip(x.seen.weighted, made.meta.strides, strict=True))
    strides = tuple([steps.get(d, 0) for d in range(len(x.seen.shape))])
    return _Operand(made.meta.with_(x.state.shape, strides), made.place)


def _build_apply(
    x: _GradientOperands, moments: list[_Operand], slopes: list[_Operand], together: bool
) -> Pass:
    inputs = (x.grad, x.x, *moments, *slopes, *x.weights)
    names = iter("cdefg")
    mean = f" - {next(names)}" if x.centered else ""
    scale, slope = next(names), next(names)
    level = f" - {next(names)} / T(k0)" if x.centered else ""
    weight = f"{next(names)} * " if x.weights else ""
    inner = "{}a" + level + f" - (b{mean}) * {scale} * {slope} / T(k0)"
    text = f"{weight}{scale} * ({inner.format('')})" if together else f"{scale} * ({inner.format(weight)})"
    kinds: Any = (((x.number,),) * len(inputs), ())
    form = Expression(text, lambda launch: kinds, lambda launch: (max(x.seen.length, 1) / 1,))
    launch = Launch(Kernel("normalize", no_host, cuda=form), (x.out.meta,), _metas(inputs))
    return Pass(pointwise.program(launch, form), tuple([each.place for each in (x.out, *inputs)]))


# -- by weight and bias -------------------------------------------------------------------------------------------


def _by_weights(x: _GradientOperands, moments: Sequence[_Operand]) -> list[Pass]:
    if not x.made:
        return []
    if not x.given[0]:
        return [x.fold_pass(_sums(x.others, x, ("x",), ("s",)), x.made, (x.grad,))]
    lifted = [_FACTORS[x.centered].format("x"), *(["x"] if x.given[1] else [])]
    lower = ("s.v[0]", "s.v[1]") if x.given[1] else ("s",)
    return [x.fold_pass(_sums(x.others, x, lifted, lower), x.made, (x.grad, x.x, *x.across(moments)))]


# -- the records --------------------------------------------------------------------------------------------------


def _rowwise(centered: bool) -> Callable[[Launch, CudaDevice], KernelPlan]:
    def build(launch: Launch, device: CudaDevice) -> KernelPlan:
        x = _GradientOperands(launch, device, centered)
        moments = x.states(2 if centered else 1)
        kept = x.across(moments) if x.given[0] else []
        operands = _metas([x.out, x.x, x.grad, *x.weights, *kept])
        strides = [meta.strides for meta in operands]
        rows = Rows(
            x.x.meta.dtype, x.seen.shape, operands, strides, x.seen.dims, arrays=2, written=len(kept)
        )  # fmt: skip
        by_folds = [] if rows.fits else [_moments(x, moments), *_by_folds(x, moments, together=False)]
        passes = [_build_one_pass(x, rows, kept)] if rows.fits else by_folds
        return KernelPlan((*passes, *_by_weights(x, moments)), x.work.nbytes)

    return build


def batch_norm_backward(launch: Launch, device: CudaDevice) -> KernelPlan:
    x = _GradientOperands(launch, device, True)
    moments = x.states(2)
    return KernelPlan((_moments(x, moments), *_by_folds(x, moments, together=True)), x.work.nbytes)


def batch_norm_backward_by_moments(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of batch_norm_backward_by_moments. Inputs: grad, x, mean, scale and maybe the weight."""
    x, first = _GradientOperands(launch, device, True), len(launch.outputs) + 2
    moments = [_with_dims(x, x.vector(launch.operands[at], at)) for at in (first, first + 1)]
    return KernelPlan(tuple(_by_folds(x, moments, together=True)), x.work.nbytes)


layer_norm_backward = _rowwise(True)
rms_norm_backward = _rowwise(False)
group_norm_backward = _rowwise(True)
