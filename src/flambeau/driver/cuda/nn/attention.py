"""`scaled_dot_product_attention` in one kernel, which never writes the scores to memory.

In 16 bits on tensor cores, where depth and columns suit them: by warpgroups of Hopper (attention_warpgroups.cuh) or by
single warps (attention_mma.cuh). Else by multiply-adds of any layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from flambeau.core.dtype import bfloat16, float16, float32, float64
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import Walked, file, i64
from flambeau.driver.cuda.codegen.rows import computing
from flambeau.driver.cuda.codegen.scratch import HEAD
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name, packed_constant
from flambeau.driver.protocol import Launch

_DEPTHS = range(16, 129, 16)  # head dimensions that tensor cores support and registers hold
_WARPS = 4  # warps of a block on tensor cores
HOPPER = (9, 0)  # the compute capability with products of warpgroups; later ones use other instructions
REGISTERS = {2: (40, 232), 3: (32, 160)}
"""Computing warpgroups of a block -> registers of a thread that brings tiles, and of one that computes."""
_LONG = 256  # queries and keys of float32 from which on matrix products are faster
_SINCE = (8, 0)  # the compute capability with TF32 and the tensor cores' instructions used here


@dataclass(frozen=True, slots=True, eq=False)
class _AttentionOperands:
    """The operands: out (..., L, Ev), q (..., L, E), k (..., S, E), v (..., S, Ev), and a mask (..., L, S) or None."""

    out: Meta
    q: Meta
    k: Meta
    v: Meta
    mask: Meta | None
    causal: bool
    scale: float

    @property
    def operands(self) -> list[Meta]:
        return [x for x in (self.out, self.q, self.k, self.v, self.mask) if x is not None]

    @property
    def batch(self) -> Walked:
        return Walked(self.out.shape[:-2], [x.strides[:-2] for x in self.operands])

    @property
    def steps(self) -> list[bytes]:
        """Return the row and column strides of out, q, k, v and the mask."""
        return [i64(*x.strides[-2:]) for x in self.operands] + ([] if self.mask is not None else [i64(0, 0)])


def attention(launch: Launch, device: CudaDevice) -> KernelProgram | None:
    """Return the kernel of attention; None if matrix products are faster. Params: (causal, scale, TF32 is allowed)."""
    causal, scale, tf32 = launch.params
    q, k, v, *masks = [x for x in launch.inputs if isinstance(x, Meta)]
    problem = _AttentionOperands(
        launch.outputs[0], q, k, v, masks[0] if masks else None, causal, float(scale)
    )
    along = all(m.strides[-1] == 1 for m in (q, k, v))
    if along and suits_tensor_cores(q, k, v, launch.capability):
        if launch.capability == HOPPER and not masks and scale > 0:
            return _by_warpgroups(problem, device.properties.multi_processor_count)
        return _on_tensor_cores(problem)
    if q.dtype is float32 and min(q.shape[-2], k.shape[-2]) >= _LONG and v.shape[-1]:
        return None
    return _plain(problem, bool(tf32) and _is_modern(launch.capability) and q.dtype is float32)


def _plain(x: _AttentionOperands, tf32: bool) -> KernelProgram:
    keys = 32 if x.q.dtype is float64 else 64
    groups = 2 if x.q.dtype is not float64 and x.v.shape[-1] > 64 else 1
    queries, depth = x.q.shape[-2:]
    tiles, parts = -(-queries // 64), max(1, -(-x.v.shape[-1] // (64 * groups)))  # values may have no columns
    batch = x.batch
    masked = x.mask is not None
    text = f"""
typedef {c_name(x.q.dtype)} X; typedef {c_name(computing(x.q.dtype))} C;
typedef {c_name(x.mask.dtype) if x.mask is not None else "bool"} M;
constexpr bool MASKED = {cpp(masked)}, CAUSAL = {cpp(x.causal)}, TF32 = {cpp(tf32)};
constexpr int BN = {keys}, W = {groups};
{file("attention.cuh")}
extern "C" __global__ void __launch_bounds__(256) run(X* out, C* logarithms, const X* q,
    const X* k, const X* v, {"const M* mask, " if masked else ""}{batch.parameter("o")}, Steps so, Steps sq, Steps sk,
    Steps sv, Steps sm, Shape shape, double scale) {{
  const i64 tile = blockIdx.x % shape.tiles, part = blockIdx.x / shape.tiles % shape.parts;
  const i64 sample = blockIdx.x / (shape.tiles * shape.parts);
  {batch.locate("sample", "o")}
  attend(out + o[0], logarithms + sample * shape.queries, q + o[1], k + o[2], v + o[3],
         {"mask + o[4]" if masked else "nullptr"}, so, sq, sk, sv, sm, shape, tile * 64, part, (C)scale);
}}
"""
    shape = i64(queries, x.k.shape[-2], depth, x.v.shape[-1], tiles, parts)
    tail = (batch.value, *x.steps, shape, packed_constant(x.scale))
    return KernelProgram(text, (tiles * parts * batch.count, 1, 1), 256, tail)


def suits_tensor_cores(q: Meta, k: Meta, v: Meta, capability: tuple[int, int] | None) -> bool:
    """Return True if the kernels on tensor cores support these dtypes, depths and columns."""
    depth = q.shape[-1]
    return (
        _is_modern(capability)
        and q.dtype in (float16, bfloat16)
        and depth == v.shape[-1]
        and depth in _DEPTHS
        and k.shape[-2] > 0
    )


def _is_modern(capability: tuple[int, int] | None) -> bool:
    return capability is not None and capability >= _SINCE


def _on_tensor_cores(x: _AttentionOperands) -> KernelProgram:
    queries, depth = x.q.shape[-2:]
    several = 2 if depth <= 64 < queries else 1  # blocks of 16 queries for which a warp has registers
    together = 16 * several * _WARPS
    tiles, batch, masked = -(-queries // together), x.batch, x.mask is not None
    # the largest blocks begin, because they take longest
    tile = "tiles - 1 - blockIdx.x % tiles" if x.causal else "blockIdx.x % tiles"
    text = f"""
typedef {c_name(x.q.dtype)} X;
typedef {c_name(x.mask.dtype) if x.mask is not None else "bool"} M;
constexpr bool MASKED = {cpp(masked)}, CAUSAL = {cpp(x.causal)};
constexpr bool FOLDED = {cpp(not masked and x.scale > 0)};
constexpr int D = {depth}, WARPS = {_WARPS}, R = {several}, KEYS = {64 if depth <= 64 else 32};
{file("tensor_cores.cuh")}
{file("attention_mma.cuh")}
extern "C" __global__ void __launch_bounds__({32 * _WARPS}) run(X* out, float* logarithms, const X* q,
    const X* k, const X* v, {"const M* mask, " if masked else ""}{batch.parameter("o")}, Steps so, Steps sq, Steps sk,
    Steps sv, Steps sm, i64 queries, i64 keys, i64 tiles, double scale) {{
  const i64 sample = blockIdx.x / tiles;
  {batch.locate("sample", "o")}
  attend(out + o[0], logarithms + sample * queries, q + o[1], k + o[2], v + o[3],
         {"mask + o[4]" if masked else "nullptr"}, so.row, sq.row, sk.row, sv.row, sm, queries, keys,
         ({tile}) * {together}, (float)scale);
}}
"""
    sizes = (i64(queries), i64(x.k.shape[-2]), i64(tiles))
    tail = (batch.value, *x.steps, *sizes, packed_constant(x.scale))
    return KernelProgram(text, (tiles * batch.count, 1, 1), 32 * _WARPS, tail)


def _by_warpgroups(x: _AttentionOperands, processors: int) -> KernelProgram:
    queries, depth = x.q.shape[-2:]
    groups = 3 if depth <= 64 else 2
    bringing, computing_ = REGISTERS[groups]
    keys, panels = 128, -(-depth // 64)
    threads, batch = 128 * (groups + 1), x.batch
    text = f"""
typedef {c_name(x.q.dtype)} X;
constexpr bool CAUSAL = {cpp(x.causal)};
constexpr int D = {depth}, GROUPS = {groups}, KEYS = {keys}, BRINGING = {bringing}, COMPUTING = {computing_};
{file("tensor_cores.cuh")}
{file("warpgroups.cuh")}
{file("warpgroup_tiles.cuh")}
{file("attention_warpgroups.cuh")}
extern "C" __global__ void __launch_bounds__({threads}, 1) run(X* out, float* logarithms, const X* q, const X* k,
    const X* v, const __grid_constant__ {batch.parameter("o")}, const __grid_constant__ Shape shape, double scale,
    u32* counter) {{
  attend(shape, logarithms, (float)scale, counter, [&](u32 sample) {{
    {batch.locate("sample", "o")}
    return Matrices{{out + o[0], q + o[1], k + o[2], v + o[3]}};
  }});
}}
"""
    tiles = -(-queries // (64 * groups))
    steps = [m.strides[-2] for m in (x.out, x.q, x.k, x.v)]
    shape = i64(queries, x.k.shape[-2], tiles, batch.count, *steps)
    shared = panels * 128 * (64 * groups + 4 * keys)  # a tile of queries, two of keys and two of values
    tail = (batch.value, shape, packed_constant(x.scale))
    return KernelProgram(text, (processors, 1, 1), threads, tail, HEAD, shared=shared)


def cpp(value: bool) -> str:
    return str(value).lower()
