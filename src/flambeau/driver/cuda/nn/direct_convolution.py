"""Small convolutions in one kernel: a thread for each element of the result sums its window.

A library call takes the host several times as long as a launch, and library kernels are tuned for large convolutions.
Operands may have any strides. Sums have a fixed order and are at least in float32.
"""

from __future__ import annotations

from math import prod

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import i64
from flambeau.driver.cuda.codegen.sliding_windows import Lattice, element, program, view
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.cuda.libraries.cudnn import DATA
from flambeau.driver.protocol import Launch

_DEEP = 512  # terms of a sum, up to which a thread is nearly as fast as a library's kernel
_WORK = 1 << 22  # products of the whole launch

_BODY = """
  typedef decltype(widen(E{})) T;
  const Place<I> o = place_of<I>(i, w.count);
  const I sample = o.plane / (I)to_.channels;
  const i32 channel = (i32)(o.plane - sample * (I)to_.channels), group = channel / (i32)each;
  x += sample * from.step[0] + group * (i64)of.channels * from.step[1];
  weight += channel * of.step[0];
  const i32 z0 = o.at[0] * w.stride[0] - w.pad[0], y0 = o.at[1] * w.stride[1] - w.pad[1];
  const i32 x0 = o.at[2] * w.stride[2] - w.pad[2];
  T total{};
  for (i32 m = 0; m < (i32)of.channels; ++m, x += from.step[1], weight += of.step[1])
    for (i32 a = 0; a < w.kernel[0]; ++a)
      for (i32 b = 0; b < w.kernel[1]; ++b)
        for (i32 c = 0; c < w.kernel[2]; ++c) {
          const i32 z = z0 + a * w.dilation[0], y = y0 + b * w.dilation[1], v = x0 + c * w.dilation[2];
          if ((u32)z < (u32)w.size[0] && (u32)y < (u32)w.size[1] && (u32)v < (u32)w.size[2])
            total += widen(x[from.at(z, y, v)]) * widen(weight[of.at(a, b, c)]);
        }
"""


def convolution(launch: Launch, device: CudaDevice) -> KernelProgram | None:
    """Return the kernel of a small convolution, or None if it is large or transposed. Inputs: x, weight and maybe a
    bias.
    """
    out, (x, weight, *bias) = launch.outputs[0], [m for m in launch.inputs if isinstance(m, Meta)]
    how, deep = launch.params[0], prod(weight.shape[1:])
    if how.transposed or out.dtype not in DATA or deep > _DEEP or out.numel * deep > _WORK:
        return None
    lattice = Lattice(x.shape[2:], out.shape[2:], weight.shape[2:], how.stride, how.padding, how.dilation)
    operands = "E* out, const E* x, const E* weight"
    parameters = [
        ("Lattice w", lattice.pack()), ("View to_", view(out)), ("View from", view(x)), ("View of", view(weight)),
        ("i64 each", i64(weight.shape[0] // how.groups)),
    ]  # fmt: skip
    body = _BODY
    if bias:
        operands += ", const E* bias"
        parameters.append(("i64 bias_step", i64(bias[0].strides[0])))
        body += "  total += widen(bias[channel * bias_step]);\n"
    body += "  out[to_.plane<I>(o.plane) + to_.at(o.at[0], o.at[1], o.at[2])] = to<E>(total);"
    return program(body, {"E": element(out)}, operands, parameters, out.numel)
