"""The product of a sparse matrix in CSR format and a strided matrix."""

from __future__ import annotations

from flambeau.driver.cuda.codegen.layout_parameters import THREADS, blocks, file, i64
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.protocol import Launch


def csr_product(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel: a thread per element of the result sums the products of its row in order.

    Neighboring threads have neighboring columns of the strided matrix, so they read the same indices and adjacent
    elements. The sum has a fixed order: results repeat.
    """
    out = launch.outputs[0]
    starts, columns, values, dense = launch.operands[-4:]
    kind, places = c_name(out.dtype), c_name(columns.dtype)
    text = f"""{file("checked.cuh")}
extern "C" __global__ void __launch_bounds__({THREADS}) run({kind}* out, const {places}* starts,
    const {places}* columns, const {kind}* values, const {kind}* dense, i64 n, i64 wide, i64 count, i64 inner,
    i64 start_step, i64 column_step, i64 value_step, i64 row_step, i64 dense_step, Guard guard) {{
  const i64 i = blockIdx.x * (i64){THREADS} + threadIdx.x;
  if (i >= n) return;
  const i64 row = i / wide, j = i % wide;
  const i64 begin = starts[row * start_step], end = starts[(row + 1) * start_step];
  if (begin < 0 || end > count) {{ guard.fail(begin < 0 ? begin : end, count, 0); return; }}
  typedef decltype(widen(*values)) W;
  W sum = to<W>(0);
  for (i64 k = begin; k < end; ++k) {{
    const i64 at = columns[k * column_step];
    if ((u64)at >= (u64)inner) {{ guard.fail(at, inner, 1); return; }}
    sum = add(sum, mul(widen(values[k * value_step]), widen(dense[at * row_step + j * dense_step])));
  }}
  out[i] = to<{kind}>(sum);
}}
"""
    numbers = (
        out.numel, max(out.shape[1], 1), values.numel, dense.shape[0], starts.strides[0], columns.strides[0],
        values.strides[0], *dense.strides,
    )  # fmt: skip
    tail = (*[i64(x) for x in numbers], device.assertions.guard(launch.kernel.name))
    return KernelProgram(text, blocks(out.numel), THREADS, tail)
