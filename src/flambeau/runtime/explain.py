"""What an out-of-memory error says: PyTorch's text, then where the memory is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau.core.sites import place, source
from flambeau.runtime.blocks import Block, Pool
from flambeau.runtime.statistics import ALL, ALLOCATED_BYTES, format_size

if TYPE_CHECKING:
    from flambeau.runtime.allocator import CachingAllocator

_LARGEST = 5
_STREAMS = 6


def out_of_memory(allocator: CachingAllocator, pool: Pool, size: int) -> str:
    """Called when everything that could be released was. `size` is the rounded request."""
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
    lines = [head, *_state(allocator, pool, size, reserved - allocated), _advice(allocator, size, free)]
    if allocator.remedy is not None:
        lines.append(allocator.remedy(allocator, pool, size))
    return "\n".join(line for line in lines if line)


def _state(allocator: CachingAllocator, pool: Pool, size: int, unallocated: int) -> list[str]:
    mine, any_stream = allocator.largest_hole(pool.stream), allocator.largest_hole()
    lines = [
        f"The request was for {format_size(size)} on {_stream(allocator, pool.stream)}; the largest free hole of any "
        f"stream is {format_size(any_stream)}, of this one {format_size(mine)}."
    ]
    if unallocated:
        share = 1 - any_stream / unallocated
        lines[0] += f" Fragmentation: {share:.0%} of what is unallocated lies outside of the largest hole."
    waiting = allocator.waiting()
    if waiting:
        held = sum(block.size for block in waiting)
        lines.append(
            f"{format_size(held)} in {len(waiting)} blocks are freed, but wait for streams that record_stream named."
        )
    return [*lines, _by_stream(allocator), *_largest(allocator, waiting)]


def _by_stream(allocator: CachingAllocator) -> str:
    """Bytes reserved and free, by stream, where there are several."""
    held: dict[int, list[int]] = {}
    unused = allocator.free_blocks()
    for blocks in allocator.segments():
        for block in blocks:
            sums = held.setdefault(block.stream, [0, 0])
            sums[0] += block.size
            sums[1] += block.size * (block in unused)
    if len(held) < 2:
        return ""
    most = sorted(held.items(), key=lambda item: -item[1][0])
    texts = [
        f"{_stream(allocator, handle)} {format_size(nbytes)} ({format_size(free)} of it free)"
        for handle, (nbytes, free) in most[:_STREAMS]
    ]
    if len(most) > _STREAMS:
        texts.append(f"{len(most) - _STREAMS} more")
    return f"Held by stream: {', '.join(texts)}."


def _largest(allocator: CachingAllocator, waiting: set[Block]) -> list[str]:
    unused = allocator.free_blocks() | waiting
    live = [block for blocks in allocator.segments() for block in blocks if block not in unused]
    largest = sorted(live, key=lambda block: -block.size)[:_LARGEST]
    if not largest:
        return []
    lines = ["The largest live tensors:"]
    lines += [f"  {format_size(block.requested):>12}  {_made_by(block)}" for block in largest]
    if allocator.recording is None:
        lines.append("  (torch.cuda.memory._record_memory_history() shows the lines that made them.)")
    return lines


def _made_by(block: Block) -> str:
    site = None if block.frames is None else block.frames.site
    if site is None:
        return f"at {block.ptr:#x}"
    return f"made at {place(site)} in {site[0].co_name}: {source(site)}"


def _stream(allocator: CachingAllocator, handle: int) -> str:
    """By its `cuda_stream`, as programs and snapshots have it."""
    driver = allocator.context.backing
    if handle == driver.stream_default(allocator.context.driver_index):
        return "the default stream"
    try:
        return f"stream {driver.stream_native(handle):#x}"
    except RuntimeError:
        return f"a stream that has ended ({handle})"


def _advice(allocator: CachingAllocator, size: int, free: int) -> str:
    if allocator.limit is not None and allocator.policy.segment_size(size) <= free:
        return (
            "The device has room, but set_per_process_memory_fraction"
            f"({allocator.memory_fraction}) does not allow it: raise the fraction."
        )
    unallocated = allocator.reserved_bytes() - allocator.ledger().current[ALL][ALLOCATED_BYTES]
    if unallocated >= size:
        return (
            "What is reserved but unallocated would be enough, but lies in pieces of segments in use, "
            "or belongs to other streams: free the large tensors before the small ones that were "
            "made after them, or allocate on fewer streams."
        )
    return "Free tensors (del, or leave their function), or make the batch smaller."
