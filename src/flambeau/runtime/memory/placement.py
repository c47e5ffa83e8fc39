"""Placements: which free block serves a request. `heap_of` returns the heap of a placement's name.

The contract of the caching allocator names no address: freed memory may serve any later request of its stream's pool. A
program that depends on the choice is wrong, and may pass under one placement and fail under another. So tests run it
under several:

- "default": Flambeau's own order (`heap.py`), which serves requests of one size from a list of blocks of that size.
- "pytorch": the order of PyTorch's CUDACachingAllocator. Blocks join their free neighbours when they are freed, the
  smallest block that fits serves a request, the one at the lowest address first, and no stream takes over another's.
- "random:SEED": any block that fits, and neighbours join or stay apart, both by a seeded generator.

Sizes, segments and splitting are the same for all three (`allocator_config.py`); they are PyTorch's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from flambeau.runtime.memory.allocator_config import Policy
from flambeau.runtime.memory.blocks import Block, Pool
from flambeau.runtime.memory.free_list import FreeList
from flambeau.runtime.memory.heap import Heap
from flambeau.runtime.memory.log_entries import Entry
from flambeau.runtime.memory.private_pool import PrivatePool
from flambeau.runtime.streams.stream_order import StreamClocks

if TYPE_CHECKING:
    from random import Random

DEFAULT = "default"


def check_placement(name: object) -> None:
    """Raise ValueError if there is no placement of this name."""
    _seed_of(name)


def heap_of(placement: str, entries: list[Entry], orders: StreamClocks, index: int) -> Heap:
    """Return a new heap of device `index` that chooses blocks by the named placement.

    Raises:
        ValueError: If there is none.
    """
    seed = _seed_of(placement)
    if seed is not None:
        # imported here: the import takes milliseconds
        rng = import_module("random").Random(f"{seed}:{index}")
        return RandomHeap(entries, orders, index, rng)
    return Heap(entries, orders, index) if placement == DEFAULT else PyTorchHeap(entries, orders, index)


def _seed_of(placement: object) -> int | None:
    name, _, seed = str(placement).partition(":")
    if name == "random" and seed.isascii() and seed.isdigit():
        return int(seed)
    if placement in (DEFAULT, "pytorch"):
        return None
    raise ValueError(
        f"placement={placement!r}: must be default, pytorch or random:SEED, with a whole number as SEED"
    )


class PyTorchHeap(Heap):
    """A heap that chooses blocks as PyTorch's allocator does."""

    __slots__ = ()

    def new_pool(self, stream: int, kind: int, private: PrivatePool | None, policy: Policy) -> Pool:
        pool = super().new_pool(stream, kind, private, policy)
        pool.max_size_classes, pool.free_list = 0, LowestAddressFreeList()
        return pool

    def take_from_other_streams(
        self, pool: Pool, size: int, found: Block | None, policy: Policy
    ) -> Block | None:
        return found

    def reuse_from_other_streams(self, pool: Pool) -> bool:
        return False


class LowestAddressFreeList(FreeList[Block]):
    """A free list that serves a request from the smallest block that fits; of several, the one at the lowest
    address.
    """

    __slots__ = ()

    def best(self, size: int) -> Block | None:
        block = lowest = super().best(size)
        while block is not None and lowest is not None:
            if block.ptr < lowest.ptr:
                lowest = block
            block = block.older
        return lowest

    def take(self, size: int) -> Block | None:
        block = self.best(size)
        if block is not None:
            self.remove(block)
        return block


class RandomHeap(Heap):
    """A heap that chooses free blocks at random, and merges only some of them with their neighbours."""

    __slots__ = ("_rng",)

    def __init__(self, entries: list[Entry], orders: StreamClocks, index: int, rng: Random) -> None:
        super().__init__(entries, orders, index)
        self._rng = rng

    def new_pool(self, stream: int, kind: int, private: PrivatePool | None, policy: Policy) -> Pool:
        pool = super().new_pool(stream, kind, private, policy)
        pool.max_size_classes, pool.free_list = 0, RandomFreeList(self._rng)
        return pool

    def coalesce_block(self, pool: Pool, block: Block) -> None:
        if block.is_split and self._rng.random() < 0.5:
            pool.free_list.add(block)
        else:
            super().coalesce_block(pool, block)

    def coalesce(self, pool: Pool, enough: int | None = None) -> None:
        """Merge all free blocks with their neighbours, so that no request fails that a merged block could serve."""
        super().coalesce(pool, enough)
        for free_block in list(pool.free_list):
            if free_block.is_free:  # a neighbour may have absorbed it
                pool.free_list.remove(free_block)
                super().coalesce_block(pool, free_block)


class RandomFreeList(FreeList[Block]):
    """A free list that serves a request from a random block that fits."""

    __slots__ = ("_rng",)

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng

    def best(self, size: int) -> Block | None:
        fitting = [block for block in self if block.size >= size]
        return self._rng.choice(fitting) if fitting else None

    def take(self, size: int) -> Block | None:
        block = self.best(size)
        if block is not None:
            self.remove(block)
        return block
