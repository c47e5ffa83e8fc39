"""`VirtualDriver`: simulated CUDA devices behind the `Driver` protocol.

Each call becomes a command on its stream's queue, or a wait; `scheduler.py` runs commands, `policy.py`
chooses their order, `memory.py` holds the bytes, `cost.py` and the profiles give durations. Kernels are the
operators' own host bodies on NumPy views of device memory, so results are real and only time is simulated.

# What is modelled, and where each rule comes from
- Streams (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution"): commands of one stream run in
  order; commands of different streams are unordered unless an event, a synchronization or the host orders
  them. CUDA's legacy default stream waits for all blocking streams and they for it; its per-thread default
  stream is an ordinary stream of each thread. PyTorch creates its streams with cudaStreamNonBlocking, which
  wait for neither. Here, too, no created stream waits for the default stream, and there is one default
  stream per device.
- Events: a wait captures the record that is current when it is called; an event that was never recorded is
  complete and waited for in no time (cudaStreamWaitEvent, cudaEventQuery in the Runtime API's reference).
- Copies (Runtime API, "API synchronization behavior"): pageable memory is staged before `copy_in` returns
  and complete when `copy_out` returns; pinned memory is asynchronous in both directions. Each device has
  one engine for each direction, and one link to each peer. Between devices without peer access copies go
  through the host, over both engines. Kernels reach a peer's memory only after `peer_enable`.
- Host functions hold their stream up and must make no driver call (cudaLaunchHostFunc): one that does
  fails.
- An error in a kernel's body is sticky, as a device-side assert is: it is raised by every later
  synchronization, query and launch of that device, and no later work of the device touches memory.
- A launch queue of 1,024 commands per stream (a figure observed on hardware, not promised): then the host
  waits.
- Memory: capacity, less what a context takes; allocations aligned to 512 bytes; mem_free waits for the
  device. A command's addresses are checked when it is enqueued, where hardware faults later, or never.
- Collectives: NCCL's rules; see Note [Meetings]. Rings go over the links between neighbours, or through the host
  where devices are not linked, and hold those links meanwhile; the multiprocessors that NCCL takes are not counted.
- Graphs: what a stream and those that join it are given is recorded, and launched as one; see Note [Captures].
- Other processes: handles of whole allocations and of events (Driver API, "IPC"), opened on the same device of another
  process; see Note [Exported memory] in ipc.py.
- Time: durations by roofline and by the profile's rates and latencies; multiprocessors, engines and links
  are contended. The host's clock advances by the profile's cost of each driver call and poll and by
  waiting; the host's own computing costs nothing, so the host is always ahead of its devices.

# What is not modelled
- Commands are indivisible: two racing kernels run one after the other, in either order, never interleaved.
- Caches, clocks that throttle, power, occupancy limits by registers or shared memory, page faults, ECC.
- Managed memory, stream-ordered allocation, cooperative launches, MPS and MIG.
- Host reads of pinned memory between the start and the end of a copy: a copy's bytes move in one step, when
  the scheduler runs it; the scheduler runs commands when the host waits, polls, or fills a queue.

# What a run depends on
The program's driver calls in their order, the profile and the schedule: nothing else. No wall clock, no
identity, no set order, no hash seed. Threads may share a driver (one lock); their order is the program's
business.
"""

from __future__ import annotations

import itertools
import os
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from socket import socket
from threading import Condition
from typing import Any, NoReturn

import numpy as np

from flambeau.core.errors import DriverError, InvalidAddressError, NotSupportedError, OutOfMemoryError
from flambeau.core.memory import address_of, bytes_at
from flambeau.core.quiet import Quiet
from flambeau.core.sites import caller
from flambeau.driver.api import Collective, DeviceProperties, Executable, HostMemory, Launch, Launcher
from flambeau.driver.meetings import check, perform, spans
from flambeau.driver.virtual import capture, cost, exchange, ipc, scheduler
from flambeau.driver.virtual.capture import Capture, Recorded
from flambeau.driver.virtual.cluster import cluster_ns
from flambeau.driver.virtual.collectives import Communicators, Meeting, Member, Outside
from flambeau.driver.virtual.device import Device, Event
from flambeau.driver.virtual.executable import VirtualExecutable
from flambeau.driver.virtual.gate import Gate
from flambeau.driver.virtual.graph import Graph
from flambeau.driver.virtual.memory import RANGE_PAGE, Arena, next_generation
from flambeau.driver.virtual.policy import open_policy, write_token
from flambeau.driver.virtual.profile import load_profile
from flambeau.driver.virtual.scheduler import (
    UNLIMITED,
    Command,
    CommandRecord,
    DeviceState,
    Engine,
    Lane,
    Path,
    Scheduler,
    Stream,
)

_MOST_DEVICES = 255  # an address has 8 bits for the device
_HOST_ALIGNMENT = 4096
_RELATIVE = (1 << 48) - 1  # of an address: the machine's generation is no part of a trace
_UUIDS = uuid.UUID("5a3c1d1e-6f0b-4c57-9d0c-0f1a6be0a11b")  # the namespace of simulated devices


class VirtualDriver:
    """`devices` simulated GPUs of one profile. See the module's docstring; contracts in `driver.api.Driver`.

    Args:
        devices: how many, 0 to 255.
        profile: a profile's name, or the path of a TOML file.
        schedule: who runs next: `earliest`, `random:SEED`, `adversarial:SEED`, `pct:SEED:DEPTH` or
            `replay:TOKEN`.
        poison: fill fresh memory and freed blocks with bytes that show.

    Raises:
        ValueError: an argument that is none of these, or a broken profile.
    """

    name = "virtual"

    def __init__(
        self, devices: int = 1, profile: str = "a100-40g", schedule: str = "earliest", poison: bool = False
    ) -> None:
        if isinstance(devices, bool) or not isinstance(devices, int) or not 0 <= devices <= _MOST_DEVICES:
            raise ValueError(f"devices must be an integer from 0 to {_MOST_DEVICES}, not {devices!r}")
        self.profile = load_profile(profile)
        self.observes_blocks = bool(poison)
        self._policy = open_policy(schedule)
        self._lock = Gate()
        self._scheduler = Scheduler(self._policy, self.profile.queue, self._lock.leave)
        self._quiet = Quiet()
        self._handles = itertools.count(1)
        self._generation = next_generation()
        self._devices = [self._open(i) for i in range(devices)]
        self._streams = {d.default.handle: d.default for d in self._devices}
        self._events: dict[int, Event] = {}
        self._pinned: dict[int, HostMemory] = {}
        self._capturing: dict[Stream, Capture] = {}  # the streams that are recorded
        self._graphs: dict[int, Recorded] = {}
        gate: Any = self._lock  # threading.Condition takes whatever has the calls of a lock
        self._comms = Communicators(self._scheduler, Condition(gate), self._handles, self._ring_route)
        self._comms.numbers = self._numbers
        self._ids = itertools.count(1)  # of communicators
        self._hosts: dict[int, int] = {}  # simulated times of ranks that take turns
        self._at_start = 0
        self._closed = False

    def _open(self, index: int) -> Device:
        profile = self.profile
        arena = Arena(self._generation, index, profile.memory, profile.reserved, self.observes_blocks)
        return Device(index, arena, next(self._handles), profile.sms)

    # -- what upper rooms may look at -------------------------------------------------------------------
    @property
    def on_command(self) -> Callable[[CommandRecord], None] | None:
        """Called with each command as it completes, in the order in which commands ran."""
        return self._scheduler.on_command

    @on_command.setter
    def on_command(self, call: Callable[[CommandRecord], None] | None) -> None:
        self._scheduler.on_command = call

    def record(self) -> Graph:
        """The graph of all commands given from now on; called before the first."""
        graph = self._scheduler.journal = Graph(self.profile.queue)
        return graph

    def given(self) -> int:
        """How many commands were given so far: the `seq` of the next."""
        return self._scheduler.given

    def time_ns(self) -> int:
        """The host's simulated time."""
        return self._scheduler.now

    def switch_host(self, before: int, after: int) -> None:
        """Of ranks that are threads and take turns, another one goes on: each has a host, with a time of its own."""
        with self._lock:
            core = self._scheduler
            if not self._hosts:
                self._at_start = core.now
            self._hosts[before] = core.now
            core.now = self._hosts.get(after, self._at_start)
            if core.journal is not None:
                core.journal.switch_host(before, after)

    def join_hosts(self) -> None:
        """The ranks have ended: whoever started them has waited for the last."""
        with self._lock:
            core = self._scheduler
            core.now = max([core.now, *self._hosts.values()])
            self._hosts = {}
            if core.journal is not None:
                core.journal.join_hosts()

    def device_time_ns(self, index: int) -> int:
        """When the last command of the device that has run ended."""
        return self._device(index).state.end

    def trace_hash(self) -> str:
        """A hash over what ran so far: order, kinds, sizes, times, relative addresses; no data."""
        with self._lock:
            return self._scheduler.trace_hash()

    def token(self) -> str:
        """The choices made so far, as text: `schedule="replay:" + token` repeats this run's order."""
        with self._lock:
            return write_token(self._scheduler.choices)

    def unplayed(self) -> str:
        """Why the program is not the one of its token, if it has ended before the token; else empty."""
        return str(getattr(self._policy, "unplayed", ""))

    # -- devices ----------------------------------------------------------------------------------------
    def device_count(self) -> int:
        self._check_open()
        return len(self._devices)

    def device_properties(self, index: int) -> DeviceProperties:
        self._device(index)
        profile = self.profile
        return DeviceProperties(
            profile.name, profile.major, profile.minor, profile.memory, profile.sms, profile.threads_per_sm,
            shared_memory_per_multiprocessor=profile.shared_memory_per_sm, L2_cache_size=profile.l2,
            clock_rate=profile.clock_khz, uuid=str(uuid.uuid5(_UUIDS, f"{profile.name}/{index}")),
            pci_bus_id=index + 1,
        )  # fmt: skip

    def device_sync(self, index: int) -> None:
        with self._lock:
            device = self._device(index)
            self._refuse_in_capture(device.state)
            self._scheduler.now += self.profile.costs.sync_ns
            self._scheduler.wait(device.state)
            self._check_error(device.state)

    def mem_info(self, index: int) -> tuple[int, int]:
        arena = self._device(index).arena
        return arena.free - sum([nbytes for _, nbytes in self._held_by_others(index)]), arena.total

    def mem_processes(self, index: int) -> list[tuple[int, int]]:
        """This process, and ranks of the same launcher that use the device, too."""
        arena = self._device(index).arena
        return [(os.getpid(), arena.total - arena.free), *self._held_by_others(index)]

    def _held_by_others(self, index: int) -> list[tuple[int, int]]:
        with self._lock:
            others = exchange.of_process()
            return others.held(index) if others is not None and others.shares else []

    def close(self) -> None:
        """Finish all work and give everything back; errors of kernels die with it. Again: nothing happens."""
        with self._lock:
            self._comms.abandon()
            for device in self._devices:
                with suppress(DriverError):  # what waits in vain never runs; whoever waited for it was told
                    self._scheduler.wait(device.state)
            for device in self._devices:
                device.arena.discard()
                if device.shared is not None:
                    device.shared.shut()
            self._closed = True
            self._devices = []
            self._streams = {}
            self._events = {}
            self._pinned = {}
            self._capturing = {}
            self._graphs = {}

    # -- memory -----------------------------------------------------------------------------------------
    def mem_alloc(self, index: int, nbytes: int) -> int:
        with self._lock:
            device = self._device(index)
            ptr = device.arena.allocate(nbytes)
            self._share(device, ptr)
            self._scheduler.now += self.profile.costs.alloc_ns
            return ptr

    def _share(self, device: Device, ptr: int) -> None:
        """Take an allocation from what all processes share of a device. OutOfMemoryError: they hold it."""
        others = exchange.of_process()
        if others is None or not others.shares:
            return
        arena = device.arena
        try:
            others.reserve(device.index, ptr, arena.ends[ptr] - ptr, arena.capacity)
        except BaseException:
            arena.release(ptr)
            raise

    def mem_free(self, ptr: int) -> None:
        with self._lock:
            device = self._owner("mem_free", ptr, 0)
            end, shared = device.arena.ends.get(ptr), device.shared
            if end is None or (shared is not None and shared.owns(ptr)):
                raise device.arena.invalid("mem_free", ptr, 0, "is not the start of an allocation")
            if self._scheduler.running is not None:  # a destructor amid a kernel's body
                self._scheduler.defer(partial(self.mem_free, ptr))
                return
            self._refuse_in_capture(device.state)
            self._scheduler.wait(device.state)
            self._scheduler.now += self.profile.costs.alloc_ns
            device.arena.release(ptr)
            if (others := exchange.of_process()) is not None and others.shares:
                others.release(device.index, ptr)
            if shared is not None:
                shared.released(ptr, end)

    def range_page(self, index: int) -> int:
        self._device(index)
        return RANGE_PAGE

    def range_reserve(self, index: int, nbytes: int) -> int:
        with self._lock:
            arena = self._device(index).arena
            if nbytes <= 0 or nbytes % RANGE_PAGE:
                raise DriverError(f"range_reserve: {nbytes} bytes are not whole pages of {RANGE_PAGE} bytes")
            return arena.reserve(nbytes)

    def range_map(self, ptr: int, nbytes: int) -> None:
        with self._lock:
            self._owner("range_map", ptr, nbytes).arena.back(ptr, nbytes)
            self._scheduler.now += self.profile.costs.alloc_ns

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        with self._lock:
            device = self._owner("range_unmap", ptr, nbytes)
            self._refuse_in_capture(device.state)
            self._scheduler.wait(device.state)
            device.arena.unback(ptr, nbytes)
            self._scheduler.now += self.profile.costs.alloc_ns

    def range_release(self, ptr: int) -> None:
        with self._lock:
            self._owner("range_release", ptr, 0).arena.unreserve(ptr)

    def host_alloc(self, nbytes: int) -> HostMemory:
        if nbytes < 0:
            raise DriverError(f"host_alloc: the size must not be negative, got {nbytes}")
        with self._lock:
            self._check_open()
            try:
                owner = np.zeros(nbytes + _HOST_ALIGNMENT, np.uint8)  # zeros: runs repeat to the bit
            except MemoryError:
                raise OutOfMemoryError(f"host_alloc: the host cannot allocate {nbytes} bytes") from None
            ptr = address_of(owner)
            memory = HostMemory(ptr + -ptr % _HOST_ALIGNMENT, nbytes, owner, pinned=True)
            self._pinned[memory.ptr] = memory
            self._scheduler.now += self.profile.costs.alloc_ns
            return memory

    def host_free(self, memory: HostMemory) -> None:
        with self._lock:
            self._check_open()
            if memory.ptr not in self._pinned:
                raise DriverError(
                    f"host_free: {memory.ptr:#x} is none of this machine's pinned memory, or freed already"
                )
            for device in self._devices:
                self._refuse_in_capture(device.state)
            for device in self._devices:
                self._scheduler.wait(device.state)
            self._scheduler.now += self.profile.costs.alloc_ns
            del self._pinned[memory.ptr]

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        pass

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False) -> None:
        self._poison_block("block_alloc", ptr, nbytes, stream)

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        self._poison_block("block_free", ptr, nbytes, stream)

    def block_wait(self, ptr: int, nbytes: int, stream: int, events: Sequence[int]) -> None:
        pass

    def _poison_block(self, what: str, ptr: int, nbytes: int, handle: int) -> None:
        if not self.observes_blocks or not nbytes or not handle:  # 0: pinned host memory
            return
        with self._lock:
            device = self._owner(what, ptr, nbytes)
            arena = device.arena
            arena.check(what, ptr, nbytes)
            stream = device.state.streams.get(handle)
            if stream is None:  # destroyed, and its work is done
                arena.lay_poison(ptr, nbytes)
                return
            self._put(
                scheduler.POISON, what, stream, nbytes, None, 0, 0, arena.lay_poison, (ptr, nbytes), ptr
            )

    # -- copies and fills -------------------------------------------------------------------------------
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        nbytes = source.nbytes
        with self._lock:
            queue = self._stream(stream)
            self._check_error(queue.device)
            if not nbytes:
                return
            device = self._range("copy_in", target, nbytes)
            profile = self.profile
            rate = profile.links.pcie if source.pinned else profile.links.pageable
            if not source.pinned:
                self._refuse_in_capture(queue)
                source = _staged(source)
                self._scheduler.now += cost.bytes_ns(nbytes, profile.links.host_copy)
            self._scheduler.now += profile.costs.launch_ns
            self._put(
                scheduler.COPY_IN, "copy_in", queue, nbytes, device.inward, profile.links.copy_latency_ns,
                cost.bytes_ns(nbytes, rate), self._do_copy_in, (device.arena, target, source), target,
            )  # fmt: skip

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        nbytes = target.nbytes
        with self._lock:
            queue = self._stream(stream)
            self._check_error(queue.device)
            if not target.pinned:
                self._refuse_in_capture(queue)
            if nbytes:
                device = self._range("copy_out", source, nbytes)
                links = self.profile.links
                self._scheduler.now += self.profile.costs.launch_ns
                self._put(
                    scheduler.COPY_OUT, "copy_out", queue, nbytes, device.outward, links.copy_latency_ns,
                    cost.bytes_ns(nbytes, links.pcie if target.pinned else links.pageable),
                    self._do_copy_out, (target, device.arena, source), source,
                )  # fmt: skip
            if not target.pinned:
                self._scheduler.wait(queue)
                self._check_error(queue.device)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        with self._lock:
            queue = self._stream(stream)
            self._check_error(queue.device)
            if not nbytes:
                return
            to, origin = self._range("copy", target, nbytes), self._range("copy", source, nbytes)
            engine, latency, work = self._route(origin, to, nbytes)
            self._scheduler.now += self.profile.costs.launch_ns
            self._put(
                scheduler.COPY, "copy", queue, nbytes, engine, latency, work,
                self._do_copy, (to.arena, target, origin.arena, source, nbytes), target,
            )  # fmt: skip

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        with self._lock:
            queue = self._stream(stream)
            self._check_error(queue.device)
            if not nbytes:
                return
            device = self._range("fill", target, nbytes)
            self._check_reach("fill", queue.index, device, target, nbytes)
            self._scheduler.now += self.profile.costs.launch_ns
            self._put(
                scheduler.FILL, "fill", queue, nbytes, self._devices[queue.index].processors,
                self.profile.costs.kernel_ns, cost.fill_ns(nbytes, self.profile),
                self._do_fill, (device.arena, target, byte & 255, nbytes), target,
                max(self.profile.sms // 4, 1),
            )  # fmt: skip

    def _route(self, origin: Device, to: Device, nbytes: int) -> tuple[Engine, int, int]:
        """The engine, latency and time of a copy between device memories."""
        links = self.profile.links
        if origin is to:
            return origin.processors, self.profile.costs.kernel_ns, cost.local_copy_ns(nbytes, self.profile)
        if to.index in origin.peers or origin.index in to.peers:
            lane = origin.links.setdefault(to.index, Lane())
            return lane, links.peer_latency_ns, cost.bytes_ns(nbytes, links.peer)
        return Path(origin.outward, to.inward), 2 * links.copy_latency_ns, cost.bytes_ns(nbytes, links.pcie)

    # -- streams ----------------------------------------------------------------------------------------
    def stream_default(self, index: int) -> int:
        return self._device(index).default.handle

    def stream_create(self, index: int, priority: int) -> int:
        with self._lock:
            device = self._device(index)
            self._scheduler.now += self.profile.costs.call_ns
            stream = Stream(next(self._handles), device.state, max(min(priority, 0), -1))
            self._streams[stream.handle] = device.state.streams[stream.handle] = stream
            return stream.handle

    def stream_destroy(self, stream: int) -> None:
        with self._lock:
            gone = self._stream(stream)
            if gone in self._capturing:
                raise DriverError(capture.UNSUPPORTED)
            if gone is self._devices[gone.index].default:
                raise DriverError(
                    f"stream_destroy: stream {stream} is the default stream of cuda:{gone.index}"
                )
            del self._streams[stream]
            gone.gone = True
            if not gone.pending:
                del gone.device.streams[stream]

    def stream_native(self, stream: int) -> int:
        found = self._stream(stream)
        return 0 if found is self._devices[found.index].default else stream << 4

    def stream_adopt(self, index: int, native: int) -> int:
        with self._lock:
            device = self._device(index)
            if native in (0, 1):
                return device.default.handle
            found = self._streams.get(native >> 4)
            if found is None or native & 15 or found.index != index:
                raise NotSupportedError(
                    f"cuda:{index} has no stream {native:#x}: virtual GPUs take over no other library's streams"
                )
            return found.handle

    def stream_query(self, stream: int) -> bool:
        with self._lock:
            found = self._stream(stream)
            self._refuse_in_capture(found)
            core = self._scheduler
            core.now += self.profile.costs.poll_ns
            core.poll()
            self._check_error(found.device)
            done = not found.pending and found.end <= core.now
            if not done:
                self._comms.linger(found)
            return done

    def stream_sync(self, stream: int) -> None:
        with self._lock:
            found = self._stream(stream)
            self._refuse_in_capture(found)
            self._scheduler.now += self.profile.costs.sync_ns
            self._scheduler.wait(found)
            self._check_error(found.device)

    def stream_wait(self, stream: int, event: int) -> None:
        with self._lock:
            queue, found = self._stream(stream), self._event(event)
            awaited = found.record
            self._scheduler.now += self.profile.costs.call_ns
            if awaited is not None:
                if self._capturing or found.capture is not None:
                    self._join_capture(queue, found)
                self._mark(scheduler.WAIT, "wait", queue, awaited.seq & _RELATIVE, (awaited,))

    # -- events -----------------------------------------------------------------------------------------
    def event_create(
        self, index: int, timing: bool, blocking: bool = False, interprocess: bool = False
    ) -> int:
        with self._lock:
            self._device(index)
            handle = next(self._handles)
            self._events[handle] = Event(index, timing and not interprocess, interprocess)
            self._scheduler.now += self.profile.costs.call_ns
            return handle

    def event_destroy(self, event: int) -> None:
        with self._lock:
            self._event(event)
            del self._events[event]

    def event_record(self, event: int, stream: int) -> None:
        with self._lock:
            found, queue = self._event(event), self._stream(stream)
            if found.index != queue.index:
                raise DriverError(
                    f"event_record: event {event} belongs to cuda:{found.index}, stream {stream} to "
                    f"cuda:{queue.index}; they must be of one device"
                )
            self._scheduler.now += self.profile.costs.call_ns
            found.record = self._mark(scheduler.RECORD, "record", queue, event)
            found.capture = self._capturing.get(queue)
            if found.interprocess and found.capture is None:
                self._scheduler.run_ahead(found.record)

    def event_query(self, event: int, internal: bool = False) -> bool:
        with self._lock:
            found = self._event(event)
            self._refuse_question(found)
            core, record = self._scheduler, found.record
            core.now += self.profile.costs.poll_ns
            core.poll()
            self._check_error(self._devices[found.index].state)
            done = record is None or (record.done and record.end <= core.now)
            if record is not None and not done:
                self._comms.linger(record)
            return done

    def event_sync(self, event: int, internal: bool = False) -> None:
        with self._lock:
            found = self._event(event)
            self._refuse_question(found)
            self._scheduler.now += self.profile.costs.sync_ns
            if found.record is not None:
                self._scheduler.wait(found.record)
            self._check_error(self._devices[found.index].state)

    def event_elapsed_ns(self, start: int, end: int) -> int:
        with self._lock:
            first, last = self._event(start), self._event(end)
            if first.index != last.index:
                raise DriverError(
                    f"event_elapsed_ns: the events belong to cuda:{first.index} and cuda:{last.index}; "
                    "time is measured on one device"
                )
            self._refuse_question(first)
            self._refuse_question(last)
            self._scheduler.poll()
            times = [self._time_of(event, found) for event, found in ((start, first), (end, last))]
            return times[1] - times[0]

    def _time_of(self, handle: int, event: Event) -> int:
        if not event.timing:
            raise DriverError(f"event_elapsed_ns: event {handle} was created without timing")
        if event.record is None:
            raise DriverError(f"event_elapsed_ns: event {handle} was never recorded")
        if not event.record.done or event.record.end > self._scheduler.now:
            raise DriverError(f"event_elapsed_ns: event {handle} is not complete; synchronize with it first")
        return event.record.end

    # -- other processes: see Note [Exported memory] in ipc.py --------------------------------------------
    def ipc_memory(self, ptr: int) -> bytes:
        with self._lock:
            device = self._owner("ipc_memory", ptr, 0)
            self._scheduler.now += self.profile.costs.call_ns
            return self._shared(device).export(ptr)

    def ipc_open(self, index: int, handle: bytes) -> tuple[int, int]:
        with self._lock:
            device = self._device(index)
            self._scheduler.now += self.profile.costs.alloc_ns
            return self._shared(device).open(handle)

    def ipc_close(self, ptr: int) -> None:
        with self._lock:
            device = self._owner("ipc_close", ptr, 0)
            if not self._shared(device).owns(ptr):
                raise device.arena.invalid("ipc_close", ptr, 0, "is not of another process's memory")
            if self._scheduler.running is not None:  # a destructor amid a kernel's body
                self._scheduler.defer(partial(self.ipc_close, ptr))
                return
            self._refuse_in_capture(device.state)
            self._scheduler.wait(device.state)
            self._scheduler.now += self.profile.costs.alloc_ns
            self._shared(device).close(ptr)

    def ipc_event(self, event: int) -> bytes:
        with self._lock:
            found = self._event(event)
            if not found.interprocess:
                raise DriverError(
                    f"CUDA error: invalid argument: ipc_event: event {event} was not created interprocess"
                )
            return ipc.event_handle(self._shared(self._devices[found.index]).uuid, event)

    def ipc_event_open(self, index: int, handle: bytes) -> int:
        with self._lock:
            ipc.check_event(handle, self._shared(self._device(index)).uuid)
            return self.event_create(index, False, False, True)

    def _shared(self, device: Device) -> ipc.SharedPages:
        if device.shared is None:
            which = uuid.UUID(self.device_properties(device.index).uuid).bytes
            device.shared = ipc.SharedPages(device.arena, which)
        return device.shared

    # -- kernels ----------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> VirtualExecutable:
        with self._lock:
            self._device(index)
            launch = launch.with_(capability=(self.profile.major, self.profile.minor))
            return VirtualExecutable(launch, index, self.profile, self._owner)

    def unload(self, exe: Executable) -> None:
        self._check_open()

    def launch(
        self, exe: VirtualExecutable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int
    ) -> None:
        with self._lock:
            queue = self._streams.get(stream) or self._stream(stream)
            index = queue.index
            if exe.index != index:
                raise DriverError(
                    f"launch: '{exe.name}' was loaded for cuda:{exe.index}, stream {stream} is cuda:{index}'s"
                )
            if queue.device.error is not None:
                self._check_error(queue.device)
            device = self._devices[index]
            first, end = device.arena.hot
            for ptr, span in zip(ptrs, exe.spans, strict=True):
                if (ptr < first or ptr + span > end) and span:
                    owner = self._range(exe.name, ptr, span)
                    self._check_reach(exe.name, index, owner, ptr, span)
            costs = self.profile.costs
            work = exe.work if exe.cycles is None else cost.cycles_ns(exe.cycles(scalars), self.profile)
            command = Command(
                scheduler.KERNEL, exe.name, queue, exe.nbytes, device.processors, exe.sms, costs.kernel_ns,
                work, self._do_launch, (exe, ptrs, scalars), exe.code,
            )  # fmt: skip
            core = self._scheduler
            core.now += costs.launch_ns
            if self._capturing:
                self._enqueue(command)
            else:
                core.enqueue(command)

    def launcher(self, exe: VirtualExecutable) -> Launcher:
        return partial(self.launch, exe)

    def library_handle(self, name: str, stream: int) -> int:
        self._stream(stream)
        raise NotSupportedError(f"virtual GPUs have no handle of {name}: NumPy computes for them")

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        with self._lock:
            queue = self._stream(stream)
            self._check_error(queue.device)
            costs = self.profile.costs
            self._scheduler.now += costs.launch_ns
            name = getattr(call, "__qualname__", "host function")
            self._put(scheduler.HOST_CALL, name, queue, 0, UNLIMITED, costs.host_call_ns, 0, call, ())

    # -- graphs: see Note [Captures] in capture.py --------------------------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        with self._lock:
            queue = self._stream(stream)
            self._check_error(queue.device)
            if mode not in capture.MODES:
                raise DriverError(f"capture_begin: the mode must be one of {capture.MODES}, not {mode!r}")
            if queue in self._capturing or queue is self._devices[queue.index].default:
                raise DriverError(capture.UNSUPPORTED)
            self._scheduler.now += self.profile.costs.call_ns
            self._capturing[queue] = Capture(queue, mode)

    def capture_end(self, stream: int) -> int:
        with self._lock:
            queue = self._stream(stream)
            found = self._capturing.get(queue)
            if found is None or found.origin is not queue:
                raise DriverError(f"CUDA error: invalid argument: no capture began on stream {stream}")
            for joined in found.streams:
                del self._capturing[joined]
            found.end()
            handle = next(self._handles)
            lanes = {s: self._streams[self.stream_create(s.index, s.priority)] for s in found.streams[1:]}
            self._graphs[handle] = Recorded(found, lanes)
            return handle

    def capture_active(self, stream: int) -> bool:
        return self._stream(stream) in self._capturing

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        with self._lock:
            found, queue = self._graph(graph), self._stream(stream)
            self._check_error(queue.device)
            if found.index != queue.index:
                raise DriverError(
                    f"graph_launch: graph {graph} was recorded on cuda:{found.index}, stream {stream} is "
                    f"cuda:{queue.index}'s"
                )
            for command in found.commands:
                self._check_ranges(command)
            if queue in self._capturing:
                return self._nest(found, queue, seeds)
            self._scheduler.now += self.profile.costs.launch_ns
            before = () if found.last is None else (found.last,)
            self._put(scheduler.WAIT, "graph", queue, 0, None, 0, 0, None, (), 0, 0, before)
            for command in found.copies(queue, seeds):
                self._scheduler.enqueue(command)
            found.last = self._put(scheduler.RECORD, "graph", queue, 0, None, 0, 0, None, ())

    def _nest(self, graph: Recorded, queue: Stream, seeds: Sequence[tuple[int, int]]) -> None:
        """Record a graph's commands as part of the capture of a stream."""
        recorder = self._capturing[queue]
        for lane in graph.lanes.values():
            if self._capturing.setdefault(lane, recorder) is not recorder:
                raise DriverError(capture.MERGE)
            recorder.join(lane)
        for command in graph.copies(queue, seeds):
            recorder.add(command)

    def graph_dump(self, graph: int, path: str) -> None:
        self._graph(graph).dump(path)

    def graph_native(self, graph: int) -> tuple[int, int]:
        self._graph(graph)
        raise NotSupportedError("a graph of virtual GPUs is no cudaGraph_t")

    def graph_instantiate(self, graph: int) -> None:
        self._graph(graph)  # it is launched as it was recorded: nobody else can change it

    def graph_destroy(self, graph: int) -> None:
        with self._lock:
            for lane in self._graph(graph).lanes.values():
                self.stream_destroy(lane.handle)
            del self._graphs[graph]

    def _graph(self, handle: int) -> Recorded:
        found = self._graphs.get(handle)
        return found if found is not None else self._unknown("graph", handle)

    def _check_ranges(self, command: Command) -> None:
        """What a recorded command reaches may have been given back since."""
        args = command.args
        if command.kind == scheduler.KERNEL:
            exe, ptrs, _ = args
            for ptr, span in zip(ptrs, exe.spans, strict=True):
                if span:
                    self._range(exe.name, ptr, span)
        elif command.kind == scheduler.COPY_IN:
            self._range("copy_in", args[1], command.nbytes)
        elif command.kind == scheduler.COPY_OUT:
            self._range("copy_out", args[2], command.nbytes)
        elif command.kind == scheduler.COPY:
            self._range("copy", args[1], command.nbytes)
            self._range("copy", args[3], command.nbytes)
        elif command.kind == scheduler.FILL:
            self._range("fill", args[1], command.nbytes)

    def _join_capture(self, queue: Stream, event: Event) -> None:
        """A stream is about to wait for an event where one of them is captured: the stream may join the capture."""
        mine, other = self._capturing.get(queue), event.capture
        if other is not None and not other.active:
            raise DriverError(capture.CAPTURED_EVENT)
        if mine is other:
            return
        if mine is not None:
            mine.spoil()
            raise DriverError(capture.ISOLATION if other is None else capture.MERGE)
        assert other is not None
        if queue is self._devices[queue.index].default:
            other.spoil()
            raise DriverError(capture.IMPLICIT)
        other.join(queue)
        self._capturing[queue] = other

    def _refuse_in_capture(self, target: Stream | DeviceState | None) -> None:
        """The host is about to wait for something, or to ask after it: not during a capture that forbids it."""
        if self._capturing:
            spoiled = [c for c in self._capturing.values() if c.forbids(target)]
            for found in spoiled:
                found.spoil()
            if spoiled:
                raise DriverError(capture.UNSUPPORTED)

    def _refuse_question(self, event: Event) -> None:
        """The same of an event."""
        if event.capture is not None:
            if event.capture.active:
                event.capture.spoil()
            raise DriverError(capture.CAPTURED_EVENT)
        self._refuse_in_capture(None)

    # -- collectives: see Note [Meetings] in collectives.py -----------------------------------------------
    def comm_id(self) -> bytes:
        self._check_open()
        return f"flambeau:{os.getpid()}:{self._generation}:{next(self._ids)}".encode().ljust(128, b"\0")

    def comm_create(
        self, unique: bytes, size: int, members: Sequence[tuple[int, int]], called: Sequence[int] = ()
    ) -> list[int]:
        with self._lock:
            brought = [(rank, next(self._handles), self._device(index).state) for rank, index in members]
            self._scheduler.now += self.profile.costs.alloc_ns
            self._comms.outside = self._outside()
            return self._comms.create(unique, size, brought, called)

    def _outside(self) -> Outside | None:
        """Where members that are not of this process are met."""
        others = exchange.of_process()
        if others is not None:
            others.machine = weakref.ref(self)
        return others

    def go_on(self, other: socket | None) -> None:
        """The host is about to wait for something else: see `Communicators.go_on`."""
        with self._lock:
            self._comms.go_on(other)

    def comm_destroy(self, comm: int, abort: bool = False) -> None:
        with self._lock:
            self._comms.destroy(comm, abort)

    def comm_error(self, comm: int) -> str | None:
        with self._lock:
            member = self._comms.member(comm)
            error = member.state.error
            return member.comm.failed or (None if error is None else str(error))

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        with self._lock:
            found = [(self._comms.member(comm), call, self._stream(stream)) for comm, call, stream in parts]
            for member, call, queue in found:
                self._check_part(member, call, queue)
            self._scheduler.now += self.profile.costs.collective_ns
            self._comms.queue(found, self._do_collective, caller())

    def _check_part(self, member: Member, call: Collective, queue: Stream) -> None:
        """DriverError: what one part alone shows to be wrong."""
        if member.comm.failed is not None:
            raise DriverError(member.comm.failed)
        self._check_error(queue.device)
        if queue.device is not member.state:
            raise DriverError(
                f"{call.kind}: rank {member.rank} is cuda:{member.state.index}, stream {queue.handle} is "
                f"cuda:{queue.index}'s"
            )
        if queue in self._capturing:
            raise NotSupportedError(f"{call.kind}: virtual GPUs capture no collectives into graphs")
        check(call, member.rank, member.comm.size)
        for access in spans(call, member.rank, member.comm.size):
            if access is not None and access[1]:
                owner = self._range(call.kind, *access)
                self._check_reach(call.kind, queue.index, owner, *access)

    def _ring_route(self, kind: str, nbytes: int, indices: Sequence[int]) -> tuple[Engine, int, int]:
        """The engine, latency and time of a meeting of these devices."""
        costs, links = self.profile.costs, self.profile.links
        if self.profile.cluster is not None and len(indices) > 1:
            latency, work = cluster_ns(kind, nbytes, indices, self.profile)
            here = [self._devices[i] for i in indices if i < len(self._devices)]
            return Path(*[d.links.setdefault(-1, Lane()) for d in here]), latency, work
        devices = [self._devices[i] for i in cost.ring_of(indices, links.rule)]
        if len({*indices}) == 1:
            return devices[0].processors, costs.kernel_ns, cost.local_copy_ns(nbytes, self.profile)
        hops = list(zip(devices, [*devices[1:], devices[0]], strict=True))
        if kind == "send/recv":
            hops = [(self._devices[indices[0]], self._devices[indices[1]])]
        direct = all(cost.linked(a.index, b.index, links.rule) for a, b in hops)
        lanes: dict[Lane, None] = {}
        for origin, to in hops:
            lanes |= dict.fromkeys(
                [origin.links.setdefault(to.index, Lane())] if direct else [origin.outward, to.inward]
            )
        latency, work = cost.collective_ns(kind, nbytes, len(indices), cost.wire(self.profile, direct))
        return Path(*lanes), latency, work

    # -- peers ------------------------------------------------------------------------------------------
    def peer_can(self, index: int, peer: int) -> bool:
        self._device(index), self._device(peer)
        cluster = self.profile.cluster
        apart = cluster is not None and index // cluster.node != peer // cluster.node
        return not apart and cost.linked(index, peer, self.profile.links.rule)

    def peer_enable(self, index: int, peer: int) -> None:
        with self._lock:
            if not self.peer_can(index, peer):
                raise NotSupportedError(
                    f"cuda:{index} cannot reach cuda:{peer}'s memory: {self.profile.name}"
                )
            self._scheduler.now += self.profile.costs.call_ns
            self._devices[index].peers.add(peer)

    # -- what commands do when they run -----------------------------------------------------------------
    def _do_launch(self, exe: VirtualExecutable, ptrs: Sequence[int], scalars: Sequence[Any]) -> None:
        if self.observes_blocks:
            self._touch_all(ptrs, exe.spans)
        arrays = [windows[ptr] for windows, ptr in zip(exe.windows, ptrs, strict=True)]
        inputs: list[Any] = arrays[exe.outputs :]
        for place, value in zip(exe.scalars, scalars, strict=True):
            inputs.insert(place, value)
        self._quiet.run(exe.body, arrays[: exe.outputs], inputs)

    def _touch_all(self, ptrs: Sequence[int], spans: Sequence[int]) -> None:
        for ptr, span in zip(ptrs, spans, strict=True):
            if span:
                self._owner("launch", ptr, span).arena.touch(ptr, span)

    def _do_collective(self, meeting: Meeting) -> None:
        if meeting.absent:  # excused: the communicator has failed
            return
        try:
            for state in meeting.states:
                self._check_error(state)
            self._exchange(meeting)
        except Exception as error:  # on no device of its own: it is an error of all that take part
            for state in meeting.states:
                if state.error is None:
                    state.error = DriverError(
                        f"NCCL error: remote process exited or there was a network error: {meeting}: {error}"
                    )

    def _exchange(self, meeting: Meeting) -> None:
        perform(meeting.calls, self._numbers, meeting.theirs)

    def _numbers(self, ptr: int, nbytes: int) -> np.ndarray[Any, Any]:
        return self._window(self._owner("collective", ptr, nbytes).arena, ptr, nbytes)

    def _window(self, arena: Arena, ptr: int, nbytes: int) -> np.ndarray[Any, Any]:
        if arena.poison:
            arena.touch(ptr, nbytes)
        return arena.bytes[ptr - arena.base : ptr - arena.base + nbytes]

    def _do_copy_in(self, arena: Arena, target: int, source: HostMemory) -> None:
        np.copyto(self._window(arena, target, source.nbytes), bytes_at(source.ptr, source.nbytes))

    def _do_copy_out(self, target: HostMemory, arena: Arena, source: int) -> None:
        np.copyto(bytes_at(target.ptr, target.nbytes), self._window(arena, source, target.nbytes))

    def _do_copy(self, to: Arena, target: int, origin: Arena, source: int, nbytes: int) -> None:
        np.copyto(self._window(to, target, nbytes), self._window(origin, source, nbytes))

    def _do_fill(self, arena: Arena, target: int, byte: int, nbytes: int) -> None:
        self._window(arena, target, nbytes)[...] = byte

    # -- looking things up ------------------------------------------------------------------------------
    def _put(
        self, kind: int, name: str, stream: Stream, nbytes: int, engine: Engine | None, latency: int,
        work: int, effect: Callable[..., None] | None, args: tuple[Any, ...], origin: int = 0, sms: int = 1,
        waits: tuple[Command, ...] = (),
    ) -> Command:  # fmt: skip
        command = Command(
            kind, name, stream, nbytes, engine, sms, latency, work, effect, args, origin & _RELATIVE, waits
        )
        self._enqueue(command)
        return command

    def _mark(
        self, kind: int, name: str, stream: Stream, origin: int, waits: tuple[Command, ...] = ()
    ) -> Command:
        """A record or a wait, with the line of the program: deadlocks are told by them."""
        marker = Command(kind, name, stream, 0, None, 1, 0, 0, None, (), origin, waits)
        marker.site = caller(2)
        self._enqueue(marker)
        return marker

    def _enqueue(self, command: Command) -> None:
        """Queue a command, or record it if its stream is captured."""
        recorder = self._capturing.get(command.stream)
        if recorder is None:
            self._scheduler.enqueue(command)
        else:
            recorder.add(command)

    def _check_open(self) -> None:
        if self._closed:
            raise DriverError("the virtual machine has been closed")

    def _device(self, index: int) -> Device:
        self._check_open()
        if not 0 <= index < len(self._devices):
            raise DriverError(
                f"CUDA error: invalid device ordinal: {index}; there are {len(self._devices)} devices"
            )
        return self._devices[index]

    def _stream(self, handle: int) -> Stream:
        found = self._streams.get(handle)
        return found if found is not None else self._unknown("stream", handle)

    def _event(self, handle: int) -> Event:
        found = self._events.get(handle)
        return found if found is not None else self._unknown("event", handle)

    def _unknown(self, what: str, handle: int) -> NoReturn:
        self._check_open()
        raise DriverError(
            f"CUDA error: invalid resource handle: {handle} is no {what} of this machine, or destroyed"
        )

    def _check_error(self, state: DeviceState) -> None:
        if state.error is not None:
            raise DriverError(str(state.error)) from state.error.__cause__

    def _owner(self, what: str, ptr: int, nbytes: int) -> Device:
        """The device that an address belongs to."""
        self._check_open()
        generation, index = ptr >> 48, (ptr >> 40 & 255) - 1
        if generation == self._generation and 0 <= index < len(self._devices):
            return self._devices[index]
        where = f"{what}: {nbytes} bytes at {ptr:#x}: the address "
        if generation == 0:
            raise InvalidAddressError(
                where + "is none of a virtual device's; host memory crosses as HostMemory"
            )
        if generation < self._generation:
            raise InvalidAddressError(
                where + f"is of cuda:{index} of a machine that was opened before this one"
            )
        raise InvalidAddressError(where + "is of no device of this machine")

    def _range(self, what: str, ptr: int, nbytes: int) -> Device:
        device = self._owner(what, ptr, nbytes)
        device.arena.check(what, ptr, nbytes)
        return device

    def _check_reach(self, what: str, index: int, owner: Device, ptr: int, nbytes: int) -> None:
        if owner.index != index and owner.index not in self._devices[index].peers:
            raise InvalidAddressError(
                f"{what}: {nbytes} bytes at {ptr:#x} are cuda:{owner.index}'s, and cuda:{index} has no peer "
                "access to them; enable it (peer_enable) or copy them first"
            )


def _staged(source: HostMemory) -> HostMemory:
    """The bytes as they are now, in memory of their own."""
    copy = bytes_at(source.ptr, source.nbytes).copy()
    return HostMemory(address_of(copy), source.nbytes, copy)
