"""Windows over spatial dims as kernels see them: parameters of windows.cuh, for pooling and convolution.

Operands are (N, C, spatial ...) of one to three spatial dims; kernels see three, the first of them of size 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from flambeau.core.errors import NotSupportedError
from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.layout_parameters import blocks, file, i64
from flambeau.driver.cuda.device.program import KernelProgram, c_name

Ints = Sequence[int]
_DIMS = 3
_WIDE = 1 << 31


@dataclass(frozen=True, slots=True)
class Lattice:
    """The positions of pooling windows; each field has one int for each spatial dimension.

    The windows of adaptive pooling follow from size and count.
    """

    size: Ints
    count: Ints
    kernel: Ints
    stride: Ints
    padding: Ints
    dilation: Ints

    @classmethod
    def adaptive(cls, size: Ints, count: Ints) -> Lattice:
        ones = (1,) * len(size)
        return cls(size, count, ones, ones, (0,) * len(size), ones)

    def kernel_of(self, dim: int) -> int:
        """Return the window size in one of the three dimensions of kernels."""
        return self._rows()["kernel"][dim]

    @property
    def taps(self) -> int:
        return prod(self.kernel)

    def regular(self) -> bool:
        """Return True if there are as many windows as fit into the input."""
        each = zip(self.size, self.padding, self.dilation, self.kernel, self.stride, strict=True)
        return [*self.count] == [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, p, d, k, s in each]

    def pack(self) -> bytes:
        """Return the lattice as packed kernel parameters.

        Raises:
            NotSupportedError: If a dimension with its padding has more positions than a kernel can count.
        """
        numbers = [n for row in self._rows().values() for n in row]
        padded = [n + 2 * p for n, p in zip(self.size, self.padding, strict=True)]
        if max(*numbers, *padded) >= _WIDE:
            raise NotSupportedError(f"windows over a dimension of more than {_WIDE - 1} elements on a GPU")
        return pack(f"<{len(numbers)}i", *numbers)

    def constants(self) -> str:
        """Return C++ that makes all fields except sizes and counts constants, which saves loops and divisions."""
        rows = list(self._rows().items())[2:]
        return "  " + " ".join([f"w.{name}[{d}] = {n};" for name, row in rows for d, n in enumerate(row)])

    def inside(self) -> bool:
        """Return True if no window reaches beyond an edge."""
        each = zip(self.size, self.count, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return all(p == 0 and (m - 1) * s + d * (k - 1) < n for n, m, k, s, p, d in each)

    def _rows(self) -> dict[str, Ints]:
        lead = _DIMS - len(self.size)
        rows = ("size", 1), ("count", 1), ("kernel", 1), ("stride", 1), ("pad", 0), ("dilation", 1)
        values = (self.size, self.count, self.kernel, self.stride, self.padding, self.dilation)
        return {name: (one,) * lead + tuple(row) for (name, one), row in zip(rows, values, strict=True)}


def view(x: Meta) -> bytes:
    """Return a `View` of an operand (N, C, spatial ...)."""
    lead = _DIMS - (x.ndim - 2)
    even = x.shape[0] == 1 or x.strides[0] == x.shape[1] * x.strides[1]
    return i64(*x.strides[:2], *(0,) * lead, *x.strides[2:], x.shape[1], even)


def program(
    body: str, types: dict[str, str], operands: str, parameters: Sequence[tuple[str, bytes]], count: int,
    headers: Sequence[str] = ("windows.cuh",), lanes: int = 1,
) -> KernelProgram:  # fmt: skip
    """Return a kernel with one thread (or `lanes` threads) for each element.

    Args:
        body: C++ statements for element `i`, of the index type `I`.
        types: Name -> C++ type, for typedefs.
        operands: C++ declarations of the addresses.
        parameters: C++ declarations of the other parameters, with their bytes.
        count: Number of elements.
        headers: Files that the kernel includes.
        lanes: Number of threads that share an element.
    """
    wide = count * lanes >= _WIDE
    number = "u64" if wide else "u32"
    names = "\n".join(f"typedef {kind} {name};" for name, kind in types.items())
    declared = ", ".join([operands, *[name for name, _ in parameters], "i64 n"])
    text = f"""
typedef {number} I;
{"".join(file(name) for name in headers)}
{names}
extern "C" __global__ void __launch_bounds__(256) run({declared}) {{
  const I i = thread_number<I>() / {lanes};
  if (i >= n) return;
{body}
}}
"""
    return KernelProgram(text, blocks(count * lanes), 256, (*[value for _, value in parameters], i64(count)))


def element(meta: Meta) -> str:
    return c_name(meta.dtype)
