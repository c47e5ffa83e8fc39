"""Margin losses over classes: multi_margin_loss, its gradient, and multilabel_margin_loss."""

from __future__ import annotations

from flambeau.driver.cuda.codegen.layout_parameters import file, i64
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.codegen.rows import computing
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name, packed_constant
from flambeau.driver.cuda.nn.losses import OVER_BLOCK, WEIGHTS, metas_of
from flambeau.driver.protocol import Launch


def multi_margin_loss(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of multi_margin_loss. Operands out (N), x (N, C), target (N), weight (C) or none. params:
    (p, margin). A block to each row.
    """
    p, margin = launch.params
    (out,), (x, target, *weight) = launch.outputs, metas_of(launch)
    power = "over * over" if p == 2 else "over"
    scaled = "(over_) * to<C>(weights[t * weight_step])" if weight else "over_"
    text = f"""{file("checked.cuh")}{OVER_BLOCK}
typedef {c_name(x.dtype)} X; typedef {c_name(computing(x.dtype))} C;
extern "C" __global__ void __launch_bounds__(256) run(X* out, const X* x, const i64* target,
    {WEIGHTS if weight else ""}i64 classes, i64 row_step, i64 step, i64 target_step,
    i64 weight_step, i64 out_step, double margin, Guard guard) {{
  const i64 row = blockIdx.x, t = target[row * target_step];
  if ((u64)t >= (u64)classes) {{
    if (threadIdx.x == 0) guard.fail(t, classes, 1);
    return;
  }}
  const X* const mine = x + row * row_step;
  const C gap = (C)margin - to<C>(mine[t * step]);
  C sum = 0;
  for (i64 j = threadIdx.x; j < classes; j += 256) {{
    if (j == t) continue;
    const C apart = gap + to<C>(mine[j * step]), over = apart > C(0) ? apart : C(0), over_ = {power};
    sum += {scaled};
  }}
  sum = over_block(sum, [](C a, C b) {{ return a + b; }});
  if (threadIdx.x == 0) out[row * out_step] = to<X>(sum / (C)classes);
}}
"""
    numbers = (
        x.shape[1], *x.strides, target.strides[0], weight[0].strides[0] if weight else 0, out.strides[0],
    )  # fmt: skip
    guard = device.assertions.guard(launch.kernel.name, "target out of range")
    tail = (*[i64(number) for number in numbers], packed_constant(float(margin)), guard)
    return KernelProgram(text, (x.shape[0], 1, 1), 256, tail)


def multilabel_margin_loss(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of multilabel_margin_loss. Operands out (N), x (N, C), target (N, C): labels up to the first
    negative one. A block to each row.
    """
    (out,), (x, target) = launch.outputs, metas_of(launch)
    text = f"""{file("checked.cuh")}{OVER_BLOCK}
typedef {c_name(x.dtype)} X; typedef {c_name(computing(x.dtype))} C;
extern "C" __global__ void __launch_bounds__(256) run(X* out, const X* x, const i64* target, u8* labelled,
    i64 classes, i64 row_step, i64 step, i64 target_row, i64 target_step, i64 out_step, Guard guard) {{
  const i64 row = blockIdx.x;
  const X* const mine = x + row * row_step;
  const i64* const labels = target + row * target_row;
  u8* const flags = labelled + row * classes;
  i64 first = classes;  // the place of the first negative label
  for (i64 j = threadIdx.x; j < classes; j += 256) {{
    const i64 t = labels[j * target_step];
    if (t < -1 || t >= classes) guard.fail(t, classes, 1);
    if (t < 0 && j < first) first = j;
  }}
  first = over_block(first, [](i64 a, i64 b) {{ return a < b ? a : b; }});
  __shared__ i64 count;
  if (threadIdx.x == 0) count = first;
  __syncthreads();
  for (i64 j = threadIdx.x; j < count; j += 256) {{
    const i64 t = labels[j * target_step];
    if (t < classes) flags[t] = 1;
  }}
  __syncthreads();
  C sum = 0;
  for (i64 j = 0; j < count; ++j) {{
    const i64 t = labels[j * target_step];
    if (t >= classes) continue;
    const C gap = C(1) - to<C>(mine[t * step]);
    for (i64 k = threadIdx.x; k < classes; k += 256) {{
      const C over = gap + to<C>(mine[k * step]);
      if (!flags[k] && over > C(0)) sum += over;
    }}
  }}
  sum = over_block(sum, [](C a, C b) {{ return a + b; }});
  if (threadIdx.x == 0) out[row * out_step] = to<X>(sum / (C)classes);
}}
"""
    rows, classes = x.shape
    numbers = (classes, *x.strides, *target.strides, out.strides[0])
    guard = device.assertions.guard(launch.kernel.name, "argument #2 'target' is out of range")
    work = WorkspaceLayout()
    flags = work.take(rows * classes)
    program = KernelProgram(text, (rows, 1, 1), 256, (*[i64(number) for number in numbers], guard))
    return KernelPlan((Pass(program, ((0, 0), (1, 0), (2, 0), flags)),), work.nbytes, work.nbytes)


def multi_margin_loss_backward(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of multi_margin_loss's gradient. Operands out (N, C), grad (N), x (N, C), target (N), weight
    (C) or none. params: (p, margin). A block to each row.
    """
    p, margin = launch.params
    (out,), (grad, x, target, *weight) = launch.outputs, metas_of(launch)
    slope = "C(2) * over" if p == 2 else "C(1)"
    scale = " * to<C>(weights[t * weight_step])" if weight else ""
    text = f"""{file("checked.cuh")}{OVER_BLOCK}
typedef {c_name(x.dtype)} X; typedef {c_name(computing(x.dtype))} C;
extern "C" __global__ void __launch_bounds__(256) run(X* out, const X* grad, const X* x, const i64* target,
    {WEIGHTS if weight else ""}i64 classes, i64 row_step, i64 step, i64 target_step, i64 grad_step,
    i64 weight_step, i64 out_row, i64 out_step, double margin, Guard guard) {{
  const i64 row = blockIdx.x, t = target[row * target_step];
  if ((u64)t >= (u64)classes) {{
    if (threadIdx.x == 0) guard.fail(t, classes, 1);
    return;
  }}
  const X* const mine = x + row * row_step;
  X* const result = out + row * out_row;
  const C gap = (C)margin - to<C>(mine[t * step]), g = to<C>(grad[row * grad_step]);
  C sum = 0;
  for (i64 j = threadIdx.x; j < classes; j += 256) {{
    const C over = gap + to<C>(mine[j * step]);
    const C slope = over > C(0) && j != t ? ({slope}){scale} : C(0);
    sum += slope;
    if (j != t) result[j * out_step] = to<X>(g * slope / (C)classes);
  }}
  sum = over_block(sum, [](C a, C b) {{ return a + b; }});
  if (threadIdx.x == 0) result[t * out_step] = to<X>(g * -sum / (C)classes);
}}
"""
    numbers = (
        x.shape[1], *x.strides, target.strides[0], grad.strides[0], weight[0].strides[0] if weight else 0,
        *out.strides,
    )  # fmt: skip
    guard = device.assertions.guard(launch.kernel.name, "target out of range")
    tail = (*[i64(number) for number in numbers], packed_constant(float(margin)), guard)
    return KernelProgram(text, (x.shape[0], 1, 1), 256, tail)
