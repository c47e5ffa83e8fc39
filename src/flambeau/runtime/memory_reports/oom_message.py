"""The text of an out-of-memory error: PyTorch's message, then where the memory is."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flambeau.core.callsite import Site, place, source
from flambeau.runtime.memory.allocator_statistics import ALL, ALLOCATED_BYTES, format_size
from flambeau.runtime.memory.blocks import Block, Pool
from flambeau.runtime.memory.resources import DriverMemory

if TYPE_CHECKING:
    from flambeau.runtime.memory.allocator import CachingAllocator

_LARGEST = 5
_STREAMS = 6


class _Held:
    """The blocks of an allocator when a request failed, and the bytes of each stream.

    `live` blocks are in use, `free` ones can be reused, and `waiting` ones are freed but still used by other streams.
    """

    def __init__(self, allocator: CachingAllocator) -> None:
        unused, self.waiting = allocator.free_blocks(), allocator.waiting()
        self.free: list[Block] = []
        self.live: list[Block] = []
        self.by_stream: dict[int, list[int]] = {}
        for blocks in allocator.segments():
            for block in blocks:
                sums = self.by_stream.setdefault(block.stream, [0, 0])
                sums[0] += block.size
                if block in unused:
                    sums[1] += block.size
                    self.free.append(block)
                elif block not in self.waiting:
                    self.live.append(block)

    def free_list(self, pool: Pool) -> list[Block]:
        """Return the free blocks that requests of this pool's MemPool could use, on any stream."""
        return [block for block in self.free if block.pool.private is pool.private]

    def kept_apart(self, pool: Pool) -> list[Block]:
        """Return the free blocks of other MemPools and graphs, which requests of this pool cannot use."""
        mine = (None, pool.private)
        return [block for block in self.free if block.pool.private not in mine and not block.is_split]


def out_of_memory(allocator: CachingAllocator, pool: Pool, size: int) -> str:
    """Return the error of a request that failed after all possible releases.

    `size` is the rounded request. The last refusal is the exception being handled.
    """
    context = allocator.context
    free, total = context.driver.mem_info(context.driver_index)
    reserved = allocator.reserved_bytes()
    allocated = allocator.ledger().current[ALL][ALLOCATED_BYTES]
    segment = allocator.policy.segment_size(size) if allocator.policy.caching else size
    allowed = "" if allocator.limit is None else f"{format_size(allocator.limit)} allowed; "
    head = (
        f"CUDA out of memory. Tried to allocate {format_size(segment)}. "
        f"GPU {context.index} has a total capacity of {format_size(total)} of which "
        f"{format_size(free)} is free. {allowed}"
        f"Of the allocated memory {format_size(allocated)} is allocated by PyTorch, and "
        f"{format_size(reserved - allocated)} is reserved by PyTorch but unallocated."
    )
    held = _Held(allocator)
    lines = [head, *_state(allocator, pool, size, held)]
    last = _refusal(allocator, pool) or _kept_apart(held.kept_apart(pool), segment - free)
    lines.append(last or _advice(allocator, pool, size, held))
    if not last and allocator.oom_advice is not None:
        lines.append(allocator.oom_advice(allocator, pool, size))
    return "\n".join(line for line in lines if line)


def _refusal(allocator: CachingAllocator, pool: Pool) -> str:
    """Return the refusal message of the pool's resource, if the resource is not the device itself."""
    private = pool.private
    given = allocator.source if private is None or private.source is None else private.source
    if isinstance(given, DriverMemory):
        return ""
    whose = "All memory" if private is None else f"The memory of MemPool {private.id}"
    return f"{whose} comes from {type(given).__name__}, which says: {sys.exc_info()[1]}"


def _kept_apart(blocks: Sequence[Block], lacking: int) -> str:
    """Return a suggestion for the case that free memory of other pools would suffice."""
    nbytes = sum(block.size for block in blocks)
    if nbytes < max(lacking, 1):
        return ""
    ids = sorted({block.pool.private.id for block in blocks if block.pool.private is not None})
    return (
        f"{format_size(nbytes)} lie free in other memory pools, {', '.join(map(str, ids))}, which keep them as long as "
        "they live: delete MemPools and CUDA graphs that are needed no longer."
    )


def _state(allocator: CachingAllocator, pool: Pool, size: int, held: _Held) -> list[str]:
    free_blocks = held.free_list(pool)
    largest = max([block.size for block in free_blocks], default=0)
    mine = max([block.size for block in free_blocks if block.stream == pool.stream], default=0)
    kept_apart = "" if pool.private is None else f" in the memory pool {pool.private.id}"
    request = (
        f"The request was for {format_size(size)} on {_stream(allocator, pool.stream)}{kept_apart}; the largest free "
        f"block of any stream{' there' * bool(kept_apart)} is {format_size(largest)}, of this one {format_size(mine)}."
    )
    if free_blocks:
        share = 1 - largest / sum(block.size for block in free_blocks)
        request += f" Fragmentation: {share:.0%} of the free memory is outside of the largest free block."
    lines = [request]
    if held.waiting:
        nbytes = sum(block.size for block in held.waiting)
        until = " until the capture of the CUDA graph has ended" * bool(allocator.context.orders.capturing)
        lines.append(
            f"{format_size(nbytes)} in {len(held.waiting)} blocks are freed, but wait for streams that record_stream "
            f"named{until}."
        )
    return [*lines, _by_stream(allocator, held), *_largest(held.live, allocator.recording is not None)]


def _by_stream(allocator: CachingAllocator, held: _Held) -> str:
    """Return reserved and free bytes by stream as text, if there are several streams."""
    if len(held.by_stream) < 2:
        return ""
    most = sorted(held.by_stream.items(), key=lambda item: -item[1][0])
    texts = [
        f"{_stream(allocator, handle)} {format_size(nbytes)} ({format_size(free)} of it free)"
        for handle, (nbytes, free) in most[:_STREAMS]
    ]
    if len(most) > _STREAMS:
        texts.append(f"{len(most) - _STREAMS} more")
    return f"Held by stream: {', '.join(texts)}."


def _largest(live: Sequence[Block], recorded: bool) -> list[str]:
    """Return the largest tensors, equal ones of one line together, and the lines that allocated most if they differ."""
    texts: dict[Site, str] = {}
    alike: dict[tuple[int, str], list[Block]] = {}
    by_line: dict[str, list[Block]] = {}
    for block in live:
        line = _made_at(block, texts)
        alike.setdefault((block.requested, line), []).append(block)
        by_line.setdefault(line, []).append(block)
    if not alike:
        return []
    lines = ["The largest live tensors:"]
    for (nbytes, line), blocks in sorted(alike.items(), key=lambda item: -item[0][0])[:_LARGEST]:
        times = f"{len(blocks)} x " if len(blocks) > 1 else ""
        lines.append(
            f"  {times + format_size(nbytes):>18}  {f'created at {line}' if line else f'at {blocks[0].ptr:#x}'}"
        )
    if not recorded:
        lines.append("  (torch.cuda.memory._record_memory_history() shows the lines that made them.)")
    by_line.pop("", None)
    if len(alike) > _LARGEST and by_line:
        lines += ["The lines whose tensors hold the most:", *_lines_by_bytes(by_line)]
    return lines


def _made_at(block: Block, texts: dict[Site, str]) -> str:
    """Return the line of the program that allocated the block; "" if it was not recorded. `texts` caches the lines."""
    site: Site | None = None if block.frames is None else block.frames.site
    if site is None:
        return ""
    if site not in texts:
        texts[site] = f"{place(site)} in {site[0].co_name}: {source(site)}"
    return texts[site]


def _lines_by_bytes(by_line: dict[str, list[Block]]) -> list[str]:
    sums = [(sum(block.requested for block in blocks), len(blocks), line) for line, blocks in by_line.items()]
    return [
        f"  {format_size(nbytes):>18}  in {count} tensor{'s' * (count > 1)} of {line}"
        for nbytes, count, line in sorted(sums, key=lambda item: -item[0])[:_LARGEST]
    ]


def _stream(allocator: CachingAllocator, handle: int) -> str:
    """Return a stream's `cuda_stream` value as text, as programs and snapshots show it."""
    driver = allocator.context.backing
    if handle == driver.stream_default(allocator.context.driver_index):
        return "the default stream"
    try:
        return f"stream {driver.stream_native(handle):#x}"
    except RuntimeError:
        return f"a stream that has ended ({handle})"


def _advice(allocator: CachingAllocator, pool: Pool, size: int, held: _Held) -> str:
    context = allocator.context
    free, total = context.driver.mem_info(context.driver_index)
    if size > total:
        return "That is more than the GPU has: make this tensor smaller, or divide it among several GPUs."
    segment = allocator.policy.segment_size(size)
    if allocator.limit is not None and segment <= free:
        least = math.ceil(100 * (allocator.reserved_bytes() + segment) / total) / 100
        return (
            f"The device has room, but set_per_process_memory_fraction({allocator.memory_fraction}) does not allow "
            f"it: raise the fraction to {least} or more."
        )
    if sum(block.size for block in held.waiting) >= size:
        return (
            "What waits would be enough: use these tensors on their own streams, without record_stream, or capture "
            "several smaller graphs."
        )
    if sum(block.size for block in held.free_list(pool)) >= size:
        return (
            "What is free would be enough, but lies in pieces of segments in use, "
            "or belongs to other streams: free the large tensors before the small ones that were "
            "made after them, or allocate on fewer streams."
        )
    return "Free tensors (del, or leave their function), or make the batch smaller."
