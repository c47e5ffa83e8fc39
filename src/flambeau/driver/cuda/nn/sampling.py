"""grid_sample and its gradients: a thread for each position of the grid computes the taps once for all channels.

The gradient of the input is summed by atomic additions, at least in float32 and in no fixed order; deterministic
algorithms refuse it, as in PyTorch. The gradient of the grid has a fixed order.
"""

from __future__ import annotations

from math import prod

from flambeau.core.dtype import float32, float64
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout, copying
from flambeau.driver.cuda.codegen.sliding_windows import Lattice, element, program, view
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Launch

_HEADERS = ("windows.cuh", "resampling.cuh", "sampling.cuh")


def _grid(grid: Meta) -> Meta:
    """Return the layout of a grid (N, positions ..., dims) as (N, dims, positions ...)."""
    shape, strides = grid.shape, grid.strides
    return grid.with_((shape[0], shape[-1], *shape[1:-1]), (strides[0], strides[-1], *strides[1:-1]))


def _lattice(x: Meta, grid: Meta) -> Lattice:
    return Lattice.adaptive(x.shape[2:], grid.shape[1:-1])


def _choices(launch: Launch, x: Meta) -> str:
    """Return C++ constants that select the taps: F is the computing type, D the dimensions, K the number of taps."""
    mode, padding, align = launch.params[:3]
    dims = x.ndim - 2
    taps = {"nearest": 1, "bilinear": 2**dims, "bicubic": 16}[mode]
    return f"""
  typedef decltype(widen(E{{}})) F;
  const int D = {dims}, K = {taps};
  const bool align = {"true" if align else "false"};
  const int padding = {padding.upper()};"""


_FIND = """
  const Place<I> o = place_of<I>(i, w.count);
  F place[3];
  find_place<F, D, align>(grid, g, o, w, place);
  Taps<F, K> taps;
  find_taps<F, D, padding, align>(place, w, from, taps);"""


def grid_sample(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of grid_sample. Params: mode, padding, align_corners."""
    out, x, grid = launch.operands
    body = f"""{_choices(launch, x)}{_FIND}
  x += o.plane * from.step[0];
  out += o.plane * to_.step[0] + to_.at(o.at[0], o.at[1], o.at[2]);
  for (i64 c = 0; c < from.channels; ++c, x += from.step[1], out += to_.step[1]) {{
    F total = 0;
#pragma unroll
    for (int k = 0; k < K; ++k)
      if (taps.at[k] >= 0) total += {
        "widen(x[taps.at[k]])" if launch.params[0] == "nearest" else "widen(x[taps.at[k]]) * taps.weight[k]"
    };
    *out = to<E>(total);
  }}"""
    parameters = [
        ("Lattice w", _lattice(x, grid).pack()), ("View to_", view(out)), ("View from", view(x)),
        ("View g", view(_grid(grid))),
    ]  # fmt: skip
    count = prod(grid.shape[:-1])
    return program(body, {"E": element(x)}, "E* out, const E* x, const E* grid", parameters, count, _HEADERS)


def grid_sample_backward(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the gradient kernel of grid_sample. Params: those of grid_sample, then the deterministic flag, which
    inference refused.
    """
    of_x, of_grid, grad, x, grid = launch.operands
    kind = float64 if x.dtype is float64 else float32
    sums = Meta.contiguous_of(of_x.shape, kind, of_x.device)
    work = WorkspaceLayout()
    total = work.take(sums.nbytes)
    turn = "F(1)" if launch.params[0] == "bicubic" else "padded_turn<F, padding, align>(place[d], w.size[d])"
    body = f"""{_choices(launch, x)}{_FIND}
  Taps<F, K> sums;
  find_taps<F, D, padding, align>(place, w, into, sums);
  F met[K];
#pragma unroll
  for (int k = 0; k < K; ++k) met[k] = 0;
  x += o.plane * from.step[0];
  total += o.plane * into.step[0];
  grad += o.plane * back.step[0] + back.at(o.at[0], o.at[1], o.at[2]);
  for (i64 c = 0; c < from.channels; ++c, x += from.step[1], total += into.step[1], grad += back.step[1]) {{
    const F g = widen(*grad);
#pragma unroll
    for (int k = 0; k < K; ++k) if (taps.at[k] >= 0) {{
      atomicAdd(total + sums.at[k], g * taps.weight[k]);
      met[k] += widen(x[taps.at[k]]) * g;
    }}
  }}
  of_grid += o.plane * to_.step[0] + to_.at(o.at[0], o.at[1], o.at[2]);
#pragma unroll
  for (int d = 3 - D; d < 3; ++d) {{
    F slope = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) if (taps.at[k] >= 0) slope += met[k] * taps.slope[k][d];
    const F scale = F(align ? w.size[d] - 1 : w.size[d]) / F(2);
    of_grid[(2 - d) * to_.step[1]] = to<E>(slope * ({turn} * scale));
  }}"""
    parameters = [
        ("Lattice w", _lattice(x, grid).pack()), ("View into", view(sums)), ("View to_", view(_grid(of_grid))),
        ("View back", view(grad)), ("View from", view(x)), ("View g", view(_grid(grid))),
    ]  # fmt: skip
    types = {"E": element(x)}
    computing = "double" if kind is float64 else "float"
    operands = f"{computing}* total, E* of_grid, const E* grad, const E* x, const E* grid"
    adding = program(body, types, operands, parameters, prod(grid.shape[:-1]), _HEADERS)
    storing = copying(of_x, sums, 0, 0).program
    passes = (Pass(adding, (total, (1, 0), (2, 0), (3, 0), (4, 0))), Pass(storing, ((0, 0), total)))
    return KernelPlan(passes, work.nbytes, work.nbytes)
