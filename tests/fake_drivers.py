"""Drivers without devices, for tests of the runtime and the race detector."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from flambeau.core.errors import DriverError, OutOfMemoryError
from flambeau.driver.protocol import DeviceProperties, Executable, HostMemory
from flambeau.observe.driver_proxy import Forward

MIB = 1 << 20


class FakeDriver:
    """Memory is a count of bytes; the test completes events."""

    name = "fake"

    def __init__(self, capacity: int = 1 << 40, observes_blocks: bool = False) -> None:
        self.capacity = capacity
        self.observes_blocks = observes_blocks
        self.sizes: dict[int, int] = {}
        self.records: dict[int, tuple[int, int]] = {}  # event: (stream, its clock then)
        self.clock: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.lives: list[tuple[str, int, int, int]] = []
        self.ends: list[list[tuple[int, int]]] = []  # what the events of each block's uses had recorded
        self.internal: list[bool] = []
        self.events = 0
        self.calls = 0
        self.refuse = 0  # how many of the next allocations are refused
        self.wished = False  # that a refusal was, since the test put it back
        self.fail: set[str] = set()  # calls that fail when they are made next
        self._next = 1 << 30

    @property
    def used(self) -> int:
        return sum(self.sizes.values())

    def device_properties(self, index: int) -> DeviceProperties:
        return DeviceProperties("fake", 8, 0, self.capacity, 1)

    def mem_info(self, index: int) -> tuple[int, int]:
        return self.capacity - self.used, self.capacity

    def mem_alloc(self, index: int, nbytes: int) -> int:
        self.calls += 1
        if self.refuse or self.used + nbytes > self.capacity:
            self.wished = self.wished or bool(self.refuse)
            self.refuse = max(0, self.refuse - 1)
            raise OutOfMemoryError("refused")
        ptr, self._next = self._next, self._next + nbytes + MIB
        self.sizes[ptr] = nbytes
        return ptr

    def mem_free(self, ptr: int) -> None:
        self.calls += 1
        self._may_fail("mem_free")
        del self.sizes[ptr]

    def range_page(self, index: int) -> int:
        return 2 * MIB

    def range_reserve(self, index: int, nbytes: int) -> int:
        ptr, self._next = self._next, self._next + nbytes + MIB
        return ptr

    def range_map(self, ptr: int, nbytes: int) -> None:
        self.calls += 1
        assert not any(at < ptr + nbytes and ptr < at + n for at, n in self.sizes.items())
        if self.refuse or self.used + nbytes > self.capacity:
            self.wished = self.wished or bool(self.refuse)
            self.refuse = max(0, self.refuse - 1)
            raise OutOfMemoryError("refused")
        self.sizes[ptr] = nbytes

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        self.calls += 1
        self._may_fail("range_unmap")
        gone = [at for at in self.sizes if ptr <= at < ptr + nbytes]
        assert sum(self.sizes.pop(at) for at in gone) == nbytes

    def range_release(self, ptr: int) -> None:
        pass

    def host_alloc(self, nbytes: int) -> HostMemory:
        return HostMemory(self.mem_alloc(0, nbytes), nbytes, None, pinned=True)

    def host_free(self, memory: HostMemory) -> None:
        self.mem_free(memory.ptr)

    def host_register(self, ptr: int, nbytes: int) -> None:
        pass

    def host_unregister(self, ptr: int) -> int:
        return 0

    def stream_native(self, stream: int) -> int:
        return stream - 1

    def stream_default(self, index: int) -> int:
        return 1

    def event_create(self, index: int, timing: bool) -> int:
        assert not timing
        self.events += 1
        return self.events

    def event_record(self, event: int, stream: int) -> None:
        self._may_fail("event_record")
        self.records[event] = (stream, self.clock.get(stream, 0))

    def event_query(self, event: int, internal: bool = False) -> bool:
        self.internal.append(internal)
        stream, when = self.records[event]
        return self.done.get(stream, 0) >= when

    def event_sync(self, event: int, internal: bool = False) -> None:
        stream, when = self.records[event]
        self.done[stream] = max(self.done.get(stream, 0), when)

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = -1) -> None:
        self.lives.append(("alloc", ptr, nbytes, stream))

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        self.lives.append(("free", ptr, nbytes, stream))
        self.ends.append([self.records[event] for event in after])

    def block_wait(self, ptr: int, nbytes: int, stream: int, events: Sequence[int]) -> None:
        self.lives.append(("wait", ptr, nbytes, stream))

    def event_destroy(self, event: int) -> None:
        del self.records[event]

    def _may_fail(self, call: str) -> None:
        if call in self.fail:
            self.fail.remove(call)
            raise DriverError(f"{call} was made to fail")

    # -- what tests do --------------------------------------------------------------------------------
    def work(self, stream: int) -> int:
        """Queue work on a stream; when it is done, `finish(stream)` reaches the returned point."""
        self.clock[stream] = self.clock.get(stream, 0) + 1
        return self.clock[stream]

    def finish(self, stream: int) -> None:
        self.done[stream] = self.clock.get(stream, 0)


class StillDriver(Forward):
    """A driver of two devices that does nothing, so that only the detector is tested."""

    def __init__(self, devices=2):
        self.name = "still"
        self.observes_blocks = False
        self.runs_bodies = False
        self._devices = devices
        self._handles = count(100)
        self._addresses = count(0x10_0000_0000, 1 << 24)
        self.queued = []
        self.done = False

    def device_count(self):
        return self._devices

    def stream_default(self, index):
        return 1 + index

    def stream_create(self, index, priority):
        return next(self._handles)

    def event_create(self, index, timing, blocking=False, interprocess=False):
        return next(self._handles)

    def mem_alloc(self, index, nbytes):
        return next(self._addresses)

    def host_alloc(self, nbytes):
        return HostMemory(next(self._addresses), nbytes, None, pinned=True)

    def load(self, launch, index):
        return Executable(launch, index)

    def launch(self, exe, ptrs, scalars, stream):
        self.queued.append(exe.launch.kernel.name)

    def stream_query(self, stream):
        return self.done

    def event_query(self, event, internal=False):
        return self.done

    def event_elapsed_ns(self, start, end):
        return 0

    def _nothing(self, *args):
        pass

    device_sync = mem_free = host_free = host_touch = host_export = block_alloc = block_free = block_wait = (
        _nothing
    )
    copy_in = copy_out = copy = fill = stream_destroy = stream_sync = stream_wait = _nothing
    event_destroy = event_record = event_sync = unload = host_call = close = range_map = _nothing
