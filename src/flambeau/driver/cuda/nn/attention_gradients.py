"""The gradient of `scaled_dot_product_attention`.

For 16-bit dtypes two kernels on tensor cores compute it without writing the scores to memory: with Hopper's warpgroups
(attention_warpgroups_backward.cuh) or with single warps (attention_mma_backward.cuh). For other dtypes five matrix
products and two kernels of this package compute it, for some samples at a time, so that the scores need little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from flambeau.core.dtype import dtype
from flambeau.core.layout import contiguous_strides
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_steps import Array, KernelSteps, device_only
from flambeau.driver.cuda.codegen.layout_parameters import Walked, blocks, file, i64
from flambeau.driver.cuda.codegen.rows import computing
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name, packed_constant
from flambeau.driver.cuda.linalg.products import MATMUL
from flambeau.driver.cuda.nn.attention import HOPPER, REGISTERS, cpp, suits_tensor_cores
from flambeau.driver.protocol import Kernel, Launch, Routine

_SCORE_BYTES = 64 << 20  # bytes of scores processed together, at least one sample; their slopes need as much

WEIGHTS = Kernel("attention_weights", device_only, cuda=Routine("nn.attention_gradients:weights"))
"""Scores (..., L, S), in place, to weights, and maybe the logarithm of each query's sum; of a mask or none.

params: (causal, scale).
"""
SLOPES = Kernel("attention_slopes", device_only, cuda=Routine("nn.attention_gradients:slopes"))
"""The weights' gradient (..., L, S), in place, to the scores'; the mask's or none; of weights. params: (scale,)."""
BY_QUERIES = Kernel("attention_by_queries", device_only, cuda=Routine("nn.attention_gradients:by_queries"))
"""The query's gradient and each query's level (..., L), of grad, query, key, value, out, logarithms, a mask or none.

params: (causal, scale).
"""
BY_KEYS = Kernel("attention_by_keys", device_only, cuda=Routine("nn.attention_gradients:by_keys"))
"""The key's and value's gradients, of grad, query, key, value, levels, logarithms, a mask or none.

params: (causal, scale).
"""


def backward(launch: Launch, device: CudaDevice, driver: Any) -> KernelSteps:
    """Return the kernel of the attention's backward.

    Outputs: gradients of query, key, value and maybe mask. Inputs: grad, query, key, value, out, logarithms, maybe
    mask.
    Params: causal, scale, whether to compute the mask's gradient, whether TF32 is allowed.
    """
    steps = KernelSteps(launch, device, driver)
    grad, q, k, v, out, logarithms, *masks = steps.inputs
    causal, scale, mask_too, _ = launch.params
    if not mask_too and suits_tensor_cores(q.meta, k.meta, v.meta, launch.capability):
        inputs = (*[_by_rows(steps, x) for x in (grad, q, k, v)], _contiguous(steps, out, out.meta.dtype))
        sums = _contiguous(steps, logarithms, logarithms.meta.dtype)
        levels = steps.dense(sums.meta.shape, sums.meta.dtype)
        steps.run_all(BY_QUERIES, (steps.outputs[0], levels), (*inputs, sums, *masks), (causal, scale))
        steps.run_all(BY_KEYS, steps.outputs[1:], (*inputs[:4], levels, sums, *masks), (causal, scale))
        return steps
    return _by_products(steps, [grad, q, k, v, *masks])


def _by_rows(steps: KernelSteps, x: Array) -> Array:
    """Return an input with adjacent elements in each row."""
    return x if x.meta.strides[-1] == 1 else _copy_dense(steps, x, x.meta.dtype)


def _contiguous(steps: KernelSteps, x: Array, kind: dtype) -> Array:
    """Return a tensor as a contiguous one of dtype `kind`, copied if necessary."""
    if kind is x.meta.dtype and x.meta.strides == contiguous_strides(x.meta.shape):
        return x
    return _copy_dense(steps, x, kind)


def _copy_dense(steps: KernelSteps, x: Array, kind: dtype) -> Array:
    dense = steps.dense(x.meta.shape, kind)
    steps.copy(dense, x)
    return dense


def _by_products(steps: KernelSteps, inputs: Sequence[Array]) -> KernelSteps:
    """Add the steps that compute the gradient by matrix products. Inputs: grad, query, key, value, a mask or None."""
    for take, rooms in parts_of(steps, inputs[1], inputs[2], 2):
        _part(steps, [take(x) for x in steps.outputs], [take(x) for x in inputs], rooms)
    return steps


def parts_of(
    steps: KernelSteps, q: Array, k: Array, rooms: int
) -> Iterator[tuple[Callable[[Array], Array], list[Array]]]:
    """Yield a function that takes some samples of an operand, and as much memory for their scores, for all samples."""
    batch, number = q.meta.shape[:-2], computing(q.meta.dtype)
    scores = (*q.meta.shape[:-1], k.meta.shape[-2])
    if not batch:
        yield (lambda x: x), [steps.dense(scores, number) for _ in range(rooms)]
        return
    each = prod(scores[1:]) * number.itemsize
    step = max(1, min(batch[0], _SCORE_BYTES // max(each, 1)))
    held = [steps.dense((step, *scores[1:]), number) for _ in range(rooms)]
    for start in range(0, batch[0], step):
        count = min(step, batch[0] - start)
        yield partial(_some, start=start, count=count), [_some(room, 0, count) for room in held]


def _some(x: Array, start: int, count: int) -> Array:
    """Return some samples along the first dimension."""
    meta = x.meta
    offset = x.offset + start * meta.strides[0] * meta.itemsize
    return Array(x.place, meta.with_((count, *meta.shape[1:]), meta.strides), offset)


def _part(
    steps: KernelSteps, outputs: Sequence[Array], inputs: Sequence[Array], rooms: Sequence[Array]
) -> None:
    causal, scale, _, tf32 = steps.launch.params
    grad, q, k, v = (factor(steps, x) for x in inputs[:4])
    weights, slopes = rooms

    def multiply(out: Array, a: Array, b: Array) -> None:
        made = (
            out if out.meta.dtype is weights.meta.dtype else steps.dense(out.meta.shape, weights.meta.dtype)
        )
        steps.run_all(MATMUL, (made,), (a, b), (tf32,))
        if made is not out:
            steps.copy(out, made)

    multiply(weights, q, transpose(k))
    steps.run_all(WEIGHTS, (weights,), inputs[4:], (causal, float(scale)))
    multiply(outputs[2], transpose(weights), grad)
    multiply(slopes, grad, transpose(v))
    steps.run_all(SLOPES, (slopes, *outputs[3:4]), (weights,), (float(scale),))
    multiply(outputs[0], slopes, k)
    multiply(outputs[1], transpose(slopes), q)


def factor(steps: KernelSteps, x: Array) -> Array:
    """Return an input as the products expect it: contiguous, half precision as float32."""
    return _contiguous(steps, x, computing(x.meta.dtype))


def transpose(x: Array) -> Array:
    shape, strides = x.meta.shape, x.meta.strides
    meta = x.meta.with_((*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))
    return replace(x, meta=meta)


# -- on tensor cores --------------------------------------------------------------------------------------------------

_TILES = {  # (by keys?, deeper than 64?) -> warps of a block, rows of a tile of the other side
    (False, False): (8, 32), (False, True): (8, 32), (True, False): (4, 32), (True, True): (8, 32),
}  # fmt: skip
_HOPPER_TILES = {  # (by keys?, deeper than 64?) -> computing warpgroups of a block, rows of a tile
    (False, False): (2, 128), (False, True): (2, 64), (True, False): (2, 64), (True, True): (2, 64),
}  # fmt: skip


def by_queries(launch: Launch, device: CudaDevice) -> KernelProgram:
    return _on_tensor_cores(launch, False)


def by_keys(launch: Launch, device: CudaDevice) -> KernelProgram:
    return _on_tensor_cores(launch, True)


def _on_tensor_cores(launch: Launch, by_keys: bool) -> KernelProgram:
    causal, scale = launch.params
    grad, q, k, v, _, _, *masks = [x for x in launch.inputs if isinstance(x, Meta)]
    queries, keys, depth = q.shape[-2], k.shape[-2], q.shape[-1]
    if launch.capability == HOPPER and not masks and scale > 0:
        groups, other = _HOPPER_TILES[by_keys, depth > 64]
        threads, rows, least = 128 * (groups + 1), 64 * groups, ", 1"
        # two tiles of the block's own rows, four of the other side
        shared = -(-depth // 64) * 128 * (2 * rows + 4 * other)
        bringing, computing_ = REGISTERS[groups]
        constants = f"GROUPS = {groups}, BRINGING = {bringing}, COMPUTING = {computing_}"
        files: tuple[str, ...] = ("warpgroups", "warpgroup_tiles", "attention_warpgroups_backward")
    else:
        warps, other = _TILES[by_keys, depth > 64]
        threads, rows, shared, least = 32 * warps, 16 * warps, 0, ""
        constants, files = f"WARPS = {warps}", ("attention_mma_backward",)
    tiles = -(-(keys if by_keys else queries) // rows)
    walked = [grad, q, k, v, *masks]
    batch = Walked(q.shape[:-2], [x.strides[:-2] for x in walked])
    # The largest blocks begin: with causal masks, those of the last queries and of the first keys.
    tile = "tiles - 1 - blockIdx.x % tiles" if causal and not by_keys else "blockIdx.x % tiles"
    if by_keys:
        outputs, third, third_kind = "X* by_k, X* by_v", "levels", "float"
        roles = "by_k + sample * keys * D, by_v + sample * keys * D, k_, v_, q_, grad_, q_"
        levels, sizes = "(float*)levels", "keys, queries"
    else:
        outputs, third, third_kind = "X* by_q, float* levels", "out", "X"
        roles = "by_q + first_query * D, nullptr, q_, grad_, k_, v_, Matrix{out + first_query * D, D}"
        levels, sizes = "levels", "queries, keys"
    text = f"""
typedef {c_name(q.dtype)} X;
typedef {c_name(masks[0].dtype) if masks else "bool"} M;
constexpr bool MASKED = {cpp(bool(masks))}, CAUSAL = {cpp(causal)}, BY_KEYS = {cpp(by_keys)};
constexpr int D = {depth}, OTHER = {other}, {constants};
{"".join([file(f"{name}.cuh") for name in ("tensor_cores", *files)])}
struct RowSteps {{ i64 grad, q, k, v; }};
extern "C" __global__ void __launch_bounds__({threads}{least}) run({outputs}, const X* grad, const X* q, const X* k,
    const X* v, const {third_kind}* {third}, const float* logarithms, {"const M* mask, " if masks else ""}
    {batch.parameter("o")}, RowSteps step, Steps sm, i64 queries, i64 keys, i64 tiles, double scale) {{
  const i64 sample = blockIdx.x / tiles, first_query = sample * queries;
  {batch.locate("sample", "o")}
  const Matrix grad_{{grad + o[0], step.grad}}, q_{{q + o[1], step.q}}, k_{{k + o[2], step.k}}, v_{{v + o[3], step.v}};
  attend_backward({roles}, logarithms + first_query, {levels} + first_query,
      {"mask + o[4]" if masks else "(const M*)nullptr"}, sm, {sizes}, ({tile}) * {rows}, (float)scale);
}}
"""
    steps = i64(*[x.strides[-2] for x in (grad, q, k, v)]), i64(*(masks[0].strides[-2:] if masks else (0, 0)))
    numbers = i64(queries), i64(keys), i64(tiles)
    tail = (batch.value, *steps, *numbers, packed_constant(float(scale)))
    return KernelProgram(text, (tiles * batch.count, 1, 1), threads, tail, shared=shared)


# -- a warp to each row of scores ------------------------------------------------------------------------------------

_SUM = """
__device__ __forceinline__ C over_warp(C s) {
#pragma unroll
  for (int d = 16; d; d /= 2) s += __shfl_xor_sync(~0u, s, d);
  return s;
}
"""


def weights(launch: Launch, device: CudaDevice) -> KernelProgram:
    causal, scale = launch.params
    out, *sums = launch.outputs
    masks = [x for x in launch.inputs if isinstance(x, Meta)]
    walked = [out.strides[:-1], *[x.strides for x in sums], *[x.strides[:-1] for x in masks]]
    rows = Walked(out.shape[:-1], walked)
    kind = masks[0].dtype if masks else None
    masked = ("C* sums, " if sums else "") + ("" if kind is None else f"const {c_name(kind)}* mask, ")
    place = f"mask[o[{1 + len(sums)}] + j * mask_step]"
    taken = (
        "a" if kind is None else f"{place} ? a : (C)-INF" if kind.name == "bool" else f"a + to<C>({place})"
    )
    logarithm = "  if (lane == 0) sums[o[1]] = sum == 0 ? (C)-INF : top + log_(sum);\n" if sums else ""
    text = f"""
typedef {c_name(out.dtype)} C;{_SUM}
extern "C" __global__ void __launch_bounds__(256) run(C* out, {masked}{rows.parameter("o")}, i64 rows, i64 queries,
    i64 keys, i64 mask_step, double scale) {{
  const i64 row = blockIdx.x * 8ll + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  {rows.locate("row", "o")}
  C* const mine = out + o[0];
  const i64 last = {"row % queries" if causal else "keys"};  // the last key that takes part
  C top = -INF, sum = 0;
  for (i64 j = lane; j < keys; j += 32) {{
    C a = j <= last ? mine[j] * (C)scale : (C)-INF;
    a = {taken};
    mine[j] = a;
    top = greater(top, a);
  }}
#pragma unroll
  for (int d = 16; d; d /= 2) top = greater(top, __shfl_xor_sync(~0u, top, d));
  if (top == -INF) top = 0;
  for (i64 j = lane; j < keys; j += 32) {{
    const C a = exp_(mine[j] - top);
    mine[j] = a;
    sum += a;
  }}
  sum = over_warp(sum);
  const C share = sum == 0 ? C(0) : 1 / sum;
  for (i64 j = lane; j < keys; j += 32) mine[j] *= share;
{logarithm}}}
"""
    step = masks[0].strides[-1] if masks else 0
    numbers = i64(rows.count), i64(out.shape[-2]), i64(out.shape[-1]), i64(step)
    return KernelProgram(text, blocks(rows.count, 8), 256, (rows.value, *numbers, packed_constant(scale)))


def slopes(launch: Launch, device: CudaDevice) -> KernelProgram:
    (scale,) = launch.params
    out, *given = launch.outputs
    (weight,) = [x for x in launch.inputs if isinstance(x, Meta)]
    rows = Walked(out.shape[:-1], [x.strides[:-1] for x in (out, *given, weight)])
    masked = f"{c_name(given[0].dtype)}* by_mask, " if given else ""
    kept = f"by_mask[o[1] + j * mask_step] = to<{c_name(given[0].dtype)}>(a);" if given else ""
    text = f"""
typedef {c_name(out.dtype)} C;{_SUM}
extern "C" __global__ void __launch_bounds__(256) run(C* out, {masked}const C* weights, {rows.parameter("o")}, i64 rows,
    i64 keys, i64 mask_step, double scale) {{
  const i64 row = blockIdx.x * 8ll + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  {rows.locate("row", "o")}
  C* const mine = out + o[0];
  const C* const weight = weights + o[{1 + len(given)}];
  C level = 0;
  for (i64 j = lane; j < keys; j += 32) level += mine[j] * weight[j];
  level = over_warp(level);
  for (i64 j = lane; j < keys; j += 32) {{
    const C a = weight[j] * (mine[j] - level);
    {kept}
    mine[j] = a * (C)scale;
  }}
}}
"""
    step = given[0].strides[-1] if given else 0
    numbers = i64(rows.count), i64(out.shape[-1]), i64(step)
    return KernelProgram(text, blocks(rows.count, 8), 256, (rows.value, *numbers, packed_constant(scale)))
