"""Layouts as parameters, element types and source files, shared by the builders of indexing, joining and sorting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod

from flambeau.core.meta import Meta
from flambeau.core.tracing.symbols import pack
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk, walk_dims
from flambeau.driver.cuda.device.program import SOURCES

THREADS = 256
_CARRIERS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "Vector<u64, 2>"}


@cache
def file(name: str) -> str:
    """Return the text of a CUDA C++ file."""
    return (SOURCES / name).read_text()


def carrier(itemsize: int) -> str:
    """Return the C++ type of an element that is moved but not computed with."""
    return _CARRIERS[itemsize]


def whole_word(counts: Sequence[int]) -> int:
    """Return the largest word size, up to 16 bytes, that divides all these numbers of bytes."""
    word = 16
    while any(count % word for count in counts):
        word //= 2
    return word


class Walked:
    """The layouts of several operands over one shape, for kernels that iterate over its elements.

    Args:
        ordered: Number elements in the first operand's memory order instead of row-major order.

    Attributes:
        kind: The C++ type of the kernel's parameter `value`.
    """

    def __init__(self, shape: Sequence[int], strides: Sequence[Sequence[int]], ordered: bool = False) -> None:
        self.count = prod(shape)
        # a tensor without elements is not iterated
        dims = walk_dims(shape, strides, ordered) if self.count else walk_dims((), [()] * len(strides))
        self.wide = is_wide(dims)
        self.value = pack_walk(dims, self.wide)
        self.kind = f"{'WideWalk' if self.wide else 'Walk'}<{len(dims)}, {len(strides)}>"
        self.index = "i64" if self.wide else "u32"
        self.operands = len(strides)

    def locate(self, at: str, name: str) -> str:
        """Return C++ that declares `name` as the offsets of element `at` in the parameter `walk_{name}`."""
        return f"{self.index} {name}[{self.operands}]; walk_{name}.locate(({self.index})({at}), {name});"

    def parameter(self, name: str) -> str:
        return f"{self.kind} walk_{name}"


def i64(*values: int) -> bytes:
    return pack(f"<{len(values)}q", *values)


def blocks(count: int, per_block: int = THREADS) -> tuple[int, int, int]:
    return (max(1, -(-count // per_block)), 1, 1)


def without(strides: Sequence[int], dim: int) -> tuple[int, ...]:
    """Return the strides with 0 for dimension `dim`."""
    return tuple([0 if d == dim else s for d, s in enumerate(strides)])


def vector_like(meta: Meta) -> Meta:
    """Return a 0-dim meta as a vector of one element; other metas unchanged."""
    return meta if meta.ndim else meta.with_(shape=(1,), strides=(1,))
