"""`Rows`: rows that threads hold in registers, for kernels that read a row more than once: softmax, normalization.

If a row does not fit in a block's registers it is read twice: by the reduction template and by a pointwise pass, which
applies the reduction's result to each element.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from flambeau.core.dtype import bfloat16, dtype, float16, float32
from flambeau.core.layout import Dims
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk, walk_dims
from flambeau.driver.cuda.codegen.layout_parameters import file, i64
from flambeau.driver.cuda.device.program import KernelProgram, c_name, packed_constant
from flambeau.driver.row_shares import is_held, share_row, vector_of


def computing(kind: dtype) -> dtype:
    """Return the dtype that values of `kind` are computed in."""
    return float32 if kind in (float16, bfloat16) else kind


class Rows:
    """The rows of operands of one shape along `dims`. Operand 0 is the output, operand 1 is held in registers.

    Other operands may have any strides.

    Args:
        kind: The dtype to which elements are rounded.
        arrays: Number of values that are held for each element.
        written: Number of the last operands that are also written.

    Attributes:
        kind: The dtype in which the kernel computes.
        fits: True if a row fits in registers.
    """

    def __init__(
        self,
        kind: dtype,
        shape: Sequence[int],
        operands: Sequence[Meta],
        strides: Sequence[Sequence[int]],
        dims: Sequence[int],
        arrays: int = 1,
        written: int = 0,
    ) -> None:
        self.written = written
        kept = [d for d in range(len(shape)) if d not in dims]
        self.operands = operands
        self.along: Dims = _walk_dims(shape, strides, dims, ordered=False)
        self.around: Dims = _walk_dims(shape, strides, kept, ordered=True)
        self.length, self.count = prod([n for n, _ in self.along]), prod([n for n, _ in self.around])
        beside = self.around[-1][1][1] if self.count > 1 else 0
        self.inner = not beside or self.along[-1][1][1] <= beside
        self.vector = self._vector()
        self.threads, self.vectors = self._shared_out()
        self.kind = computing(kind)
        self.fits = is_held(self.vectors * self.vector, self.kind.itemsize, arrays)
        self._steps = (kind, self.kind)

    def _vector(self) -> int:
        """Return the number of elements of one memory access: up to 16 bytes if output and input allow it."""
        vector = vector_of(max(x.itemsize for x in self.operands[:2]))
        while vector > 1 and not (self.inner and self._divides(vector)):
            vector //= 2
        return max(vector, 1)

    def _divides(self, vector: int) -> bool:
        (size, steps), outer = self.along[-1], [*self.along[:-1], *self.around]
        far = [s for _, strides in outer for s in strides[:2]]
        return size % vector == 0 and steps[:2] == (1, 1) and all(s % vector == 0 for s in far)

    def _shared_out(self) -> tuple[int, int]:
        """Return how many threads share a row, a power of two, and how many vectors each of them holds."""
        threads, held = share_row(self.length, self.vector)
        if self.inner:
            return threads, held
        threads, vectors = min(max(threads, 4), 32), -(-self.length // self.vector)
        return threads, -(-vectors // threads)

    def program(self, body: str, functions: str = "", numbers: Sequence[float] = ()) -> KernelProgram:
        """Return the kernel with the statements `body`, which use the names of rows.cuh: `held` of `row`, and operands
        out, x, p2, p3, ...

        `numbers` are passed as doubles k0, k1, ...
        """
        wide = is_wide(self.along, self.around)
        walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
        count, kinds = len(self.operands), [c_name(x.dtype) for x in self.operands]
        const = ["const "] * (count - self.written) + [""] * self.written
        more = "".join([f"{const[at]}{kind}* p{at}, " for at, kind in enumerate(kinds[2:], 2)])
        text = f"""
typedef {kinds[0]} O; typedef {kinds[1]} X; typedef {c_name(self.kind)} C; typedef {index} Index;
__device__ __forceinline__ C number(X x) {{ return to<C>(to<{c_name(self._steps[0])}>(x)); }}
constexpr int OPS = {count}, G = {self.threads}, K = {self.vectors}, V = {self.vector};
constexpr bool INNER = {str(self.inner).lower()};
typedef {walk}<{len(self.around)}, OPS> Around; typedef {walk}<{len(self.along)}, OPS> Along;
{file("rows.cuh")}
{functions}
extern "C" __global__ void __launch_bounds__(THREADS) run(O* out, const X* x, {more}Around around, Along along,
    i64 rows, i64 n{"".join([f", double k{at}" for at in range(len(numbers))])}) {{
  const Row row = my_row(around, rows, n);
  C held[K][V];
  hold(held, x, row, along);
{body}
}}
"""
        together = max(1, 128 // self.threads) if self.inner else 32
        grid = (max(1, -(-self.count // together)), 1, 1)
        tail = (pack_walk(self.around, wide), pack_walk(self.along, wide), i64(self.count), i64(self.length))
        more_tail = [packed_constant(float(value)) for value in numbers]
        return KernelProgram(text, grid, together * self.threads, (*tail, *more_tail))


def _walk_dims(
    shape: Sequence[int], strides: Sequence[Sequence[int]], dims: Sequence[int], ordered: bool
) -> Dims:
    return walk_dims([shape[d] for d in dims], [[s[d] for d in dims] for s in strides], ordered)


class HeldRows(NamedTuple):
    """The computation of an operator whose threads hold rows, as a part of a fused kernel.

    Attributes:
        rows: How threads share the rows.
        held: The inputs that are held: one as `held`, or two as the members x and y of `two`.
        functions: C++ functions that the rest calls.
        statements: C++ that computes numbers of the row, and changes what is held.
        element: The C++ expression of a result, of the held a, or a and b, and of the other inputs b0, b1, ...
        numbers: Numbers k0, k1, ... that the statements use.
    """

    rows: Rows
    held: tuple[int, ...]
    functions: str
    statements: str
    element: str
    numbers: tuple[float, ...] = ()
