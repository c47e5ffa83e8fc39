"""Snapshots: the state and the history of allocators, in the form that PyTorch's own memory viewer reads.

A snapshot is a dictionary: `segments`, each with its blocks, and `device_traces`, one list of events per device.
Sizes are in bytes, times in microseconds. `frames` are lists of {"filename", "line", "name"}, innermost first;
they are empty if they were not recorded.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from flambeau.core.host.gc_pause import without_collections
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.blocks import Block, Pool
from flambeau.runtime.memory.log_entries import SMALL
from flambeau.runtime.memory.private_pool import NOBODY, PoolId
from flambeau.runtime.memory_reports.traces import MemoryTrace, Parts, trace_of


def snapshot(
    allocators: Sequence[CachingAllocator], pool: PoolId | None = None, traces: bool = True
) -> dict[str, Any]:
    """Return the state of these devices' allocators, or of one MemPool if its id is given."""
    found = _state(allocators, pool)
    traces_of = [_trace(allocator, pool).dictionaries() if traces else [] for allocator in allocators]
    return {"segments": found.pop("segments"), "device_traces": traces_of, **found}


def dump(allocators: Sequence[CachingAllocator]) -> Iterator[bytes | memoryview]:
    """Yield the pickle of a snapshot in parts. The snapshot is taken before the first part is requested."""
    state = _state(allocators)
    return _pickle_state(state, [_trace(allocator) for allocator in allocators])


def _pickle_state(state: dict[str, Any], traces: Sequence[MemoryTrace]) -> Iterator[bytes | memoryview]:
    """Yield the pickle of a state. Traces are first, because early objects have short numbers."""
    parts = Parts()
    yield parts.head + pickle.EMPTY_DICT + parts.to_pickle("device_traces") + pickle.EMPTY_LIST
    for trace in traces:
        yield pickle.EMPTY_LIST
        yield from trace.to_pickle(parts)
        yield pickle.APPEND
    yield pickle.SETITEM
    for name, value in state.items():
        yield parts.to_pickle(name) + parts.to_pickle(value) + pickle.SETITEM
    yield pickle.STOP


def _state(allocators: Sequence[CachingAllocator], pool: PoolId | None = None) -> dict[str, Any]:
    """Return a snapshot without traces."""
    for allocator in allocators:
        allocator.log_snapshot()
    return {
        "segments": [segment for allocator in allocators for segment in segments(allocator, pool)],
        "allocator_settings": settings(allocators[0]) if allocators else {},
        "external_annotations": _labels(allocators),
        "device_memory": [_memory(allocator) for allocator in allocators],
    }


def _memory(allocator: CachingAllocator) -> dict[str, int]:
    """Return a device's capacity and how much of it this process can reserve. PyTorch's snapshots lack both."""
    free, total = allocator.context.driver.mem_info(allocator.context.driver_index)
    return {"total": total, "usable": min(allocator.limit or total, free + allocator.reserved_bytes())}


def _labels(allocators: Sequence[CachingAllocator]) -> list[dict[str, Any]]:
    """Return the ranges that the program named during the recording, which covers all devices."""
    recording = allocators[0].recording if allocators else None
    return [] if recording is None or recording.labels is None else list(recording.labels.entries)


def settings(allocator: CachingAllocator) -> dict[str, Any]:
    """Return an allocator's settings, under PyTorch's names."""
    policy = allocator.policy
    steps = policy.divisions * 16 if len(policy.divisions) == 1 else policy.divisions
    return {
        "PYTORCH_CUDA_ALLOC_CONF": policy.text,
        "PYTORCH_ALLOC_CONF": policy.text,
        "max_split_size": policy.max_split or -1,
        "garbage_collection_threshold": policy.collect_above,
        "expandable_segments": policy.expandable,
        "per_process_memory_fraction": policy.fraction,
        "roundup_power2_divisions": {str(1 << i): n for i, n in enumerate(steps)},
    }


def segments(allocator: CachingAllocator, pool: PoolId | None = None) -> list[dict[str, Any]]:
    """Return each segment with its blocks, by address."""
    with allocator.lock, without_collections():
        look = _Look(allocator)
        found = [_segment(blocks, look) for blocks in allocator.segments()]
    if pool is not None:
        found = [segment for segment in found if segment["segment_pool_id"] == pool]
    return sorted(found, key=lambda segment: segment["address"])


class _Look:
    """The state of an allocator's blocks at one moment."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self.index = allocator.context.index
        self.names = _Names(allocator)
        self._allocator = allocator
        self._waiting, self._free = allocator.waiting(), allocator.free_blocks()

    def is_expandable(self, block: Block) -> bool:
        return self._allocator.is_expandable(block.ptr)

    def state(self, block: Block) -> str:
        if block in self._free:
            return "inactive"
        return "active_awaiting_free" if block in self._waiting else "active_allocated"


def _segment(blocks: list[Block], look: _Look) -> dict[str, Any]:
    first = blocks[0]
    shown = [_block(block, look.state(block)) for block in blocks]
    by_state = {state: [b for b in shown if b["state"] == state] for state in _STATES}
    active, awaiting = by_state["active_allocated"], by_state["active_awaiting_free"]
    return {
        "device": look.index,
        "address": first.ptr,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block["size"] for block in active),
        "active_size": sum(block["size"] for block in active + awaiting),
        "requested_size": sum(block["requested_size"] for block in active),
        "stream": look.names.stream(first.stream),
        "segment_type": "small" if first.pool.kind == SMALL else "large",
        "segment_pool_id": pool_id(first.pool),
        "is_expandable": look.is_expandable(first),
        "frames": [],
        "blocks": shown,
    }


_STATES = ("active_allocated", "active_awaiting_free", "inactive")


def _block(block: Block, state: str) -> dict[str, Any]:
    shown = {
        "address": block.ptr,
        "size": block.size,
        "requested_size": 0 if state == "inactive" else block.requested,
        "state": state,
        "frames": [],
    }
    if block.frames is not None and state != "inactive":
        frames = shown["frames"] = block.frames.frames()
        shown["history"] = [
            {"addr": block.ptr, "real_size": block.requested, "frames": frames}
        ]  # for readers that expect the form of PyTorch 2.0
    return shown


def pool_id(pool: Pool) -> PoolId:
    return NOBODY if pool.private is None else pool.private.id


def trace(
    allocator: CachingAllocator, pool: PoolId | None = None, most: int = 0, orders: bool = False
) -> list[dict[str, Any]]:
    """Return the allocator's events, as far back as its history reaches, or the latest `most` entries.

    `orders` is for replays. It adds {"action": "order", "after": stream}, which PyTorch's readers do not know,
    for each stream that is ordered after another, and omits nothing.
    """
    return _trace(allocator, pool, most, orders).dictionaries()


def _trace(
    allocator: CachingAllocator, pool: PoolId | None = None, most: int = 0, orders: bool = False
) -> MemoryTrace:
    with allocator.lock:
        columns, recording = allocator.history(), allocator.recording
    skip = frozenset() if recording is None or orders else recording.skip
    found = trace_of(columns.at(slice(-most, None)), _Names(allocator).stream, pool, skip, orders)
    return found if recording is None else found.latest(recording.max_entries)


class _Names:
    """The driver's native stream handles, each requested once."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self._driver = allocator.context.backing
        self._known: dict[int, int] = {0: 0}

    def stream(self, handle: int) -> int:
        found = self._known.get(handle)
        if found is None:
            try:
                found = self._driver.stream_native(handle)
            except RuntimeError:  # the stream was destroyed
                found = handle
            self._known[handle] = found
        return found
