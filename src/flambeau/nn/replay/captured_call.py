"""One captured call of a function: its graph, and what a replay needs to stand for a call."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from flambeau.nn.replay.graph_results import Results
from flambeau.nn.replay.python_state import PythonState
from flambeau.nn.replay.recorded_capture import CaptureBreak, RecordedCapture, RecordedLaunch
from flambeau.nn.replay.released_graphs import ReleasedGraph
from flambeau.nn.replay.static_arguments import StaticArguments
from flambeau.runtime import current
from flambeau.runtime.device_context import Context
from flambeau.runtime.graphs.cuda_graph import CUDAGraph
from flambeau.tape.autograd_node import next_sequence
from flambeau.tensor.storage import Storage
from flambeau.tensor.tensor import Tensor


class CapturedCall:
    """A graph that stands for calls of a function.

    Args:
        run: Calls the function.
        leaves: The values of its arguments.
        state: The state that it can read.
        moving: The numbers of arguments whose address changes.
        context: The device.

    Attributes:
        state: The same.
        launches: The commands of the graph.
        refusal: Why the graph cannot stand for further calls; None if it can.
        result: What the captured call returns.
        replays: How often the graph was replayed.
        latest: The number of its latest replay among those of the function; 0 if it was not replayed yet.
    """

    def __init__(
        self,
        run: Callable[[], Any],
        leaves: Sequence[Any],
        state: PythonState,
        moving: set[int],
        context: Context,
    ) -> None:
        self.state, self._context = state, context
        self.replays = self.latest = 0
        states = list(state.tensors.values())
        self.arguments = StaticArguments(leaves, moving, states)
        self._counters = list({id(t.counter): t.counter for t in states}.values())
        versions = [counter.version for counter in self._counters]
        own = [t for t in (*states, *leaves) if isinstance(t, Tensor)]
        histories = [t.history for t in own]
        begin = next_sequence()
        self.arguments.copy_in(leaves)
        self._capture = RecordedCapture(context, self.arguments, states)
        self.launches: list[RecordedLaunch] = self._capture.launches
        self.result: Any = None
        with self._capture.run():
            value = run()
        self.refusal: CaptureBreak | None = self._capture.refusal
        if self.refusal is not None:
            self.result = value
            return
        self._writes = [
            (counter, counter.version - before)
            for counter, before in zip(self._counters, versions, strict=True)
            if counter.version != before
        ]
        recorded = [t for t, history in zip(own, histories, strict=True) if t.history is not history]
        self._finish(value, leaves, states, ReleasedGraph(begin, states), recorded)

    def _finish(
        self,
        value: Any,
        leaves: Sequence[Any],
        states: Sequence[Tensor],
        graph: ReleasedGraph,
        recorded: Sequence[Tensor],
    ) -> None:
        """Launch the graph, and decide whether it can stand for further calls."""
        written = {id(counter) for counter, _ in self._writes}
        self.arguments.note_writes([t.memory for t in states if id(t.counter) in written])
        known: dict[int, Storage] = {id(t.memory): t.memory for t in states}
        changes = self.state.changes()
        put = [c for c in changes if isinstance(c[2], Tensor) and c[0].put is not None]
        self._puts = [(container, at) for container, at, _ in put]
        self._results = Results(value, [t for _, _, t in put], leaves, states, graph, self._capture.graph)
        known |= {id(x.memory): x.memory for x in leaves if isinstance(x, Tensor)}
        why = self._results.refusal or self._find_effect(changes, len(put)) or self._find_unknown(known)
        if recorded and not why:
            name = self.state.paths.get(id(recorded[0]), "an argument")
            why = f"it changes {name} in place, in a way that autograd records"
        del changes, put
        why = why or self._find_escaped()
        if why:
            self.refusal = CaptureBreak(why, None, is_final=bool(self._results.refusal))
            self._launch(leaves)
            self.result = value
            return
        self._foreign = [
            m
            for m in known.values()
            if m.context is self._context and m.stream != m.context.default_stream.handle
        ]
        storages = self._results.guarded_storages()
        self.state.keep_addresses(lambda t: id(t.memory) in storages or self._accesses(t))
        self._results.release()
        del value
        self.result = self._launch_and_build(leaves, counted=True)
        self.arguments.release()

    @property
    def graph(self) -> CUDAGraph:
        """Return the graph."""
        return self._capture.graph

    # -- why not --------------------------------------------------------------------------------------
    def _find_effect(self, changes: Sequence[Any], puts: int) -> str:
        """Return which Python state the function changed that a replay would not change; "" for none."""
        if len(changes) == puts:
            return "" if self.launches else "it launches nothing"
        others = [c for c in changes if not (isinstance(c[2], Tensor) and c[0].put is not None)]
        container, at, _ = others[0]
        name = container.path if at < 0 else container.path + container.names[at]
        return f"it changes {name}, and a replay does not run Python"

    def _find_unknown(self, known: dict[int, Storage]) -> str:
        """Return which launch accesses memory that neither a guard checks nor the graph's pool has; "" if none does."""
        ranges = [(m.ptr, m.ptr + m.nbytes) for m in [*known.values(), *self.arguments.storages]]
        ranges += self._pool_ranges()
        for launch in self.launches:
            for ptr, nbytes in launch.operands:
                if nbytes and not any(begin <= ptr and ptr + nbytes <= end for begin, end in ranges):
                    return f"{launch.describe()} accesses a tensor that no guard reaches"
        return ""

    def _pool_ranges(self) -> list[tuple[int, int]]:
        """Return the memory of the graph's pool."""
        return _pool_ranges(self._capture)

    def _find_escaped(self) -> str:
        """Return "" if only the results refer to memory of the pool."""
        mine = {memory.storage.ptr for memory in self._results.memories}
        for _ in range(2):
            segments = _pool_segments(self._capture)
            blocks = [b for s in segments for b in s["blocks"] if b["state"] == "active_allocated"]
            if all(block["address"] in mine for block in blocks):
                return ""
            gc.collect()  # cycles may hold intermediate results
        return "it stores a tensor where no guard reaches"

    def _accesses(self, t: Tensor) -> bool:
        """Return True if the graph accesses the memory of a tensor."""
        begin, end = t.memory.ptr, t.memory.ptr + t.memory.nbytes
        return any(ptr < end and begin < ptr + nbytes for x in self.launches for ptr, nbytes in x.operands)

    # -- replays --------------------------------------------------------------------------------------
    def replay(self, leaves: Sequence[Any], counted: bool = False) -> Any:
        """Launch the graph in place of a call, and return the results of the call.

        Args:
            leaves: The values of the call's arguments.
            counted: True if the Python code ran for this call, and counted what it writes.
        """
        self.arguments.copy_in(leaves)
        handle = current.local.streams[self._context.index].handle
        for memory in self._foreign:
            memory.used_on(handle)
        return self._launch_and_build(leaves, counted)

    def compare(self, run: Callable[[], Any], leaves: Sequence[Any]) -> str:
        """Run the Python code of a call in a capture. Return "" if its launches are those of the graph."""
        arguments = StaticArguments(leaves, set(), ())
        capture = RecordedCapture(self._context, arguments, list(self.state.tensors.values()))
        with capture.run():
            run()
        if capture.refusal is not None:
            return f"it cannot be captured: {capture.refusal}"
        names = self.arguments.names_of(leaves)
        pools = self._pool_ranges(), _pool_ranges(capture)
        for ours, theirs in zip_longest(self.launches, capture.launches):
            if ours is None or theirs is None:
                return (
                    f"{(ours or theirs).describe()} is launched only by {'the graph' if ours else 'the call'}"
                )
            if ours[:2] != theirs[:2]:
                return f"{theirs.describe()}, where the graph has {ours.describe()}"
            for mine, other in zip(ours.operands, theirs.operands, strict=True):
                if _identify(mine, pools[0], {}) != _identify(other, pools[1], names):
                    return f"{theirs.describe()} accesses other memory than the graph"
        return ""

    def _launch(self, leaves: Sequence[Any]) -> None:
        self._capture.graph.replay()
        self.arguments.copy_back(leaves)

    def _launch_and_build(self, leaves: Sequence[Any], counted: bool) -> Any:
        results = self._results
        if results.must_wait():
            self._context.synchronize()
        results.expire_assigned()
        self._launch(leaves)
        if not counted:
            for counter, change in self._writes:
                counter.version += change
            self.arguments.count_writes(leaves)
        value, assigned = results.build(leaves, current.local.streams[self._context.index].handle)
        for (container, at), t in zip(self._puts, assigned, strict=True):
            self.state.assign(container, at, t)
        return value

    def expire(self) -> None:
        """Let the results of the latest run raise when they are used."""
        self._results.expire()


def _pool_segments(capture: RecordedCapture) -> list[dict[str, Any]]:
    pool: Any = capture.graph._pool
    segments: list[dict[str, Any]] = pool.snapshot(include_traces=False)
    return segments


def _pool_ranges(capture: RecordedCapture) -> list[tuple[int, int]]:
    return [(s["address"], s["address"] + s["total_size"]) for s in _pool_segments(capture)]


def _identify(
    operand: tuple[int, int], pool: Sequence[tuple[int, int]], arguments: dict[int, tuple[int, int]]
) -> tuple[int, int]:
    """Return what two captures have in common of an operand: memory of their pools counts as equal.

    Args:
        operand: Address and bytes.
        pool: The memory of the capture's pool.
        arguments: Address of an argument -> address and bytes of the static tensor that stands for it.
    """
    ptr, nbytes = operand
    if any(begin <= ptr < end for begin, end in pool):
        return 0, nbytes
    for own, (static, span) in arguments.items():
        if own <= ptr < own + span:
            return static + ptr - own, nbytes
    return ptr, nbytes
