"""Recorded graphs of virtual GPUs and their launches.

See Note [Captures] in capture.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flambeau.core.errors import DriverError
from flambeau.core.files import replace_file
from flambeau.driver.protocol import seed_positions
from flambeau.driver.virtual.capture import MERGE, MODES, UNSUPPORTED, Captures, VirtualCapture
from flambeau.driver.virtual.host_time import HostCosts
from flambeau.driver.virtual.scheduling import scheduler
from flambeau.driver.virtual.scheduling.scheduler import KINDS, Command, SimulatedStream
from flambeau.driver.virtual.simulated_machine import SimulatedMachine
from flambeau.driver.virtual.streams import Queues


class Graphs:
    """The graphs of a machine, by handle."""

    def __init__(
        self, machine: SimulatedMachine, queues: Queues, captures: Captures, host: HostCosts
    ) -> None:
        self._machine, self._queues, self._captures, self._host = machine, queues, captures, host
        self._graphs: dict[int, RecordedGraph] = {}

    def clear(self) -> None:
        self._graphs.clear()

    # -- captures -----------------------------------------------------------------------------------------
    def capture_begin(self, stream: int, mode: str) -> None:
        queue = self._queues.ready(stream)
        if mode not in MODES:
            raise DriverError(f"capture_begin: the mode must be one of {MODES}, not {mode!r}")
        if queue in self._captures.of or self._queues.is_default(queue):
            raise DriverError(UNSUPPORTED)
        self._machine.core.now += self._machine.profile.costs.call_ns
        self._captures.begin(queue, mode)

    def capture_end(self, stream: int) -> int:
        found = self._captures.end(self._queues.stream(stream))
        handle = next(self._machine.handles)
        lanes = {s: self._queues.create(s.index, s.priority) for s in found.streams[1:]}
        self._graphs[handle] = RecordedGraph(found, lanes, self._machine.profile.costs.node_ns)
        return handle

    def capture_active(self, stream: int) -> bool:
        return self._queues.stream(stream) in self._captures.of

    # -- graphs -------------------------------------------------------------------------------------------
    def graph(self, handle: int) -> RecordedGraph:
        found = self._graphs.get(handle)
        return found if found is not None else self._machine.unknown("graph", handle)

    def launch(self, graph: int, stream: int, seeds: Sequence[tuple[int, int]]) -> None:
        found, queue = self.graph(graph), self._queues.ready(stream)
        if found.index != queue.index:
            raise DriverError(
                f"graph_launch: graph {graph} was recorded on cuda:{found.index}, stream {stream} is "
                f"cuda:{queue.index}'s"
            )
        for command in found.commands:
            self._check_ranges(command)
        if queue in self._captures.of:
            return self._nest(found, queue, seeds)
        core = self._machine.core
        core.now += self._host.calls["graph"]
        before = () if found.last is None else (found.last,)
        put = self._queues.put
        put(scheduler.WAIT, "graph", queue, 0, None, 0, 0, None, (), 0, 0, before)
        for command in found.copies(queue, seeds):
            self._queues.run(command)
        found.last = put(scheduler.RECORD, "graph", queue, 0, None, 0, 0, None, ())

    def _nest(self, graph: RecordedGraph, queue: SimulatedStream, seeds: Sequence[tuple[int, int]]) -> None:
        """Record a graph's commands as part of a stream's capture."""
        captures = self._captures.of
        recorder = captures[queue]
        for lane in graph.lanes.values():
            if captures.setdefault(lane, recorder) is not recorder:
                raise DriverError(MERGE)
            recorder.join(lane)
        for command in graph.copies(queue, seeds):
            recorder.add(command)

    def destroy(self, graph: int) -> None:
        for lane in self.graph(graph).lanes.values():
            self._queues.destroy(lane.handle)
        del self._graphs[graph]

    def _check_ranges(self, command: Command) -> None:
        """Raise if memory of a recorded command was freed since the capture."""
        args, check = command.args, self._machine.range
        if command.kind == scheduler.KERNEL:
            exe, ptrs, _ = args
            for ptr, span in zip(ptrs, exe.spans, strict=True):
                if span:
                    check(exe.name, ptr, span)
        elif command.kind == scheduler.COPY_IN:
            check("copy_in", args[1], command.nbytes)
        elif command.kind == scheduler.COPY_OUT:
            check("copy_out", args[2], command.nbytes)
        elif command.kind == scheduler.COPY:
            check("copy", args[1], command.nbytes)
            check("copy", args[3], command.nbytes)
        elif command.kind == scheduler.FILL:
            check("fill", args[1], command.nbytes)


class RecordedGraph:
    """The recorded commands of a graph.

    Attributes:
        lanes: Recorded stream -> own stream of the graph on which its commands are launched.
        last: The marker that ends the latest launch.
    """

    __slots__ = ("_places", "commands", "index", "lanes", "last", "origin")

    def __init__(
        self, capture: VirtualCapture, lanes: dict[SimulatedStream, SimulatedStream], node_ns: int
    ) -> None:
        self.origin = capture.origin
        self.index = capture.origin.index
        self.commands = capture.commands
        self.lanes = lanes
        self.last: Command | None = None
        self._places = {command: place for place, command in enumerate(self.commands)}
        # streams with a kernel so far; later kernels of the stream start sooner
        launched: set[SimulatedStream] = set()
        for command in self.commands:
            command.prior = None
            if command.kind == scheduler.KERNEL:
                if command.stream in launched:
                    command.latency = min(command.latency, node_ns)
                launched.add(command.stream)

    def copies(self, queue: SimulatedStream, seeds: Sequence[tuple[int, int]]) -> Iterator[Command]:
        """Yield copies of the commands for a launch on `queue`, each after those that it waits for."""
        made: list[Command] = []
        for command in self.commands:
            stream = queue if command.stream is self.origin else self.lanes[command.stream]
            copy = Command(
                command.kind, command.name, stream, command.nbytes, command.engine, command.sms, command.latency,
                command.work, command.effect, _seed_arguments(command, seeds), command.origin,
                tuple([made[self._places[awaited]] for awaited in command.waits]),
            )  # fmt: skip
            copy.site = command.site
            made.append(copy)
            yield copy

    def dump(self, path: str) -> None:
        """Write the graph as a Graphviz file."""
        lines = ["digraph graph {"]
        tails: dict[SimulatedStream, int] = {}
        for place, command in enumerate(self.commands):
            lines.append(
                f'  n{place} [label="{KINDS[command.kind]} {command.name}\\n{command.nbytes} bytes"];'
            )
            before = [self._places[awaited] for awaited in command.waits]
            if command.stream in tails:
                before.insert(0, tails[command.stream])
            lines += [f"  n{earlier} -> n{place};" for earlier in before]
            tails[command.stream] = place
        replace_file(path, "\n".join([*lines, "}", ""]))


def _seed_arguments(command: Command, seeds: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
    """Return a command's arguments with this launch's seed and offset."""
    if command.kind != scheduler.KERNEL or not command.args[0].launch.kernel.draws:
        return tuple(command.args)
    exe, ptrs, scalars = command.args
    numbers = list(scalars)
    for k in seed_positions(exe.launch):
        seed, base = seeds[numbers[k]]
        numbers[k : k + 2] = seed, base + numbers[k + 1]
    return exe, ptrs, tuple(numbers)
