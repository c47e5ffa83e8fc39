"""`Compaction`: how many elements of a sequence count, and for each how many count before it, in three passes.

Blocks add up their tiles, one block adds up the blocks, and blocks go over their tiles again with what lies before
each. The order of additions is fixed, and they are of integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from flambeau.driver.cuda.elements import blocks, i64
from flambeau.driver.cuda.passes import Layout, Pass
from flambeau.driver.cuda.program import Program

Place = tuple[int, int]
_TILE = 2048


@dataclass(frozen=True, slots=True)
class Compaction:
    """The three passes over `count` elements.

    parameters: C++ parameters, `places` their addresses, `tail` the bytes of those that are values.
    amount: C++, what element i counts, an i64. emit: C++, run for each element i, of `amount` and `before`.
    total: C++, run by one thread when all is added up, of `total`. functions: C++ before the kernels.
    """

    count: int
    parameters: tuple[str, ...]
    places: tuple[Place, ...]
    tail: tuple[bytes, ...]
    amount: str
    emit: str = ""
    total: str = ""
    functions: str = ""

    def passes(self, work: Layout) -> tuple[Pass, ...]:
        tiles = blocks(self.count, _TILE)[0]
        sums = work.take(8 * tiles)
        steps = [self._pass(_COUNT, tiles, 256, sums), self._pass(_SCAN, 1, 1024, sums, tiles)]
        if self.emit:
            steps.append(self._pass(_EMIT, tiles, 256, sums))
        return tuple(steps)

    def _pass(self, body: str, grid: int, block: int, sums: Place, tiles: int = 0) -> Pass:
        body = body.replace("@amount", self.amount).replace("@emit", self.emit).replace("@total", self.total)
        addresses = self.parameters[: len(self.places)]
        values = self.parameters[len(self.places) :]
        declared = ", ".join([*addresses, "i64* sums", *values, "i64 n", "i64 tiles"])
        text = f"""{self.functions}{_SUM}
extern "C" __global__ void __launch_bounds__({block}) run({declared}) {{{body}}}
"""
        program = Program(text, (grid, 1, 1), block, (*self.tail, i64(self.count), i64(tiles)))
        return Pass(program, (*self.places, sums))


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
_COUNT = """
  __shared__ i64 warps[32];
  i64 mine = 0, all;
  for (int j = 0; j < 8; ++j) {
    const i64 i = blockIdx.x * 2048ll + j * 256 + threadIdx.x;
    if (i < n) mine += @amount;
  }
  counted_before(mine, warps, all);
  if (threadIdx.x == 0) sums[blockIdx.x] = all;
"""
_SCAN = """
  __shared__ i64 warps[32];
  i64 total = 0, all;
  for (i64 start = 0; start < tiles; start += 1024) {
    const i64 at = start + threadIdx.x;
    const i64 before = counted_before(at < tiles ? sums[at] : 0, warps, all);
    if (at < tiles) sums[at] = total + before;
    total += all;
  }
  if (threadIdx.x == 0) { @total }
"""
_EMIT = """
  __shared__ i64 warps[32];
  const i64 start = blockIdx.x * 2048ll + threadIdx.x * 8;
  i64 amounts[8], mine = 0, all;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const i64 i = start + j;
    amounts[j] = i < n ? @amount : 0;
    mine += amounts[j];
  }
  i64 before = sums[blockIdx.x] + counted_before(mine, warps, all);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const i64 i = start + j, amount = amounts[j];
    if (i < n) { @emit }
    before += amount;
  }
"""
