"""The virtual driver: simulated CUDA devices behind the `Driver` protocol.

Each call becomes a command in its stream's queue, or a wait. `scheduler.py` runs commands,
`schedule_policy.py` chooses their order, `arena.py` holds the bytes, and `cost.py` and the profiles give
durations. Kernels are the operators' reference implementations, which run on NumPy views of device memory.
Results are therefore real and only time is simulated. The driver takes its lock and forwards each call to
the part that owns the state in question.

# What is modelled, and the source of each rule
- Streams (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution"): commands of one stream run in
  order. Commands of different streams are unordered unless an event, a synchronization or the host orders
  them. CUDA's legacy default stream and all blocking streams wait for each other; its per-thread default
  stream is an ordinary stream of each thread. PyTorch creates its streams with cudaStreamNonBlocking; they
  do not wait for the default stream. Here, too, no created stream waits for the default stream, and there
  is one default stream per device.
- Events: a wait refers to the record that is current when the wait is called. An event that was never
  recorded is complete, and a wait for it takes no time (cudaStreamWaitEvent, cudaEventQuery in the Runtime
  API's reference).
- Copies (Runtime API, "API synchronization behavior"): pageable memory is staged before `copy_in` returns
  and complete when `copy_out` returns. Pinned memory is asynchronous in both directions. Each device has
  one engine for each direction, and one link to each peer. Between devices without peer access, copies go
  through the host over both engines. Kernels can access a peer's memory only after `peer_enable`.
- Host functions block their stream and must make no driver call (cudaLaunchHostFunc); a function that does
  fails.
- An error in a kernel's body is sticky, as a device-side assert is. Every later synchronization, query and
  launch of that device raises it, and no later work of the device touches memory.
- A stream holds 1,024 commands (a figure observed on hardware, not promised). Then the host waits.
- Memory: the capacity is reduced by the size of a context. Allocations are aligned to 512 bytes. mem_free
  waits for the device. The driver checks a command's addresses when the command is enqueued; hardware
  faults later, or never.
- Collectives: NCCL's rules; see Note [Collective instances]. Rings use the links between neighbours, or go
  through the host where devices are not linked, and occupy those links meanwhile. The multiprocessors that
  NCCL takes are not counted.
- Graphs: the commands of a stream and of the streams that join it are recorded and launched as one; see
  Note [Captures].
- Other processes: handles of whole allocations and of events (Driver API, "IPC"), opened on the same device
  in another process; see Note [Exported memory] in virtual_ipc.py.
- Time: durations follow from the roofline model and the profile's rates and latencies. Multiprocessors,
  engines and links are contended. The host's clock advances by a fixed time for each call and each poll, by work that
  the runtime reports (Note [The host's time] in host_time.py), and by waiting.

# What is not modelled
- Commands are indivisible: two racing kernels run one after the other, in either order, never interleaved.
- Caches, clocks that throttle, power, occupancy limits by registers or shared memory, page faults, ECC.
- Managed memory, stream-ordered allocation, cooperative launches, MPS and MIG.
- Pinned memory between the start and the end of a copy: the bytes move in one step, when the scheduler runs
  the copy. The scheduler runs commands when the host waits, polls, or fills a queue. Until then the target
  of a copy to the host holds poison; see Note [Poisoned targets] in pinned_traffic.py.

# What determines a run The order of the program's driver calls, the profile and the schedule determine a
run. The wall clock, object identities, set order and hash seeds do not. Threads may share a driver, which
has one lock; the program determines the order of their calls.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import Condition
from typing import Any

from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.core.host.host_wait import Awaited
from flambeau.driver.protocol import (
    Collective,
    DeviceProperties,
    Executable,
    HostMemory,
    Launch,
    Launcher,
    RecurrentMemory,
    RecurrentNetwork,
    reference_memory,
)
from flambeau.driver.virtual.allocations import VirtualAllocations
from flambeau.driver.virtual.capture import Captures
from flambeau.driver.virtual.collective_calls import Nccl
from flambeau.driver.virtual.collectives import coordinator_client
from flambeau.driver.virtual.collectives.collectives import Outside, VirtualCommunicators
from flambeau.driver.virtual.command_effects import Contents
from flambeau.driver.virtual.copies import Copies
from flambeau.driver.virtual.events import Events
from flambeau.driver.virtual.executable import VirtualExecutable
from flambeau.driver.virtual.graph_exec import Graphs
from flambeau.driver.virtual.host_time import HostClock, RankClocks
from flambeau.driver.virtual.launches import Launches
from flambeau.driver.virtual.memory.arena import RANGE_PAGE
from flambeau.driver.virtual.memory.host_budget import HostBudget
from flambeau.driver.virtual.memory.pinned_traffic import PinnedTraffic
from flambeau.driver.virtual.profile import load_profile
from flambeau.driver.virtual.scheduling.command_graph import CommandGraph
from flambeau.driver.virtual.scheduling.driver_lock import Gate
from flambeau.driver.virtual.scheduling.schedule_policy import open_policy, write_token
from flambeau.driver.virtual.scheduling.scheduler import CommandRecord, Scheduler
from flambeau.driver.virtual.simulated_machine import SimulatedMachine, check_error
from flambeau.driver.virtual.streams import Queues
from flambeau.driver.virtual.time_error import TimeError, expected_error
from flambeau.driver.virtual.topology import Routes

_MOST_DEVICES = 255  # 8 bits of an address number the device


def check_devices(devices: object) -> None:
    """Raise ValueError if a machine cannot have this number of devices."""
    if isinstance(devices, bool) or not isinstance(devices, int) or not 0 <= devices <= _MOST_DEVICES:
        raise ValueError(f"devices must be an integer from 0 to {_MOST_DEVICES}, not {devices!r}")


CHECKS: dict[str, Callable[[Any], object]] = {
    "devices": check_devices,
    "profile": load_profile,
    "schedule": open_policy,
}


class VirtualDriver:
    """The driver of simulated GPUs. `driver.protocol.Driver` documents its calls.

    Args:
        devices: Number of devices, 0 to 255.
        profile: The name of a profile, or the path of a TOML file.
        schedule: The policy that chooses the next command: `earliest`, `random:SEED`, `adversarial:SEED`,
            `pct:SEED:DEPTH` or `replay:TOKEN`.
        poison: True to fill fresh memory and freed blocks with a recognisable pattern.

    Raises:
        ValueError: If an argument is invalid or the profile is malformed.
    """

    name = "virtual"
    runs_bodies = True
    contents: type[Contents] = Contents  # the effects of commands on data

    def __init__(
        self, devices: int = 1, profile: str = "a100-40g", schedule: str = "earliest", poison: bool = False
    ) -> None:
        check_devices(devices)
        self.profile = load_profile(profile)
        self.observes_blocks = bool(poison)
        self._policy = open_policy(schedule)
        self._lock = Gate()
        self._core = core = Scheduler(self._policy, self.profile.queue, self._lock.leave)
        core.host_memory_tracker = PinnedTraffic()
        self._machine = machine = SimulatedMachine(
            devices, self.profile, core, self.observes_blocks, HostBudget() if self.contents.moves else None
        )
        self._hosts = RankClocks(core)
        self._routes = Routes(machine)
        gate: Any = self._lock  # threading.Condition accepts any object with a lock's methods
        self._comms = comms = VirtualCommunicators(core, Condition(gate), machine.handles, self._routes.ring)
        contents = self.contents(machine, self.observes_blocks)
        comms.numbers = contents.numbers
        captures = self._captures = Captures()
        queues = self._queues = Queues(machine, captures, comms)
        self._events = Events(machine, queues, captures, comms)
        self._memory = VirtualAllocations(machine, queues, captures)
        self._host = HostClock(core, self.profile.host or "pytorch", self.profile.host_factor or 1.0)
        self._copies = Copies(machine, queues, captures, self._routes, contents, self._host.costs)
        self._launches = Launches(machine, self._lock, queues, captures, contents, self._host)
        self._graphs = Graphs(machine, queues, captures, self._host.costs)
        self._nccl = Nccl(machine, queues, captures, contents, comms, self._outside)

    def _outside(self) -> Outside | None:
        """Return the transport to members of other processes, if a coordinator serves this process."""
        others = coordinator_client.of_process()
        if others is not None:
            others.machine = weakref.ref(self)
        return others

    # -- what upper rooms may look at -------------------------------------------------------------------
    @property
    def on_command(self) -> Callable[[CommandRecord], None] | None:
        """Return the callback for each completed command, in the order in which commands ran."""
        return self._core.on_command

    @on_command.setter
    def on_command(self, call: Callable[[CommandRecord], None] | None) -> None:
        self._core.on_command = call

    def record(self) -> CommandGraph:
        """Return a graph that records all commands from now on. Call it before the first command."""
        graph = self._core.request_log = CommandGraph(self.profile.queue, self.runs_bodies)
        return graph

    def next_seq(self) -> int:
        """Return the `seq` of the next command, which is the number of commands so far."""
        return self._core.next_seq

    def address_range(self) -> tuple[int, int]:
        """Return the first address of this machine's devices, and the address after the last."""
        first = self._machine.generation << 48
        return first, first + (1 << 48)

    def time_ns(self) -> int:
        """Return the simulated time of the host."""
        return self._core.now

    def host_wait_ns(self) -> int | None:
        """Return how long the host has waited for commands; None with ranks that are threads."""
        return None if self._hosts.is_used else self._core.waited

    def time_error(self) -> TimeError | None:
        """Return the error to expect of the simulated time so far; None if no command has run."""
        waited, now = self.host_wait_ns(), max(self._core.now, 1)
        return expected_error(self._core.busy, 0.0 if waited is None else 1 - waited / now)

    def host_work(self, kind: int, count: int) -> None:
        """Advance the host's clock by work between driver calls; see `runtime/hooks/host_work.py`."""
        with self._lock:
            self._host.charge(kind, count)

    def switch_host(self, before: int, after: int) -> None:
        """Switch to the simulated host of another rank. Ranks that are threads take turns, and each has its
        own clock.
        """
        with self._lock:
            self._hosts.switch(before, after)

    def join_hosts(self) -> None:
        """Continue with the host that started the ranks, after all ranks have ended."""
        with self._lock:
            self._hosts.join()

    def device_time_ns(self, index: int) -> int:
        """Return the simulated time at which the device's last completed command ended."""
        return self._machine.device(index).state.end

    def trace_hash(self) -> str:
        """Return a hash of the run so far: order, kinds, sizes, times and relative addresses, but no data."""
        with self._lock:
            return self._core.trace_hash()

    def token(self) -> str:
        """Return the choices made so far as text. `schedule="replay:" + token` repeats the order of this run."""
        with self._lock:
            return write_token(self._core.choices)

    def explain_unplayed(self) -> str:
        """Return why the program differs from the one of its token if it ended before the token did; else ""."""
        return str(getattr(self._policy, "explain_unplayed", ""))

    # -- devices ----------------------------------------------------------------------------------------
    def device_count(self) -> int:
        self._machine.check_open()
        return len(self._machine.devices)

    def device_properties(self, index: int) -> DeviceProperties:
        self._machine.device(index)
        profile = self.profile
        return DeviceProperties(
            profile.name, profile.major, profile.minor, profile.memory, profile.sms, profile.threads_per_sm,
            shared_memory_per_multiprocessor=profile.shared_memory_per_sm, L2_cache_size=profile.l2,
            clock_rate=profile.clock_khz, uuid=str(self._machine.uuid_of(index)), pci_bus_id=index + 1,
        )  # fmt: skip

    def device_sync(self, index: int) -> None:
        with self._lock:
            state = self._machine.device(index).state
            self._captures.refuse(state)
            self._core.now += self.profile.costs.sync_ns
            self._core.wait(state)
            check_error(state)

    def peer_can(self, index: int, peer: int) -> bool:
        return self._routes.can(index, peer)

    def peer_enable(self, index: int, peer: int) -> None:
        with self._lock:
            self._routes.enable(index, peer)

    def close(self) -> None:
        """Finish all work and release everything, including errors of kernels. The call is idempotent."""
        with self._lock:
            self._comms.abandon()
            for device in self._machine.devices:
                # a deadlocked command never runs; the call that waited for it has raised
                with suppress(DriverError):
                    self._core.wait(device.state)
            self._machine.close()
            self._queues.streams.clear()
            self._captures.of.clear()
            for part in (self._events, self._memory, self._graphs):
                part.clear()

    # -- memory -----------------------------------------------------------------------------------------
    def mem_info(self, index: int) -> tuple[int, int]:
        with self._lock:
            return self._memory.info(index)

    def mem_processes(self, index: int) -> list[tuple[int, int]]:
        with self._lock:
            return self._memory.processes(index)

    def mem_alloc(self, index: int, nbytes: int) -> int:
        with self._lock:
            return self._memory.allocate(index, nbytes)

    def mem_free(self, ptr: int) -> None:
        with self._lock:
            self._memory.free(ptr)

    def range_page(self, index: int) -> int:
        self._machine.device(index)
        return RANGE_PAGE

    def range_reserve(self, index: int, nbytes: int) -> int:
        with self._lock:
            return self._memory.reserve(index, nbytes)

    def range_map(self, ptr: int, nbytes: int) -> None:
        with self._lock:
            self._memory.map(ptr, nbytes)

    def range_unmap(self, ptr: int, nbytes: int) -> None:
        with self._lock:
            self._memory.unmap(ptr, nbytes)

    def range_release(self, ptr: int) -> None:
        with self._lock:
            self._memory.unreserve(ptr)

    def host_alloc(self, nbytes: int) -> HostMemory:
        if nbytes < 0:
            raise DriverError(f"host_alloc: the size must not be negative, got {nbytes}")
        with self._lock:
            return self._memory.allocate_host(nbytes)

    def host_free(self, memory: HostMemory) -> None:
        with self._lock:
            self._memory.free_host(memory)

    def host_register(self, ptr: int, nbytes: int) -> None:
        with self._lock:
            self._memory.register_host(ptr, nbytes)

    def host_unregister(self, ptr: int) -> int:
        with self._lock:
            return self._memory.unregister_host(ptr)

    def host_pinned(self, ptr: int, nbytes: int) -> bool:
        with self._lock:
            return self._memory.is_pinned(ptr, nbytes)

    def host_touch(self, ptr: int, nbytes: int, write: bool) -> None:
        pass

    def host_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        pass

    def block_alloc(self, ptr: int, nbytes: int, stream: int, written: bool = False, pool: int = -1) -> None:
        self._poison("block_alloc", ptr, nbytes, stream)

    def block_free(self, ptr: int, nbytes: int, stream: int, after: Sequence[int] = ()) -> None:
        self._poison("block_free", ptr, nbytes, stream)

    def block_wait(self, ptr: int, nbytes: int, stream: int, events: Sequence[int]) -> None:
        pass

    def _poison(self, what: str, ptr: int, nbytes: int, stream: int) -> None:
        if self.observes_blocks and nbytes and stream:  # 0 is pinned host memory
            with self._lock:
                self._memory.poison(what, ptr, nbytes, stream)

    # -- copies and fills -------------------------------------------------------------------------------
    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        with self._lock:
            self._copies.to_device(target, source, stream)

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        with self._lock:
            self._copies.to_host(target, source, stream)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        with self._lock:
            self._copies.between(target, source, nbytes, stream)

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        with self._lock:
            self._copies.fill(target, byte, nbytes, stream)

    # -- streams ----------------------------------------------------------------------------------------
    def stream_default(self, index: int) -> int:
        return self._machine.device(index).default.handle

    def stream_create(self, index: int, priority: int) -> int:
        with self._lock:
            return self._queues.create_side(index, priority).handle

    def stream_destroy(self, stream: int) -> None:
        with self._lock:
            self._queues.destroy(stream)

    def stream_native(self, stream: int) -> int:
        return self._queues.native(stream)

    def stream_adopt(self, index: int, native: int) -> int:
        with self._lock:
            return self._queues.adopt(index, native)

    def stream_query(self, stream: int) -> bool:
        with self._lock:
            return self._queues.query(stream)

    def stream_sync(self, stream: int) -> None:
        with self._lock:
            self._queues.sync(stream)

    def stream_wait(self, stream: int, event: int) -> None:
        with self._lock:
            self._events.wait(stream, event)

    # -- events -----------------------------------------------------------------------------------------
    def event_create(
        self, index: int, timing: bool, blocking: bool = False, interprocess: bool = False
    ) -> int:
        with self._lock:
            return self._events.create(index, timing, interprocess)

    def event_destroy(self, event: int) -> None:
        with self._lock:
            self._events.destroy(event)

    def event_record(self, event: int, stream: int) -> None:
        with self._lock:
            self._events.record(event, stream)

    def event_query(self, event: int, internal: bool = False) -> bool:
        with self._lock:
            return self._events.query(event, internal)

    def event_sync(self, event: int, internal: bool = False) -> None:
        with self._lock:
            self._events.sync(event)

    def event_elapsed_ns(self, start: int, end: int) -> int:
        with self._lock:
            return self._events.elapsed_ns(start, end)

    # -- other processes --------------------------------------------------------------------------------
    def ipc_memory(self, ptr: int) -> bytes:
        with self._lock:
            return self._memory.export(ptr)

    def ipc_open(self, index: int, handle: bytes) -> tuple[int, int]:
        with self._lock:
            return self._memory.open(index, handle)

    def ipc_close(self, ptr: int) -> None:
        with self._lock:
            self._memory.close(ptr)

    def ipc_event(self, event: int) -> bytes:
        with self._lock:
            return self._events.export(event)

    def ipc_event_open(self, index: int, handle: bytes) -> int:
        with self._lock:
            return self._events.open(index, handle)

    # -- kernels ----------------------------------------------------------------------------------------
    def load(self, launch: Launch, index: int) -> VirtualExecutable:
        with self._lock:
            return self._launches.load(launch, index)

    def generic(self, launch: Launch, index: int) -> None:
        """Return None, because a reference implementation is created for one shape."""

    def unload(self, exe: Executable) -> None:
        self._machine.check_open()

    def launch(
        self, exe: VirtualExecutable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int
    ) -> None:
        self._launches.launch(exe, ptrs, scalars, stream)

    def launcher(self, exe: VirtualExecutable) -> Launcher:
        return partial(self._launches.launch, exe)

    def library_handle(self, name: str, stream: int) -> int:
        self._queues.stream(stream)
        raise NotSupportedError(f"virtual GPUs have no handle of {name}: NumPy computes for them")

    def recurrent_memory(self, index: int, network: RecurrentNetwork) -> RecurrentMemory | None:
        self.device_properties(index)
        return reference_memory(network)

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        with self._lock:
            self._launches.host_call(call, stream)

    # -- graphs: see Note [Captures] in capture.py --------------------------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        with self._lock:
            self._graphs.capture_begin(stream, mode)

    def capture_end(self, stream: int) -> int:
        with self._lock:
            return self._graphs.capture_end(stream)

    def capture_active(self, stream: int) -> bool:
        return self._graphs.capture_active(stream)

    def graph_launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]] = ()) -> None:
        with self._lock:
            self._graphs.launch(graph, stream, seeds)

    def graph_dump(self, graph: int, path: str) -> None:
        self._graphs.graph(graph).dump(path)

    def graph_native(self, graph: int) -> tuple[int, int]:
        self._graphs.graph(graph)
        raise NotSupportedError("a graph of virtual GPUs is not a cudaGraph_t")

    def graph_instantiate(self, graph: int) -> None:
        # a virtual graph cannot change after its capture, so a check of the handle suffices
        self._graphs.graph(graph)

    def graph_destroy(self, graph: int) -> None:
        with self._lock:
            self._graphs.destroy(graph)

    # -- collectives: see Note [Collective instances] in collectives.py -----------------------------------------------
    def comm_id(self) -> bytes:
        return self._nccl.new_id()

    def comm_create(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int]],
        called: Sequence[int] = (),
        name: str = "",
    ) -> list[int]:
        with self._lock:
            return self._nccl.create(unique, size, members, called, name)

    def go_on(self, other: Awaited | None) -> None:
        """Let the devices progress while the host waits for something else; see `VirtualCommunicators.go_on`."""
        with self._lock:
            self._comms.go_on(other)

    def ask_around(self) -> None:
        """Let the devices progress while the host polls something else; see `VirtualCommunicators.ask_around`."""
        with self._lock:
            self._comms.ask_around()

    def comm_destroy(self, comm: int, abort: bool = False) -> None:
        with self._lock:
            self._comms.destroy(comm, abort)

    def comm_error(self, comm: int) -> str | None:
        with self._lock:
            return self._nccl.error(comm)

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        with self._lock:
            self._nccl.call(parts)
