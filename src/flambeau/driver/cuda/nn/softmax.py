"""softmax, log_softmax and their gradients: rows in registers, one pass over memory; longer rows are folded first."""

from __future__ import annotations

from collections.abc import Callable

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen import pointwise, reduction
from flambeau.driver.cuda.codegen.layout_parameters import vector_like
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout, no_host
from flambeau.driver.cuda.codegen.rows import HeldRows, Rows, computing
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Expression, Fold, Kernel, Launch

_FOLDED = {"softmax": "exp_(a - b) / c", "log_softmax": "a - b - c"}
_SUM = "s.top == INF ? T(NAN) : s.sum"  # infinity minus infinity
_LOWER = {"softmax": ("s.top", _SUM), "log_softmax": ("s.top", f"log_({_SUM})")}


def _softmax(name: str) -> Callable[[Launch, CudaDevice], KernelProgram | KernelPlan]:
    """Return a builder of softmax kernels. Params: (dim, the dtype that the input is converted to)."""

    def build(launch: Launch, device: CudaDevice) -> KernelProgram | KernelPlan:
        dim, kind = launch.params
        (out,), (x,) = launch.outputs, launch.inputs
        assert isinstance(x, Meta)
        out, x = vector_like(out), vector_like(x)
        rows = Rows(kind, x.shape, (out, x), (out.strides, x.strides), (dim,))
        if rows.fits:
            return _build_one_pass(rows, name, small=computing(out.dtype) is not out.dtype)
        return _build_folds(launch, out, x, device, name)

    return build


def held_rows(launch: Launch) -> HeldRows:
    """Return the computation of a softmax with at least one dim."""
    (dim, kind), (out,), (x,) = launch.params, launch.outputs, launch.inputs
    assert isinstance(x, Meta)
    rows = Rows(kind, x.shape, (out, x), (out.strides, x.strides), (dim,))
    name, small = launch.kernel.name, computing(out.dtype) is not out.dtype
    return HeldRows(rows, (0,), FUNCTIONS, _statements(name), _element(name, small))


def _statements(name: str) -> str:
    """Return C++ that computes m, s, log_s and inverse of the row that threads hold in registers, and replaces the row
    by its terms.
    """
    grown = "exp_(a)" if name == "log_softmax" else "a = exp_(a)"
    return f"""  auto sum = [](C a, C b) {{ return a + b; }};
  const C m = over_row(held, row, (C)-INF, [](C a) {{ return a; }}, [](C a, C b) {{ return most(a, b); }});
  const C s = over_row(held, row, C(0), [&](C& a) {{ a = a - m; return {grown}; }}, sum);
  const C log_s = log_(s), inverse = 1 / s;"""


def _element(name: str, small: bool) -> str:
    """Return the C++ expression of an element of the result.

    It uses the variables of the code before it: `a` is the element of the input, less the row's maximum or its
    exponential, and `s`, `log_s` and `inverse` are the row's sum of exponentials, its logarithm and its inverse.

    Args:
        name: "softmax" or "log_softmax".
        small: The result has 16 bits, so one multiplication by the inverse replaces the divisions.
    """
    return "a - log_s" if name == "log_softmax" else "a * inverse" if small else "a / s"


def _build_one_pass(rows: Rows, name: str, small: bool) -> KernelProgram:
    """Return the kernel that reads each row once."""
    body = f"""{_statements(name)}
#pragma unroll
  for (int k = 0; k < K; ++k) {{
    Index j, p[OPS];
    if (!reach(row, along, k, j, p)) break;
    Vector<O, V> r;
#pragma unroll
    for (int v = 0; v < V; ++v) {{
      const C a = held[k][v];
      r[v] = to<O>({_element(name, small)});
    }}
    put(out + p[0], r);
  }}"""
    return rows.program(body, FUNCTIONS)


# The greater of two numbers. A NaN is ignored here, because it makes the sum NaN anyway.
FUNCTIONS = """__device__ __forceinline__ float most(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double most(double a, double b) { return fmax(a, b); }"""


def _build_folds(launch: Launch, out: Meta, x: Meta, device: CudaDevice, name: str) -> KernelPlan:
    dim, kind = launch.params
    number = computing(kind)
    steps = (kind, number) if number is not kind else (kind,)
    shape = tuple([1 if d == dim else n for d, n in enumerate(x.shape)])
    state = Meta.contiguous_of(shape, number, x.device)
    across = state.with_(x.shape, tuple([0 if d == dim else s for d, s in enumerate(state.strides)]))
    work = WorkspaceLayout()
    tops, sums = work.take(state.nbytes), work.take(state.nbytes)
    fold = Fold(
        lambda launch: (dim,), lambda launch: steps, "LogSum<T>", "{-INF, T{}}", "log_lift(x)", "a + b", _LOWER[name]
    )  # fmt: skip
    folding = Launch(Kernel(name, no_host, cuda=fold), (state, state), (x,))
    apply = Expression(_FOLDED[name], lambda launch: ((steps, (), ()), (kind,)))
    applying = Launch(Kernel(name, no_host, cuda=apply), (out,), (x, across, across))
    return KernelPlan(
        (
            Pass(
                reduction.program(folding, fold, device.properties.multi_processor_count),
                (tops, sums, (1, 0)),
            ),
            Pass(pointwise.program(applying, apply), ((0, 0), (1, 0), tops, sums)),
        ),
        work.nbytes,
    )


# -- the gradients ------------------------------------------------------------------------------------------------

_LIFTS = {"softmax": "x * y", "log_softmax": "x"}
_GIVEN = {"softmax": "b * (a - c)", "log_softmax": "a - exp_(b) * c"}
"""The gradient of a, the result's gradient, b, the result, and c, the sum of what is lifted of both."""


def _backward(name: str) -> Callable[[Launch, CudaDevice], KernelProgram | KernelPlan]:
    """Return a builder of gradient kernels. Operands are out, grad and the result; params: (dim,)."""

    def build(launch: Launch, device: CudaDevice) -> KernelProgram | KernelPlan:
        (dim,) = launch.params
        operands = [vector_like(meta) for meta in launch.operands]
        shape, strides = operands[0].shape, [meta.strides for meta in operands]
        rows = Rows(operands[0].dtype, shape, operands, strides, (dim,), arrays=2)
        return _held_back(rows, name) if rows.fits else _folded_back(operands, dim, device, name)

    return build


def held_rows_back(launch: Launch) -> HeldRows:
    """Return the computation of a gradient of softmax with at least one dim."""
    (dim,), operands = launch.params, launch.operands
    strides = [meta.strides for meta in operands]
    rows = Rows(operands[0].dtype, operands[0].shape, operands, strides, (dim,), arrays=2)
    name = launch.kernel.name.removesuffix("_backward")
    return HeldRows(rows, (0, 1), "", _sum_back(name), _GIVEN[name])


def _sum_back(name: str) -> str:
    """Return C++ that computes the sum c over the row."""
    return f"""  const C c = over_row(two, row, C(0), [](Two e) {{ const C x = e.x, y = e.y; return {_LIFTS[name]}; }},
                       [](C a, C b) {{ return a + b; }});"""


def _held_back(rows: Rows, name: str) -> KernelProgram:
    body = f"""  Two two[K][V];
  hold_beside<2>(two, held, p2, row, along);
{_sum_back(name)}
#pragma unroll
  for (int k = 0; k < K; ++k) {{
    Index j, p[OPS];
    if (!reach(row, along, k, j, p)) break;
    Vector<O, V> r;
#pragma unroll
    for (int v = 0; v < V; ++v) {{
      const C a = two[k][v].x, b = two[k][v].y;
      r[v] = to<O>({_GIVEN[name]});
    }}
    put(out + p[0], r);
  }}"""
    return rows.program(body)


def _folded_back(operands: list[Meta], dim: int, device: CudaDevice, name: str) -> KernelPlan:
    out, grad, result = operands
    number = computing(out.dtype)
    state = Meta.contiguous_of(
        tuple([1 if d == dim else n for d, n in enumerate(out.shape)]), number, out.device
    )
    across = state.with_(out.shape, tuple([0 if d == dim else s for d, s in enumerate(state.strides)]))
    work = WorkspaceLayout()
    sums = work.take(state.nbytes)
    fold = Fold(lambda launch: (dim,), lambda launch: (number,), "T", "T{}", _LIFTS[name], "a + b", ("s",))
    inputs = (grad, result) if name == "softmax" else (grad,)
    folding = Launch(Kernel(name, no_host, cuda=fold), (state,), inputs)
    apply = Expression(_GIVEN[name], lambda launch: (((number,),) * 3, ()))
    applying = Launch(Kernel(name, no_host, cuda=apply), (out,), (grad, result, across))
    folded = reduction.program(folding, fold, device.properties.multi_processor_count)
    return KernelPlan(
        (
            Pass(folded, (sums, (1, 0), (2, 0))[: 1 + len(inputs)]),
            Pass(pointwise.program(applying, apply), ((0, 0), (1, 0), (2, 0), sums)),
        ),
        work.nbytes,
    )


softmax = _softmax("softmax")
softmax_backward = _backward("softmax")
log_softmax = _softmax("log_softmax")
log_softmax_backward = _backward("log_softmax")
