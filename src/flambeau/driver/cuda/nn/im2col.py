"""unfold and fold in up to three dims: copy windows out as columns, and sum columns where windows overlap.

Columns (N, C * taps, windows) may have any strides: convolutions choose those that their product needs.
"""

from __future__ import annotations

from typing import Any

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_steps import device_only
from flambeau.driver.cuda.codegen.layout_parameters import i64
from flambeau.driver.cuda.codegen.sliding_windows import Lattice, element, program, view
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Kernel, Launch, Routine


def _lattice(size: Any, kernel: Any, how: Any) -> Lattice:
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, how.dilation, strict=True)]
    count = [
        (n + 2 * p - r) // s + 1 for n, p, r, s in zip(size, how.padding, reach, how.stride, strict=True)
    ]
    return Lattice(size, count, kernel, how.stride, how.padding, how.dilation)


def unfold(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel from x (N, C, spatial ...) to columns. Params: kernel size, the lattice."""
    kernel, how = launch.params
    out, x = launch.outputs[0], launch.inputs[0]
    assert isinstance(x, Meta)
    return build_unfold(out, x, _lattice(x.shape[2:], kernel, how))


def build_unfold(out: Meta, x: Meta, lattice: Lattice) -> KernelProgram:
    """Return the kernel in which each thread copies one window of one channel."""
    body = """
  const Place<I> o = place_of<I>(i, w.count);
  const I sample = o.plane / (I)from.channels, channel = o.plane - sample * (I)from.channels;
  const i32 taps = w.kernel[0] * w.kernel[1] * w.kernel[2];
  x += from.plane<I>(o.plane);
  out += sample * c0 + (i64)channel * taps * c1 + (i64)(i - o.plane * (I)places) * c2;
  const i32 z0 = o.at[0] * w.stride[0] - w.pad[0], y0 = o.at[1] * w.stride[1] - w.pad[1];
  const i32 x0 = o.at[2] * w.stride[2] - w.pad[2];
  for (i32 a = 0; a < w.kernel[0]; ++a)
    for (i32 b = 0; b < w.kernel[1]; ++b)
      for (i32 c = 0; c < w.kernel[2]; ++c) {
        const i32 z = z0 + a * w.dilation[0], y = y0 + b * w.dilation[1], v = x0 + c * w.dilation[2];
        const bool inside = (u32)z < (u32)w.size[0] && (u32)y < (u32)w.size[1] && (u32)v < (u32)w.size[2];
        *out = inside ? x[from.at(z, y, v)] : E{};
        out += c1;
      }"""
    places = 1
    for n in lattice.count:
        places *= n
    parameters = [
        ("Lattice w", lattice.pack()), ("View from", view(x)), ("i64 places", i64(places)),
        *[(f"i64 c{d}", i64(step)) for d, step in enumerate(out.strides)],
    ]  # fmt: skip
    count = x.shape[0] * x.shape[1] * places
    return program(body, {"E": element(out)}, "E* out, const E* x", parameters, count)


def fold(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel from columns to (N, C, spatial ...). Params: spatial size, kernel size, the lattice."""
    size, kernel, how = launch.params
    out, columns = launch.operands
    return build_fold(out, columns, _lattice(size, kernel, how))


def build_fold(out: Meta, columns: Meta, lattice: Lattice, bias: Meta | None = None) -> KernelProgram:
    """Return the kernel in which each thread adds the columns of one element, in the order of the taps."""
    added = "total = add(total, widen(bias[(i64)channel * b0]));" if bias is not None else ""
    body = f"""
  typedef decltype(widen(E{{}})) T;
  const Place<I> at = place_of<I>(i, w.size);
  const I sample = at.plane / (I)to_.channels, channel = at.plane - sample * (I)to_.channels;
  const i32 taps = w.kernel[0] * w.kernel[1] * w.kernel[2];
  columns += sample * c0 + (i64)channel * taps * c1;
  T total{{}};
  for (i32 a = 0; a < w.kernel[0]; ++a) {{
    const i32 z = at.at[0] + w.pad[0] - a * w.dilation[0], oz = z / w.stride[0];
    if (z < 0 || oz * w.stride[0] != z || oz >= w.count[0]) continue;
    for (i32 b = 0; b < w.kernel[1]; ++b) {{
      const i32 y = at.at[1] + w.pad[1] - b * w.dilation[1], oy = y / w.stride[1];
      if (y < 0 || oy * w.stride[1] != y || oy >= w.count[1]) continue;
      for (i32 c = 0; c < w.kernel[2]; ++c) {{
        const i32 v = at.at[2] + w.pad[2] - c * w.dilation[2], ox = v / w.stride[2];
        if (v < 0 || ox * w.stride[2] != v || ox >= w.count[2]) continue;
        const i64 tap = ((i64)a * w.kernel[1] + b) * w.kernel[2] + c;
        const i64 window = ((i64)oz * w.count[1] + oy) * w.count[2] + ox;
        total = add(total, widen(columns[tap * c1 + window * c2]));
      }}
    }}
  }}
  {added}
  out[to_.plane<I>(at.plane) + to_.at(at.at[0], at.at[1], at.at[2])] = to<E>(total);"""
    operands, parameters = (
        "E* out, const E* columns",
        [("Lattice w", lattice.pack()), ("View to_", view(out))],
    )
    parameters += [(f"i64 c{d}", i64(step)) for d, step in enumerate(columns.strides)]
    if bias is not None:
        operands += ", const E* bias"
        parameters.append(("i64 b0", i64(bias.strides[0])))
    return program(body, {"E": element(out)}, operands, parameters, out.numel)


# -- steps of convolutions: the lattice is the param --------------------------------------------------------------


def columns(launch: Launch, device: CudaDevice) -> KernelProgram:
    out, x = launch.operands
    return build_unfold(out, x, launch.params[0])


def overlaps(launch: Launch, device: CudaDevice) -> KernelProgram:
    out, columns, *bias = launch.operands
    return build_fold(out, columns, launch.params[0], bias[0] if bias else None)


COLUMNS = Kernel("columns", device_only, cuda=Routine("nn.im2col:columns"))
"""x (N, C, spatial ...) to columns."""
OVERLAPS = Kernel("overlaps", device_only, cuda=Routine("nn.im2col:overlaps"))
"""Columns, and a bias for each channel or none, to (N, C, spatial ...)."""
