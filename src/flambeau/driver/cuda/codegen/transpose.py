"""The turned class of the pointwise template: memory is read along one dimension and written along another.

Square tiles go through shared memory, so that neighbouring threads read neighbouring elements and write them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from flambeau.core.layout import Dims
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk
from flambeau.driver.cuda.device.program import Arguments, c_name

_THREADS = 256
_LEAST = 16  # a shorter dimension does not fill a tile


@dataclass(frozen=True, slots=True)
class TransposedDims:
    """The dimension with the input's smallest stride, the one with the output's smallest stride, and the remaining
    ones.
    """

    read: tuple[int, tuple[int, ...]]
    written: tuple[int, tuple[int, ...]]
    rest: Dims


def find_transpose(dims: Dims) -> TransposedDims | None:
    """Return the two dimensions that a tiled transpose exchanges, for an output and an input.

    Returns None if both run along one dimension, or if tiles would be mostly empty.
    """
    written = dims[-1]
    if written[1][0] != 1 or written[1][1] in (0, 1) or written[0] < _LEAST:
        return None
    for place, dim in enumerate(dims[:-1]):
        if dim[1][1] == 1 and dim[0] >= _LEAST:
            return TransposedDims(dim, written, [*dims[:place], *dims[place + 1 : -1]])
    return None


def kernel(
    how: TransposedDims, source: Meta, arguments: Arguments, values: list[str], at: int
) -> tuple[str, int, list[bytes]]:
    """Return the kernel's text, grid, and parameters after the constants. Input `at` is read transposed."""
    side = 64 if source.itemsize <= 4 else 32
    (rows, (down, _)), (columns, (_, across)) = how.read, how.written
    across_tiles, down_tiles = -(-columns // side), -(-rows // side)
    count = prod([size for size, _ in how.rest])
    wide = is_wide([how.read, how.written, *how.rest])
    rest = how.rest or [(1, (0, 0))]
    walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
    arguments.add(f"{walk}<{len(rest)}, 2>", "rest")
    for name in ("rows", "columns", "down", "across"):
        arguments.add("i64", name)
    values[at] = f"tile[threadIdx.x % {side}][y]"
    tail = [pack_walk(rest, wide), *[pack("<q", n) for n in (rows, columns, down, across)]]
    text = f"""
extern "C" __global__ void __launch_bounds__({_THREADS}) run({", ".join(arguments.declared)}) {{
  constexpr int S = {side}, STEP = {_THREADS} / S;
  __shared__ {c_name(source.dtype)} tile[S][S + 1];
  const u32 tiles_across = (u32)((columns + S - 1) / S), tiles_down = (u32)((rows + S - 1) / S);
  const u32 tile_column = blockIdx.x % tiles_across, left = blockIdx.x / tiles_across;
  const i64 row = (i64)(left % tiles_down) * S, column = (i64)tile_column * S;
  {index} o[2];
  rest.locate(({index})(left / tiles_down), o);
  const int x = threadIdx.x % S, y0 = threadIdx.x / S;
  if (row + x < rows) {{
#pragma unroll
    for (int y = y0; y < S; y += STEP)
      if (column + y < columns) tile[y][x] = p{at}[o[1] + (column + y) * across + row + x];
  }}
  __syncthreads();
  if (column + x < columns) {{
#pragma unroll
    for (int y = y0; y < S; y += STEP)
      if (row + y < rows) out[o[0] + (row + y) * down + column + x] = compute(0, {", ".join(values)});
  }}
}}
"""
    return text, across_tiles * down_tiles * count, tail
