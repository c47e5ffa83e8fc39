"""The kernel of one_hot: each thread writes two adjacent numbers of the output."""

from __future__ import annotations

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import Walked, blocks, file, i64
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Launch

_PER_BLOCK = 4 * 512


def one_hot(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of one_hot. Params: the length of a row."""
    x, (classes,) = launch.inputs[0], launch.params
    assert isinstance(x, Meta)
    walk = Walked(x.shape, [x.strides], ordered=True)
    number = "u32" if launch.outputs[0].numel < 1 << 31 else "u64"
    text = f"""{file("checked.cuh")}
extern "C" __global__ void __launch_bounds__(256) run(i64* out, const i64* x, {walk.parameter("o")}, i64 n,
    i64 classes, i64 dim, Guard guard) {{
  const auto at_row = [&]({number} row) -> i64 {{
    {walk.locate("row", "o")}
    return x[o[0]];
  }};
#pragma unroll
  for (int u = 0; u < 4; ++u) {{
    const i64 i = blockIdx.x * {_PER_BLOCK}ll + u * 512 + threadIdx.x * 2;
    if (i >= n) return;
    {number} row = ({number})i / ({number})classes, column = ({number})i - row * ({number})classes;
    i64 index = at_row(row);
    Vector<i64, 2> pair;
#pragma unroll
    for (int k = 0; k < 2; ++k) {{
      if (k && ++column == classes) {{
        column = 0;
        if (i + 1 < n) index = at_row(++row);
      }}
      if (column == 0 && (u64)index >= (u64)classes) guard.fail(index, classes, dim);
      pair.v[k] = index == (i64)column;
    }}
    if (i + 1 < n) vectors<2>(out)[i / 2] = pair;
    else out[i] = pair.v[0];
  }}
}}
"""
    count = launch.outputs[0].numel
    guard = device.assertions.guard(launch.kernel.name)
    tail = (walk.value, i64(count), i64(classes), i64(x.ndim), guard)
    return KernelProgram(text, blocks(count, _PER_BLOCK), 256, tail)
