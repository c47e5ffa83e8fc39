"""`Compaction`: select elements of a sequence in two passes. The first counts the selected elements before each tile.

Blocks sum their tiles, and the last block to finish sums the blocks. Then blocks process their tiles again with the
known counts before each. The sums are of integers and in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

from flambeau.driver.cuda.codegen.layout_parameters import blocks, i64
from flambeau.driver.cuda.codegen.multi_kernel import Pass, WorkspaceLayout
from flambeau.driver.cuda.codegen.scratch import HEAD
from flambeau.driver.cuda.device.program import KernelProgram

Place = tuple[int, int]
_THREADS = 256
TILE = 8192  # elements of a block: each warp has 32 rows of 32


@dataclass(frozen=True, slots=True)
class Compaction:
    """The passes over `count` elements. All fields that are texts are C++.

    Attributes:
        parameters: Parameters of the kernels; `places` are their addresses, `tail` the bytes of those that are values.
        amount: Expression for the amount of element i, an i64.
        emit: Statements that run for each element i, with `amount` and `before`, the sum of earlier amounts.
        total: Statements that one thread runs with the sum `total`.
        functions: Functions in front of the kernels.
        chosen: True if each amount is 0 or 1, so that a warp can process 32 adjacent elements together.
        bytes: With `chosen`: expression for the address of the elements, if they are consecutive bytes.
        load: With `chosen`: expression that loads element `at`, which is `loaded` in `emit`.
        rest: With `chosen`: run `emit` also for elements whose amount is 0.
    """

    count: int
    parameters: tuple[str, ...]
    places: tuple[Place, ...]
    tail: tuple[bytes, ...]
    amount: str
    emit: str = ""
    total: str = ""
    functions: str = ""
    chosen: bool = False
    bytes: str = ""
    load: str = "0"
    rest: bool = False

    def passes(self, work: WorkspaceLayout) -> tuple[Pass, ...]:
        sums = work.take(8 * tiles(self.count))
        counting = self.counting(sums)
        return (counting, self.emitting(sums)) if self.emit else (counting,)

    def counting(self, sums: Place) -> Pass:
        """Return the pass that writes the counts before each tile to `sums`, and the sum of all to `total`."""
        return self._pass(_COUNT.replace("@total", self.total), sums, scratch=HEAD)

    def emitting(self, sums: Place, step: int = 1) -> Pass:
        """Return the pass that writes the selected elements, from the counts in `sums`, which are `step` apart."""
        return self._pass(_EMIT_CHOSEN if self.chosen else _EMIT, sums, step)

    def _pass(self, body: str, sums: Place, step: int = 1, scratch: int = 0) -> Pass:
        names = {
            "@whole": _WHOLE if self.bytes else "false",
            "@filled": "~0u" if self.rest else "__ballot_sync(~0u, mine != 0)",
            "@bytes": self.bytes or "(const u8*)0",
            "@amount": self.amount,
            "@load": self.load,
            "@emit": self.emit,
        }
        for name, text in names.items():
            body = body.replace(name, text)
        addresses = self.parameters[: len(self.places)]
        values = self.parameters[len(self.places) :]
        last = ["char* scratch"] if scratch else []
        declared = ", ".join([*addresses, "i64* sums", *values, "i64 n, i64 sums_step", *last])
        text = f"""{self.functions}{_SUM}{_FLAGS}
extern "C" __global__ void __launch_bounds__({_THREADS}) run({declared}) {{{body}}}
"""
        grid = (tiles(self.count), 1, 1)
        program = KernelProgram(text, grid, _THREADS, (*self.tail, i64(self.count), i64(step)), scratch)
        return Pass(program, (*self.places, sums))


def tiles(count: int) -> int:
    return blocks(count, TILE)[0]


_SUM = """
__device__ __forceinline__ i64 counted_before(i64 x, i64* warps, i64& all) {  // over the block; its sum in `all`
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, count = blockDim.x >> 5;
  i64 sum = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const i64 other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == 31) warps[warp] = sum;
  __syncthreads();
  i64 before = 0;
  all = 0;
  for (int w = 0; w < count; ++w) { if (w < warp) before += warps[w]; all += warps[w]; }
  __syncthreads();
  return before + sum - x;
}
"""
_FLAGS = """
__device__ __forceinline__ u32 flags_of(const u8* row) {  // of 32 bytes, which of them are not zero
  u32 flags = 0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Vector<u32, 4> words = vectors<4>((const u32*)row)[h];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const u32 tops = ((words.v[w] & 0x7f7f7f7fu) + 0x7f7f7f7fu | words.v[w]) >> 7 & 0x01010101u;
      flags |= (tops * 0x01020408u >> 24 & 15) << (h * 16 + w * 4);
    }
  }
  return flags;
}
"""
_WHOLE = "blockIdx.x * 8192ll + 8192 <= n && (u64)(@bytes) % 16 == 0"
_COUNT = """
  __shared__ i64 warps[8];
  __shared__ bool last;
  i64 mine = 0, all;
  if (@whole) {
    mine = __popc(flags_of(@bytes + blockIdx.x * 8192ll + threadIdx.x * 32));
  } else {
#pragma unroll 8
    for (int j = 0; j < 32; ++j) {
      const i64 i = blockIdx.x * 8192ll + j * 256 + threadIdx.x;
      if (i < n) mine += @amount;
    }
  }
  counted_before(mine, warps, all);
  u32* const done = (u32*)scratch;
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = all;
    __threadfence();
    last = atomicAdd(done, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  i64 total = 0;
  for (i64 start = threadIdx.x * 8; start < gridDim.x + threadIdx.x * 8; start += 2048) {
    i64 each[8], own = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) { each[k] = start + k < gridDim.x ? __ldcg(sums + start + k) : 0; own += each[k]; }
    i64 before = total + counted_before(own, warps, all);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (start + k < gridDim.x) sums[start + k] = before;
      before += each[k];
    }
    total += all;
  }
  if (threadIdx.x == 0) { *done = 0; @total }
"""
_EMIT = """
  __shared__ i64 warps[8];
  i64 whole = sums[blockIdx.x * sums_step], all;
  for (int part = 0; part < 4; ++part, whole += all) {
    const i64 start = blockIdx.x * 8192ll + part * 2048 + threadIdx.x * 8;
    i64 amounts[8], mine = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const i64 i = start + j;
      amounts[j] = i < n ? @amount : 0;
      mine += amounts[j];
    }
    i64 before = whole + counted_before(mine, warps, all);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const i64 i = start + j, amount = amounts[j];
      if (i < n) { @emit }
      before += amount;
    }
  }
"""
_EMIT_CHOSEN = """
  __shared__ i64 warps[8];
  const int lane = threadIdx.x & 31;
  const i64 first = blockIdx.x * 8192ll + (threadIdx.x >> 5) * 1024 + lane;
  u32 mine = 0;  // of the row of 32 elements that has this lane's number, a bit for each
  if (@whole) {
    mine = flags_of(@bytes + blockIdx.x * 8192ll + threadIdx.x * 32);
  } else {
#pragma unroll 8
    for (int j = 0; j < 32; ++j) {
      const i64 i = first + j * 32;
      const u32 row = __ballot_sync(~0u, i < n && @amount);
      if (lane == j) mine = row;
    }
  }
  i64 all;
  const i64 begin = sums[blockIdx.x * sums_step] + counted_before(__popc(mine), warps, all);
  auto load = [&](i64 at) { return @load; };
  const u32 filled = @filled;
  for (int some = 0; some < 32; some += 8) {
    if (!(filled >> some & 255)) continue;
    decltype(load(0)) those[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const u32 row = __shfl_sync(~0u, mine, some + j);
      those[j] = load(row >> lane & 1 ? first + (some + j) * 32 : 0);
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const i64 i = first + (some + j) * 32, from = __shfl_sync(~0u, begin, some + j);
      const u32 row = __shfl_sync(~0u, mine, some + j);
      const i64 amount = row >> lane & 1, before = from + __popc(row & ((1u << lane) - 1));
      const auto loaded = those[j];
      if (i < n) { @emit }
    }
  }
"""
