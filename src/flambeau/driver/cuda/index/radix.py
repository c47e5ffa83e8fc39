"""`Radix`: the passes that sort keys stably, with each key's former position."""

from __future__ import annotations

from dataclasses import dataclass

from flambeau.core.errors import NotSupportedError
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.layout_parameters import THREADS, blocks, file, i64
from flambeau.driver.cuda.codegen.multi_kernel import Pass, WorkspaceLayout
from flambeau.driver.cuda.device.program import KernelProgram

Place = tuple[int, int]

_SWEEPERS = 512
_SMALL = 2048  # the most keys of one row that one block sorts in shared memory
_MOST = (1 << 32) - 1  # the maximum number of elements, because positions are 32-bit numbers
_NARROW_STATUS = 1 << 30  # the maximum number of elements that 30 bits count


@dataclass(frozen=True, slots=True)
class _Digit:
    shift: int
    by_row: bool


class Radix:
    """A radix sort of `count` keys. Its memory is the first part of a workspace.

    A pass reads the raw keys from `source`. After `passes` passes `keys` holds the sorted keys and `values` their
    former positions, counted over all rows. A pass returns early if all keys have the same digit. One block sorts a
    short single row.

    Args:
        wide: True if raw keys have 64 bits, else 32.
        bits: Number of bits of an order.
        order: C++ expression for the order of `raw`, an unsigned integer by which keys are sorted.
        functions: C++ functions that `order` calls.
        row: Number of elements of a row; each row is sorted separately.
        places: False if no caller needs the keys' former positions; there is then only one row.
    """

    def __init__(
        self,
        work: WorkspaceLayout,
        count: int,
        wide: bool,
        bits: int,
        order: str = "raw",
        functions: str = "",
        row: int = 0,
        places: bool = True,
    ) -> None:
        if count > _MOST:
            raise NotSupportedError(f"sorting more than {_MOST} elements on a GPU")
        self.count = count
        self.kind = "u64" if wide else "u32"
        self._order, self._functions, self._row = order, functions, row or max(count, 1)
        self._items = 8 if wide else 16
        self._digits = [_Digit(shift, False) for shift in range(0, bits, 8)]
        rows = count // self._row if count else 1
        self._digits += [_Digit(shift, True) for shift in range(0, (rows - 1).bit_length(), 8)]
        size = 8 if wide else 4
        self._places = places
        if count <= _SMALL and rows == 1:
            self.zeroed = work.nbytes
            self.source, self.keys = work.take(count * size), work.take(count * size)
            self.values = work.take(count * 4 * places)
            self.passes = [self._sort_in_one_block()]
            return
        number = len(self._digits)
        self._tiles = -(-count // (_SWEEPERS * self._items))
        self._status = "u32" if count < _NARROW_STATUS else "u64"
        status = self._tiles * 256 * (4 if self._status == "u32" else 8)
        self._counts = work.take(number * 1024)
        self._counters = work.take(number * 4)
        self._moves = work.take((number + 1) * 8)
        self._statuses = [work.take(status) for _ in range(number)]
        self.zeroed = work.nbytes
        keys = [work.take(count * size), work.take(count * size)]
        values = [work.take(count * 4 * places) for _ in range(2)]
        self.source = keys[0]
        self._keys, self._values = keys, values
        self._last = number % 2  # the buffer that holds the result if no pass is skipped
        self.keys, self.values = keys[self._last], values[self._last]
        self.passes = [self._count(), self._scan(), *[self._sweep(n) for n in range(number)], self._settle()]

    def _head(self) -> str:
        return (
            f"{file('sorting.cuh')}\n{self._functions}\ntypedef {self.kind} K;\n"
            f"struct Order {{ __device__ __forceinline__ K operator()(K raw) const {{ return {self._order}; }} }};\n"
        )

    def _sort_in_one_block(self) -> Pass:
        """Return the launch that sorts keys and their positions by a bitonic network."""
        text = f"""{self._head()}
extern "C" __global__ void __launch_bounds__({_SMALL // 2}) run(const K* source, K* keys, u32* values, i64 n) {{
  __shared__ K order[{_SMALL}];
  __shared__ u32 at[{_SMALL}];
  u32 size = 2;
  while (size < n) size *= 2;
  for (u32 i = threadIdx.x; i < size; i += {_SMALL // 2}) {{
    order[i] = i < n ? Order()(source[i]) : (K)~(K)0;
    at[i] = i;
  }}
  for (u32 run_ = 2; run_ <= size; run_ *= 2)
    for (u32 apart = run_ / 2; apart; apart /= 2) {{
      __syncthreads();
      const u32 i = threadIdx.x / apart * apart * 2 + threadIdx.x % apart, j = i + apart;
      if (j < size) {{
        const K a = order[i], b = order[j];
        const u32 p = at[i], q = at[j];
        if ((a > b || (a == b && p > q)) == !(i & run_)) {{
          order[i] = b; order[j] = a;
          at[i] = q; at[j] = p;
        }}
      }}
    }}
  __syncthreads();
  for (u32 i = threadIdx.x; i < n; i += {_SMALL // 2}) {{
    keys[i] = source[at[i]];
    {"values[i] = at[i];" if self._places else ""}
  }}
}}
"""
        program = KernelProgram(text, (1, 1, 1), _SMALL // 2, (i64(self.count),), name="radix_block")
        return Pass(program, (self.source, self.keys, self.values))

    def _count(self) -> Pass:
        number = len(self._digits)
        text = f"""{self._head()}
extern "C" __global__ void __launch_bounds__(256) run(const K* keys, u32* counts, Digits<{number}> digits, i64 n) {{
  count_digits<K, {number}>(keys, counts, digits, n, Order());
}}
"""
        digits = pack(
            f"<q{2 * number}i", self._row, *[d.shift for d in self._digits], *[d.by_row for d in self._digits]
        )
        digits += bytes(-len(digits) % 8)
        grid = (min(blocks(self.count, THREADS * 16)[0], 1056), 1, 1)
        return Pass(
            KernelProgram(text, grid, THREADS, (digits, i64(self.count)), name="radix_count"),
            (self.source, self._counts),
        )

    def _scan(self) -> Pass:
        text = f"""{file("sorting.cuh")}
extern "C" __global__ void __launch_bounds__(256) run(u32* counts, Move* moves, i64 digits, i64 n) {{
  plan_moves(counts, moves, digits, n);
}}
"""
        program = KernelProgram(
            text, (1, 1, 1), 256, (i64(len(self._digits)), i64(self.count)), name="radix_plan"
        )
        return Pass(program, (self._counts, self._moves))

    def _sweep(self, n: int) -> Pass:
        kinds = f"K, {self._status}, {self._items}, {str(self._places).lower()}"
        text = f"""{self._head()}
extern "C" __global__ void __launch_bounds__({_SWEEPERS}, 2) run(K* keys0, u32* values0, K* keys1,
    u32* values1, const Move* move, const u32* bases, {self._status}* status, u32* counter, Digit how, i64 n) {{
  if (move->skipped) return;
  const bool back = move->source;
  sweep<{kinds}>(back ? keys1 : keys0, back ? values1 : values0, back ? keys0 : keys1,
    back ? values0 : values1, bases, status, counter, how, move->first, n, Order());
}}
"""
        digit = self._digits[n]
        places = (
            *self._buffers(), _plus(self._moves, 8 * n), _plus(self._counts, 1024 * n), self._statuses[n],
            _plus(self._counters, 4 * n),
        )  # fmt: skip
        how = pack("<qii", self._row, digit.shift, digit.by_row)
        return Pass(
            KernelProgram(text, (self._tiles, 1, 1), _SWEEPERS, (how, i64(self.count)), name="radix_sweep"),
            places,
        )

    def _settle(self) -> Pass:
        """Copy the result to the expected buffer, if an odd number of passes was skipped."""
        here, there = 1 - self._last, self._last
        text = f"""{file("sorting.cuh")}
extern "C" __global__ void __launch_bounds__(256) run({self.kind}* keys0, u32* values0,
    {self.kind}* keys1, u32* values1, const Move* move, i64 n) {{
  if (move->source == {there} && {"!move->first" if self._places else "true"}) return;
  for (i64 i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) {{
    if (move->source != {there}) keys{there}[i] = keys{here}[i];
    {f"values{there}[i] = move->first ? (u32)i : values{here}[i];" if self._places else ""}
  }}
}}
"""
        grid = (min(blocks(self.count)[0], 2112), 1, 1)
        places = (*self._buffers(), _plus(self._moves, 8 * len(self._digits)))
        return Pass(KernelProgram(text, grid, THREADS, (i64(self.count),), name="radix_settle"), places)

    def _buffers(self) -> tuple[Place, Place, Place, Place]:
        return self._keys[0], self._values[0], self._keys[1], self._values[1]


def _plus(place: Place, nbytes: int) -> Place:
    return (place[0], place[1] + nbytes)
