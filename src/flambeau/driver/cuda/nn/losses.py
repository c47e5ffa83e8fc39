"""Losses: negative log likelihood, margin losses, and CTC with its gradient.

Sums have an order that depends only on the layout, so results are bitwise reproducible.
"""

from __future__ import annotations

from math import prod

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import Walked, blocks, file, i64
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.codegen.rows import computing
from flambeau.driver.cuda.codegen.scratch import HEAD
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name
from flambeau.driver.protocol import Launch

WEIGHTS = "const X* weights, "
_TARGET = "Target {index} is out of bounds."
_FEW = 4096  # targets that one block sums
_MOST_BLOCKS = 512


def metas_of(launch: Launch) -> list[Meta]:
    return [x for x in launch.inputs if isinstance(x, Meta)]


# Joins a state over the block's 256 threads in a fixed order; thread 0 has the result.
OVER_BLOCK = """
template<class S, class J> __device__ __forceinline__ S over_block(S s, J join) {
  __shared__ S parts[256];
  __syncthreads();
  parts[threadIdx.x] = s;
#pragma unroll
  for (int half_ = 128; half_; half_ /= 2) {
    __syncthreads();
    if (threadIdx.x < half_) parts[threadIdx.x] = s = join(s, parts[threadIdx.x + half_]);
  }
  return s;
}
"""


# -- nll_loss -------------------------------------------------------------------------------------------------------


def nll_loss(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of nll_loss. Operands out, x (N, C, ...), target (N, ...), weight (C) or none. params:
    (reduction, ignored target).
    """
    reduction, ignored = launch.params
    (out,), (x, target, *weight) = launch.outputs, metas_of(launch)
    kind = c_name(computing(x.dtype))
    at = 1 if x.ndim > 1 else 0
    strides = [s for d, s in enumerate(x.strides) if d != at]
    places = [strides, target.strides] + ([out.strides] if reduction == "none" else [])
    walk = Walked(target.shape, places)
    weight_step, weights = (weight[0].strides[0], WEIGHTS) if weight else (0, "")
    body, scratch = _NLL_EACH.format(place=walk.locate("i", "o")), ""
    if reduction != "none":
        body, scratch = _NLL_SUM.format(head=HEAD, last=_LAST[reduction]), ", char* scratch"
    text = f"""{file("checked.cuh")}{OVER_BLOCK}
typedef {c_name(x.dtype)} X; typedef {c_name(target.dtype)} Target; typedef {kind} C;
struct Loss {{ double sum, weight; }};
__device__ __forceinline__ Loss operator+(Loss a, Loss b) {{ return {{a.sum + b.sum, a.weight + b.weight}}; }}
extern "C" __global__ void __launch_bounds__(256) run(X* out, const X* x, const Target* target, {weights}
    {walk.parameter("o")}, i64 n, i64 classes, i64 step, i64 weight_step, i64 ignored, Guard guard{scratch}) {{
  auto loss_of = [&](i64 i, C& weight) -> C {{  // of target i, and its weight
    {walk.locate("i", "o")}
    const i64 t = target[o[1]];
    weight = 0;
    if (t == ignored) return 0;
    if ((u64)t >= (u64)classes) {{ guard.fail(t, classes, 1); return 0; }}
    weight = {"to<C>(weights[t * weight_step])" if weight else "1"};
    return -to<C>(x[o[0] + t * step]) * weight;
  }};
{body}
}}
"""
    tail = (walk.value, *[i64(n) for n in (walk.count, x.shape[at], x.strides[at], weight_step, ignored)])
    tail = (*tail, device.assertions.guard(launch.kernel.name, _TARGET))
    if reduction == "none":
        return KernelProgram(text, blocks(walk.count), 256, tail)
    grid = 1 if walk.count <= _FEW else min(-(-walk.count // 1024), _MOST_BLOCKS)
    return KernelProgram(text, (grid, 1, 1), 256, tail, HEAD + 16 * grid)


_LAST = {"sum": "all.sum", "mean": "(C)all.sum / (C)all.weight"}
_NLL_EACH = """  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  C weight;
  const C loss = loss_of(i, weight);
  {place}
  out[o[2]] = to<X>(loss);"""
# The last block to finish joins the results of all blocks.
_NLL_SUM = """  auto join = [](Loss a, Loss b) {{ return a + b; }};
  Loss mine = {{0, 0}};
  for (i64 i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) {{
    C weight;
    const C loss = loss_of(i, weight);
    mine = mine + Loss{{loss, weight}};
  }}
  Loss all = over_block(mine, join);
  if (gridDim.x > 1) {{
    u32* const done = (u32*)scratch;
    Loss* const found = (Loss*)(scratch + {head});
    __shared__ bool last;
    if (threadIdx.x == 0) {{
      found[blockIdx.x] = all;
      __threadfence();
      last = atomicAdd(done, 1u) == gridDim.x - 1;
    }}
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) *done = 0;
    mine = {{0, 0}};
    for (int b = threadIdx.x; b < gridDim.x; b += 256) mine = mine + found[b];
    all = over_block(mine, join);
  }}
  if (threadIdx.x == 0) *out = to<X>((C)({last}));"""


# Each thread computes one element of the gradient. If there are few targets, each block sums the weights of all.
_NLL_BACK = """  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= n) return;
  {place}
  const i64 t = target[o[1]], c = i / inner % classes;
  C given = 0;
  if (t == c && t != ignored) given = -to<C>(grad[o[2]]) * {weight}{share};
  out[o[0]] = to<X>(given);"""
_NLL_TOTAL = """  auto share_of = [&](i64 k) -> double {{
    {place}
    const i64 t = target[a[0]];
    return t == ignored || (u64)t >= (u64)classes ? 0. : (double){weight};
  }};
  double mine = 0;
  for (i64 k = threadIdx.x; k < targets; k += 256) mine += share_of(k);
  mine = over_block(mine, [](double a, double b) {{ return a + b; }});
"""


def nll_loss_backward(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of nll_loss_backward. Operands out (N, C, ...), grad, target (N, ...), weight (C) or none.
    params: (reduction, ignored, shape).
    """
    reduction, ignored, shape = launch.params
    (out,), (grad, target, *weight) = launch.outputs, metas_of(launch)
    at = 1 if out.ndim > 1 else 0
    spread = [(*x.strides[:at], 0, *x.strides[at:]) for x in (target, _as_target(grad, target))]
    walk, every = Walked(shape, [out.strides, *spread]), Walked(target.shape, [target.strides])
    near = every.count <= _FEW
    lone = "to<C>(weights[t * weight_step])" if weight else "1"
    total = _NLL_TOTAL.format(place=every.locate("k", "a"), weight=lone)
    divided = reduction == "mean"
    share = "" if not divided else " / (C)total_" if near else " / (C)*sum"
    here = f"{total}  __shared__ double total_;\n  if (threadIdx.x == 0) total_ = mine;\n  __syncthreads();\n"
    each = _NLL_BACK.format(place=walk.locate("i", "o"), weight=lone, share=share)
    text = f"""{OVER_BLOCK}
typedef {c_name(out.dtype)} X; typedef {c_name(target.dtype)} Target; typedef {c_name(computing(out.dtype))} C;
extern "C" __global__ void __launch_bounds__(256) run(X* out, const X* grad, const Target* target,
    {WEIGHTS if weight else ""}double* sum, {walk.parameter("o")}, {every.parameter("a")}, i64 n, i64 targets,
    i64 classes, i64 inner, i64 weight_step, i64 ignored) {{
"""
    numbers = (
        walk.count,
        every.count,
        shape[at],
        prod(shape[at + 1 :]),
        weight[0].strides[0] if weight else 0,
        ignored,
    )
    tail = (walk.value, every.value, *[i64(number) for number in numbers])
    work = WorkspaceLayout()
    places = (*[(place, 0) for place in range(len(launch.operands))], work.take(8))
    passes = [
        Pass(
            KernelProgram(
                f"{text}{here if divided and near else ''}{each}\n}}", blocks(walk.count), 256, tail
            ),
            places,
        )
    ]
    if divided and not near:
        passes.insert(
            0,
            Pass(
                KernelProgram(f"{text}{total}  if (threadIdx.x == 0) *sum = mine;\n}}", (1, 1, 1), 256, tail),
                places,
            ),
        )
    return KernelPlan(tuple(passes), work.nbytes)


def _as_target(grad: Meta, target: Meta) -> Meta:
    """Return the loss's gradient, which is one number, expanded to the target's shape."""
    return grad if grad.shape == target.shape else grad.with_(target.shape, (0,) * target.ndim)


# -- ctc_loss -------------------------------------------------------------------------------------------------------

_NEAR = 1024  # states of a sample that fit in shared memory


def ctc_loss(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of ctc_loss, with one block for each sample, which processes all states of a time step
    together.

    Operands: out (N), log_probs (T, N, C), targets (N, S) or concatenated, input lengths (N), target lengths (N).
    Params: (blank, ...).
    """
    (out,), (probs, targets, given, wanted) = launch.outputs, metas_of(launch)
    near = _states(targets) <= _NEAR
    work = WorkspaceLayout()
    rows = work.take(0 if near else 2 * _states(targets) * probs.shape[1] * probs.itemsize)
    text = f"{_ctc_head(probs, targets, given, wanted)}constexpr bool near_ = {str(near).lower()};\n{_CTC}"
    numbers = (*_ctc_numbers(launch, probs, targets, given, wanted), out.strides[0])
    tail = (*[i64(number) for number in numbers], *_ctc_guards(launch, device))
    program = KernelProgram(text, (probs.shape[1], 1, 1), 256, tail)
    return KernelPlan((Pass(program, ((0, 0), (1, 0), (2, 0), (3, 0), (4, 0), rows)),), work.nbytes)


def ctc_loss_backward(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the kernel of ctc_loss_backward, with one block for each sample, which stores all states of the forward
    pass.

    Operands: out (T, N, C), grad (N), log_probs (T, N, C), targets, both lengths (N), loss (N). Params: (blank, whether
    the gradient of an infinite loss is zero). The first state of a class sums the parts of all its states in order.
    """
    (out,), (grad, probs, targets, given, wanted, loss) = launch.outputs, metas_of(launch)
    times, batch, _ = probs.shape
    states = _states(targets)
    work = WorkspaceLayout()
    rows = work.take((times + 3) * states * batch * probs.itemsize)
    links = work.take(states * batch * 4)
    text = f"{_ctc_head(probs, targets, given, wanted)}{_CTC_BACK}"
    numbers = (
        *_ctc_numbers(launch, probs, targets, given, wanted), probs.shape[2], *out.strides, grad.strides[0],
        loss.strides[0], int(launch.params[1]),
    )  # fmt: skip
    tail = (*[i64(number) for number in numbers], *_ctc_guards(launch, device))
    program = KernelProgram(text, (batch, 1, 1), 256, tail)
    places = ((0, 0), (2, 0), (3, 0), (4, 0), (5, 0), (1, 0), (6, 0), rows, links)
    return KernelPlan((Pass(program, places),), work.nbytes)


def _states(targets: Meta) -> int:
    """Return the largest number of states of a sample: its labels, and a blank before, between and after them."""
    return 2 * targets.shape[-1] + 1


def _ctc_head(probs: Meta, targets: Meta, given: Meta, wanted: Meta) -> str:
    return f"""{file("checked.cuh")}{OVER_BLOCK}
typedef {c_name(probs.dtype)} C; typedef {c_name(targets.dtype)} Label;
typedef {c_name(given.dtype)} Given; typedef {c_name(wanted.dtype)} Wanted;
constexpr bool flat = {str(targets.ndim == 1).lower()};
"""


def _ctc_numbers(launch: Launch, probs: Meta, targets: Meta, given: Meta, wanted: Meta) -> tuple[int, ...]:
    return (
        *probs.shape[:2], targets.shape[-1], launch.params[0], *probs.strides, targets.strides[0],
        targets.strides[-1], given.strides[0], wanted.strides[0],
    )  # fmt: skip


def _ctc_guards(launch: Launch, device: CudaDevice) -> tuple[bytes, bytes]:
    name, guard = launch.kernel.name, device.assertions.guard
    return (
        guard(name, "Expected input_lengths to have value at most {size}, but got value {index}"),
        guard(
            name,
            "Expected targets to have at least {index} elements for each sample's length, but got {size}",
        ),
    )


# The labels of a sample. A sample with invalid lengths is skipped.
_CTC_SAMPLE = """
  __shared__ i64 start_;
  const i64 sample = blockIdx.x, length = given[sample * given_step];
  i64 labels = wanted[sample * wanted_step];
  i64 start = 0;  // of this sample's labels among all
  if (flat) {
    for (i64 j = threadIdx.x; j < sample; j += 256) start += wanted[j * wanted_step];
    start = over_block(start, [](i64 a, i64 b) { return a + b; });
    if (threadIdx.x == 0) start_ = start;
    __syncthreads();
    start = start_;
  }
  const bool fits = labels >= 0 && (flat ? start >= 0 && start + labels <= most : labels <= most);
  if (length > times || !fits) {
    if (threadIdx.x == 0 && length > times) late.fail(length, times, 0);
    if (threadIdx.x == 0 && !fits) short_.fail(flat ? start + labels : labels, most, 1);
    return;
  }
  const i64 states = 2 * labels + 1;
  const Label* const mine = targets + (flat ? start * target_step : sample * target_row);
  auto label = [&](i64 s) -> i64 { return s % 2 ? (i64)mine[s / 2 * target_step] : blank; };
"""
_CTC = (
    """
extern "C" __global__ void __launch_bounds__(256) run(C* out, const C* probs, const Label* targets, const Given* given,
    const Wanted* wanted, C* rows, i64 times, i64 batch, i64 most, i64 blank, i64 time_step, i64 sample_step, i64 step,
    i64 target_row, i64 target_step, i64 given_step, i64 wanted_step, i64 out_step, Guard late, Guard short_) {
  __shared__ C shared[near_ ? 2048 : 1];
"""
    + _CTC_SAMPLE
    + """
  C* before = near_ ? shared : rows + sample * 2 * (2 * most + 1);
  C* after = before + (near_ ? 1024 : 2 * most + 1);
  const C* now = probs + sample * sample_step;
  for (i64 s = threadIdx.x; s < states; s += 256)
    before[s] = s < 2 && times ? now[label(s) * step] : (C)-INF;
  for (i64 t = 1; t < length; ++t) {
    __syncthreads();
    now += time_step;
    for (i64 s = threadIdx.x; s < states; s += 256) {
      C joined = before[s];
      if (s > 0) joined = log_add(joined, before[s - 1]);
      const i64 l = label(s);
      if (s > 1 && l != blank && l != label(s - 2)) joined = log_add(joined, before[s - 2]);
      after[s] = joined + now[l * step];
    }
    C* const turned = before;
    before = after;
    after = turned;
  }
  __syncthreads();
  if (threadIdx.x) return;
  C found = before[states - 1];
  if (labels > 0) found = log_add(found, before[states - 2]);
  if (length <= 0) found = labels == 0 ? C(0) : (C)-INF;
  out[sample * out_step] = -found;
}
"""
)
_CTC_BACK = (
    """
extern "C" __global__ void __launch_bounds__(256) run(C* out, const C* probs, const Label* targets, const Given* given,
    const Wanted* wanted, const C* grads, const C* losses, C* rows, u32* links, i64 times, i64 batch, i64 most,
    i64 blank, i64 time_step, i64 sample_step, i64 step, i64 target_row, i64 target_step, i64 given_step,
    i64 wanted_step, i64 classes, i64 out_time, i64 out_sample, i64 out_step, i64 grad_step, i64 loss_step, i64 zero,
    Guard late, Guard short_) {
"""
    + _CTC_SAMPLE
    + """
  const i64 width = 2 * most + 1;
  C* const alphas = rows + sample * (times + 3) * width;  // of each time
  C* after = alphas + times * width;                      // likelihoods of what comes after this time; then of the next
  C* stays = after + width;                               // those, with what this state emits at the next time
  C* const shares = stays + width;
  u32* const link = links + sample * width;               // the next state of the same label; 0: there is none
  const C* const own = probs + sample * sample_step;
  const C loss = losses[sample * loss_step], grad = grads[sample * grad_step];
  const bool lost = loss == INF || loss == -INF;
  for (i64 s = threadIdx.x; s < states; s += 256) {
    alphas[s] = s < 2 && times ? own[label(s) * step] : (C)-INF;
    u32 next = 0;
    for (i64 r = s + 2; s % 2 && r < states && !next; r += 2)
      if (label(r) == label(s)) next = (u32)r;
    link[s] = next;
  }
  for (i64 t = 1; t < length; ++t) {
    __syncthreads();
    const C* const before = alphas + (t - 1) * width;
    for (i64 s = threadIdx.x; s < states; s += 256) {
      C joined = before[s];
      if (s > 0) joined = log_add(joined, before[s - 1]);
      const i64 l = label(s);
      if (s > 1 && l != blank && l != label(s - 2)) joined = log_add(joined, before[s - 2]);
      alphas[t * width + s] = joined + own[t * time_step + l * step];
    }
  }
  auto is_first = [&](i64 s) {
    for (i64 r = 1; r < s; r += 2)
      if (label(r) == label(s)) return false;
    return label(s) != blank;
  };
  C* const target = out + sample * out_sample;
  for (i64 t = times - 1; t >= 0; --t) {
    const C* const now = own + t * time_step;
    for (i64 c = threadIdx.x; c < classes; c += 256) {
      const C left = lost ? (zero ? C(0) : (C)NAN) : exp_(now[c * step]);
      target[t * out_time + c * out_step] = t < length ? left * grad : C(0);
    }
    if (t >= length) continue;
    __syncthreads();
    for (i64 s = threadIdx.x; s < states; s += 256) {
      C later = s + 2 >= states ? C(0) : (C)-INF;
      if (t + 1 < length) {
        later = stays[s];
        if (s + 1 < states) later = log_add(later, stays[s + 1]);
        if (s + 2 < states && label(s + 2) != blank && label(s + 2) != label(s)) later = log_add(later, stays[s + 2]);
      }
      after[s] = later;
      shares[s] = exp_(alphas[t * width + s] + later + loss);
    }
    __syncthreads();
    C blanks = 0;
    for (i64 s = threadIdx.x; s < states; s += 256) {
      stays[s] = after[s] + now[label(s) * step];
      if (label(s) == blank) blanks += shares[s];
      if (lost || s % 2 == 0 || !is_first(s)) continue;
      C share = shares[s];
      for (i64 r = link[s]; r; r = link[r]) share += shares[r];
      target[t * out_time + label(s) * out_step] -= share * grad;
    }
    blanks = over_block(blanks, [](C a, C b) { return a + b; });
    if (threadIdx.x == 0 && !lost) target[t * out_time + blank * out_step] -= blanks * grad;
  }
}
"""
)
