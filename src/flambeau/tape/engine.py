"""The backward engine: runs nodes of the autograd graph from roots to leaves.

# Note [Order of backward]
A node is ready when all of its gradients have been computed; the engine counts beforehand how many that are. Leaves
run first, then the ready node that was recorded last. So the order depends on the program alone. Neither the count
nor the run is recursive: graphs may be arbitrarily deep.

# Note [Streams of backward]
Each node runs on the stream of its forward operation, and so does the addition of gradients for that node. If a
gradient was computed on another stream, the engine records an event there. The node's stream waits for that event
immediately before it adds gradients or runs the node. `record_stream` keeps the gradient's memory for this stream.
During backward the current streams are PyTorch's: a node of a GPU sees the default streams of all other GPUs, as in
PyTorch's thread for that GPU. A node of the CPU sees the caller's streams and device.
The initial gradients belong to the streams that are current when backward is called. At the end these streams wait
for the streams of the leaves. So an initial gradient, backward and the use of gradients are ordered as any other
operations on the current stream
(https://docs.pytorch.org/docs/1.8.0/notes/cuda.html#stream-semantics-of-backward-passes). A leaf has the stream
that Note [Streams of leaves] in tensor/autograd/autograd_meta.py gives it.

# Note [Nested backwards]
Problem: a node may call backward, whose nodes may call it again, without end. Each level takes ten frames or more of
Python's recursion limit. PyTorch continues in another thread after 60 levels, where the count starts from zero.
Rule: each nested backward raises the limit by 100 frames while it runs, up to 10,000 levels.
Why: in another thread the program would see other thread-local values, and the race detector another host thread.
The limit is one for all threads: it is changed by a difference, so that threads may nest at the same time.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import FLOATING
from flambeau.runtime import current, system
from flambeau.runtime.hooks import host_work, launch_hooks
from flambeau.runtime.streams.event import Event
from flambeau.runtime.streams.stream import Stream
from flambeau.runtime.streams.wait_reason import wait_reason
from flambeau.tape.autograd_node import LEAF_SEQUENCE, Leaf, Node
from flambeau.tape.function_base import engine_node
from flambeau.tape.mode import mode, shared_mode

Root = tuple[Node, int, Any]
OutputSlot = tuple[Node, int]


def run_backward(
    roots: Sequence[Root],
    retain_graph: bool = False,
    create_graph: bool = False,
    inputs: Sequence[OutputSlot] | None = None,
    accumulate: bool = True,
) -> list[Any]:
    """Compute gradients from `roots` towards the leaves.

    Args:
        roots: (node, output number, initial gradient) of each tensor to differentiate.
        retain_graph: True if nodes keep their saved tensors for another backward.
        create_graph: True if the gradient computation is recorded, for double backward.
        inputs: (node, output number) of the tensors whose gradients are computed; None for all leaves.
        accumulate: True if leaves, or those among `inputs`, add the gradient to their `.grad`.

    Returns:
        The gradients at `inputs`; None for an input that does not depend on the roots.
    """
    engine = BackwardEngine(retain_graph, create_graph, inputs, accumulate)
    return engine.run(roots) if mode.engine is None else _run_nested(engine, roots)


def _run_nested(engine: BackwardEngine, roots: Sequence[Root]) -> list[Any]:
    """Run a backward pass that a node of another backward pass starts. See Note [Nested backwards]."""
    depth = engine.depth = mode.engine.depth + 1
    frames = _NESTED_FRAMES if depth <= _MOST_NESTED else 0
    _raise_recursion_limit(frames)
    try:
        return engine.run(roots)
    finally:
        _raise_recursion_limit(-frames)


_NESTED_FRAMES, _MOST_NESTED = 100, 10_000
_limit_lock = threading.Lock()


def _raise_recursion_limit(frames: int) -> None:
    with _limit_lock:
        sys.setrecursionlimit(sys.getrecursionlimit() + frames)


_run_numbers = itertools.count()


class BackwardEngine:
    """One run of backward.

    Attributes:
        slots: The `inputs` of `run_backward`.
        captures: Node -> positions in `slots` whose gradients are returned.
        captured_grads: The gradients to return.
        buffers: Node -> sum of the gradients computed so far, for each of its outputs.
        ready: Heap of (-sequence, node) of the nodes that have all of their gradients.
        leaves: Leaves that have all of their gradients.
        final_streams: Device index -> streams on which final gradients were computed.
        ready_events: Stream -> the event recorded after the node that is running.
        pending_waits: Node -> events, each with the node that computed the gradient, that its stream must wait for.
        final_callbacks: Functions to call when all gradients are computed; a callback may append more.
        dependencies: Node -> the number of edges whose gradients are not computed yet.
        needed_nodes: The nodes that lead to `slots`; None if all nodes run.
        callers: The current streams and device of the thread that called backward.
        selected_index: The device index for which current streams are set; None at the beginning.
        profiled: True if a profiler subscribes to calls.
        on_slow_path: True under a profiler or anomaly detection.
        number: Identifies this run within the process.
        depth: Number of backwards that this one runs in.
    """

    def __init__(
        self, retain_graph: bool, create_graph: bool, inputs: Sequence[OutputSlot] | None, accumulate: bool
    ) -> None:
        self.retain_graph, self.create_graph, self.accumulate = retain_graph, create_graph, accumulate
        self.slots = inputs
        self.captures: dict[Node, list[int]] = {}
        for i, (node, _) in enumerate(inputs or ()):
            self.captures.setdefault(node, []).append(i)
        self.captured_grads: list[Any] = [None] * len(inputs or ())
        self.buffers: dict[Node, list[Any]] = {}
        self.ready: list[tuple[int, Node]] = []
        self.leaves: list[Leaf] = []
        self.final_streams: dict[int, list[Stream]] = {}
        self.ready_events: dict[Stream, ReadyEvent] = {}
        self.pending_waits: dict[Node, list[tuple[ReadyEvent, Node | None]]] = {}
        self.final_callbacks: list[Callable[[], None]] = []
        self.number = next(_run_numbers)
        self.depth = 0

    def run(self, roots: Sequence[Root]) -> list[Any]:
        self.dependencies, self.needed_nodes = _count_dependencies(
            [node for node, _, _ in roots], self.captures, self.slots is not None
        )
        self.thread_state = thread_state = current.local
        self.streams = thread_state.streams
        self.anomaly, self.context = mode.anomaly, None
        self.profiled = launch_hooks.has_subscribers()
        self.on_slow_path = self.anomaly or self.profiled
        step = self.profiled_step if self.profiled else self.step
        if host_work.charge is not None:
            step = self.charge_steps(step, roots, host_work.charge)
        self.callers = streams, device = list(thread_state.streams), thread_state.device
        self.selected_index: int | None = None
        outer_recording, outer_engine = mode.recording, mode.engine
        mode.recording, mode.engine = self.create_graph, self
        try:
            for node, output, grad in roots:
                self.add_to_buffer(node, output, grad)
            for node in dict.fromkeys([node for node, _, _ in roots]):
                if not self.dependencies.get(node):
                    self.push(node)
            while self.leaves or self.ready:
                step(self.leaves.pop(0) if self.leaves else heapq.heappop(self.ready)[1])
        finally:
            thread_state.streams[:] = streams
            thread_state.device = device
            mode.recording, mode.engine = outer_recording, outer_engine
        for index, producers in self.final_streams.items():
            for stream in producers:
                if stream != streams[index]:
                    with wait_reason(_explain_final_wait, stream, streams[index]):
                        make_stream_wait(streams[index], stream.record_event())
        if self.final_callbacks:
            self.call_back(outer_engine, outer_recording)
        return self.captured_grads

    def call_back(self, outer_engine: BackwardEngine | None, outer_recording: bool) -> None:
        """Call the final callbacks. The run stays active meanwhile, because a callback may queue more."""
        mode.recording, mode.engine = self.create_graph, self
        try:
            for callback in self.final_callbacks:
                callback()
        finally:
            mode.recording, mode.engine = outer_recording, outer_engine

    @staticmethod
    def charge_steps(
        step: Callable[[Node], None], roots: Sequence[Root], charge: host_work.Charge
    ) -> Callable[[Node], None]:
        """Count the start of this run and return a step that counts each node of a CUDA device."""

        def charged_step(node: Node) -> None:
            if node.index >= 0:
                charge(host_work.NODE, 1)
            step(node)

        if any(node.index >= 0 for node, _, _ in roots):
            charge(host_work.BACKWARD, 1)
        return charged_step

    def expects_gradient(self, node: Node) -> bool:
        """Return True if this run may compute a gradient of a node's output."""
        return node in self.dependencies and self.is_needed(node)

    def is_needed(self, node: Node) -> bool:
        """Return True if a gradient of this node's output is used."""
        return self.needed_nodes is None or node in self.needed_nodes or node in self.captures

    def push(self, node: Node) -> None:
        if isinstance(node, Leaf):
            self.leaves.append(node)
        else:
            heapq.heappush(self.ready, (-node.sequence, node))

    def select_device(self, index: int) -> None:
        """Set the current device and streams for nodes of device `index`: see Note [Streams of backward]."""
        self.selected_index = index
        if index < 0:
            self.streams[:], self.thread_state.device = self.callers
            return
        self.thread_state.device = index
        for i, stream in enumerate(self.streams[:-1]):
            self.streams[i] = stream.context.default_stream

    def add_to_buffer(self, node: Node, output: int, grad: Any, source: Node | None = None) -> None:
        """Add a gradient to the buffer of a node. See Note [Streams of backward].

        Args:
            node: The node that consumes the gradient.
            output: The number of the node's output that the gradient belongs to.
            grad: The gradient; the caller must not use it afterwards.
            source: The node that computed it; None for an initial gradient.
        """
        buffer = self.buffers.get(node)
        if buffer is None:
            buffer = self.buffers[node] = [None] * len(node.outputs)
        total = buffer[output]
        device_index = grad.meta.device.index
        if device_index is None:
            buffer[output] = grad if total is None else grad + total if total.meta.sparse else total + grad
            return
        streams = self.streams
        producer = streams[device_index] if source is None or source.index < 0 else source.stream
        consumer = streams[device_index] if node.index < 0 else node.stream
        if total is None:
            if producer is not consumer and producer != consumer:
                self.add_pending_wait(producer, consumer, node, grad, source)
            buffer[output] = grad
            return
        adder = consumer if consumer.device_index == device_index else streams[device_index]
        if producer is not adder and producer != adder:
            self.add_pending_wait(producer, adder, node, grad, source)
        if self.pending_waits:
            self.synchronize(node, adder)
        outer_stream, streams[device_index] = streams[device_index], adder
        buffer[output] = (
            grad + total if total.meta.sparse else total + grad
        )  # a sparse gradient is added to a strided one
        streams[device_index] = outer_stream
        if adder is not consumer and adder != consumer:
            self.pending_waits.setdefault(node, []).append((ReadyEvent(adder), source))

    def add_pending_wait(
        self, producer: Stream, consumer: Stream, node: Node, grad: Any, source: Node | None
    ) -> None:
        """Add a pending wait for a gradient that is used on another stream than the one that computes it."""
        if isinstance(node, Leaf) and shared_mode.warns_of_streams:
            _warn_of_streams()
        self.pending_waits.setdefault(node, []).append((self.record_ready_event(producer, source), source))
        if consumer.device_index == grad.meta.device.index:
            grad.record_stream(consumer)

    def record_ready_event(self, producer: Stream, source: Node | None) -> ReadyEvent:
        """Return the event behind the gradients of `source` on a stream; record it on first use."""
        ready = self.ready_events.get(producer)
        if ready is None:
            with wait_reason(_explain_ready_event, source, producer):
                ready = self.ready_events[producer] = ReadyEvent(producer)
        return ready

    def synchronize(self, node: Node, stream: Stream) -> None:
        """Make a stream wait for the gradients of a node that other streams compute."""
        for ready, source in self.pending_waits.pop(node, ()):
            if stream not in ready.waiters:
                ready.waiters.append(stream)
                with wait_reason(_explain_crossing, source, node, ready.stream, stream):
                    make_stream_wait(stream, ready.event)

    def profiled_step(self, node: Node) -> None:
        """Run `step` inside a range for profilers, which includes the work around the node itself."""
        with launch_hooks.within(f"autograd::engine::evaluate_function: {node.name()}"):
            self.step(node)

    def step(self, node: Node) -> None:
        """Run one node and send its gradients to the nodes of its inputs."""
        grads = self.buffers.pop(node, None)
        index, stream = node.index, node.stream
        if stream.context is not self.context:
            system.require_open(stream.context)
            self.context = stream.context
        if self.ready_events:
            self.ready_events.clear()
        if index != self.selected_index:
            self.select_device(index)
        self.streams[index] = stream
        if self.pending_waits:
            self.synchronize(node, stream)
        node_hooks = node.node_hooks
        if grads is None and (node_hooks is not None or node.runs_without_gradients) and self.is_needed(node):
            grads = [None] * len(node.outputs)
        if grads is not None and (
            (node_hooks is not None and (node_hooks.tensor_hooks or node_hooks.retain_grad_hooks))
            or (self.captures and node in self.captures)
        ):
            self.run_tensor_hooks(node, grads)
        if isinstance(node, Leaf):
            if grads is not None and grads[0] is not None:
                self.accumulate_into(node, grads.pop())
            elif node.node_hooks is not None:
                self.notify_unused_leaf(node)
            return
        if self.needed_nodes is not None and node not in self.needed_nodes:
            return
        input_grads = None
        if grads is not None:
            if node.node_hooks is None and not self.on_slow_path:
                input_grads = (
                    node.gradients(grads) if self.needed_nodes is None else self.needed_gradients(node, grads)
                )
                if not self.retain_graph:
                    node.release(self.dependencies)
            else:
                input_grads = self.gradients(node, grads)
        del grads
        self.send_to_inputs(node, input_grads)

    def send_to_inputs(self, node: Node, input_grads: Sequence[Any] | None) -> None:
        """Send gradients to the nodes of a node's inputs and enqueue those that are ready."""
        waiting = self.dependencies
        for i, edge in enumerate(node.edges):
            if edge is None:
                continue
            target, output = edge
            if input_grads is not None:
                grad = input_grads[i]
                if grad is not None and (self.needed_nodes is None or self.is_needed(target)):
                    self.add_to_buffer(target, output, grad, node)
            waiting[target] = remaining = waiting[target] - 1
            if not remaining:
                self.push(target)

    def run_tensor_hooks(self, node: Node, grads: list[Any]) -> None:
        """Apply tensor hooks to gradients, then store those that retain_grad or the caller asked for."""
        node_hooks = node.node_hooks
        if node_hooks is not None:
            for output, hooks in node_hooks.tensor_hooks.items():
                for hook in list(hooks.values()):
                    grads[output] = _apply_tensor_hook(hook, grads[output])
            for output, retain_grad in list(node_hooks.retain_grad_hooks.items()):
                if grads[output] is not None:
                    retain_grad(grads[output])
        for i in self.captures.get(node, ()):
            if not (self.accumulate and node.sequence == LEAF_SEQUENCE):
                self.captured_grads[i] = grads[self.slots[i][1]]  # type: ignore[index]
            self.note_final_stream(node)

    def note_final_stream(self, node: Node) -> None:
        if node.index >= 0:
            streams = self.final_streams.setdefault(node.index, [])
            if node.stream not in streams:
                streams.append(node.stream)

    def accumulate_into(self, leaf: Leaf, grad: Any) -> None:
        """Run a leaf's hooks and add a gradient to its `.grad`."""
        self.note_final_stream(leaf)
        if not self.accumulate or (self.needed_nodes is not None and leaf not in self.captures):
            return
        node_hooks = leaf.node_hooks
        if node_hooks is None:
            grad_cell = [grad]
            del grad  # the callee must hold the only reference to reuse the memory as the leaf's gradient
            if self.profiled:
                self.profiled_accumulate(leaf, grad_cell)
            else:
                leaf.add(grad_cell.pop(), self.create_graph)
            return
        for prehook in list(node_hooks.pre.values()):
            (grad,) = _apply_node_hook(prehook, (grad,))
        if self.profiled:
            self.profiled_accumulate(leaf, [grad], references=1)
        else:
            leaf.add(
                grad, self.create_graph, references=1
            )  # references=1: the hooks below receive `grad`, so its memory must not be reused
        for hook in list(node_hooks.post_accumulate.values()):
            hook(leaf.variable)
        for hook in list(node_hooks.post.values()):
            hook((), (grad,))

    def profiled_accumulate(self, leaf: Leaf, grad_cell: list[Any], references: int = 0) -> None:
        with launch_hooks.within(leaf.name()):
            leaf.add(grad_cell.pop(), self.create_graph, references)

    def notify_unused_leaf(self, leaf: Leaf) -> None:
        """Call the hooks of a leaf that received no gradient because nothing computed from it was used."""
        if self.accumulate and (self.needed_nodes is None or leaf in self.captures):
            node_hooks = leaf.ensured_hooks
            for hook in list(node_hooks.post_accumulate.values()):
                hook(leaf.variable)
            for hook in list(node_hooks.post.values()):
                hook((), (None,))

    def needed_gradients(self, node: Node, grads: Sequence[Any]) -> Sequence[Any]:
        """Compute the gradients of a node's inputs from `grads`, those of its outputs, where they are needed."""
        if self.needed_nodes is None:
            return node.gradients(grads)
        needed = [edge is not None and self.is_needed(edge[0]) for edge in node.edges]
        return node.gradients_for(needed, grads)

    def profiled_gradients(self, node: Node, grads: Sequence[Any]) -> Sequence[Any]:
        with launch_hooks.within(node.name()):
            return self.needed_gradients(node, grads)

    def gradients(self, node: Node, grads: list[Any]) -> Sequence[Any]:
        node_hooks = node.node_hooks
        if node_hooks is not None:
            for hook in list(node_hooks.pre.values()):
                grads = list(_apply_node_hook(hook, grads))
        compute = self.profiled_gradients if self.profiled else self.needed_gradients
        if not node.runs_without_gradients and all(grad is None for grad in grads):
            input_grads: Sequence[Any] = [None] * len(node.edges)
        elif self.anomaly:
            input_grads = _run_with_anomaly_detection(compute, node, grads)
        else:
            input_grads = compute(node, grads)
        if node_hooks is not None:
            for hook in list(node_hooks.post.values()):
                input_grads = _apply_node_hook(hook, input_grads, tuple(grads))
        if not self.retain_graph:
            node.release(self.dependencies)
        return input_grads


class ReadyEvent:
    """An event behind the gradients that one node computed on one stream.

    Attributes:
        stream: The stream that computes the gradients.
        event: The event, recorded on `stream`.
        waiters: The streams that already wait for the event.
    """

    __slots__ = ("event", "stream", "waiters")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.event = stream.record_event()
        self.waiters: list[Stream] = []


def make_stream_wait(waiter: Stream, event: Event) -> None:
    """Make a stream wait for an event. All waits of the engine go through here, so that tests can count them."""
    waiter.wait_event(event)


def _explain_ready_event(source: Node | None, producer: Stream) -> str:
    """Return the wait reason of an event that is recorded during backward."""
    return f"backward: {_gradient_name(source)} is ready on {_stream_name(producer)}"


def _gradient_name(source: Node | None) -> str:
    return "the initial gradient" if source is None else f"the gradient of {source.name()}"


def _warn_of_streams() -> None:
    """Warn, once per process, that a leaf accumulates on another stream than the one that computed its gradient."""
    shared_mode.warns_of_streams = False
    warn_program(
        "The AccumulateGrad node's stream does not match the stream of the node that produced the incoming gradient. "
        "This may incur unnecessary synchronization and break CUDA graph capture if the AccumulateGrad node's stream "
        "is the default stream. This mismatch is caused by an AccumulateGrad node created prior to the current "
        "iteration being kept alive. This can happen if the autograd graph is still being kept alive by tensors such "
        "as the loss, or if you are using DDP, which will stash a reference to the node. To resolve the mismatch, "
        "delete all references to the autograd graph or ensure that DDP initialization is performed under the same "
        "stream as subsequent forwards. If the mismatch is intentional, you can use "
        "torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False) to suppress this warning.",
        UserWarning,
    )


def _explain_crossing(source: Node | None, target: Node, producer: Stream, consumer: Stream) -> str:
    """Return the wait reason of a wait between two nodes."""
    return (
        f"backward: {_gradient_name(source)} crosses from {_stream_name(producer)} to {_stream_name(consumer)}, "
        f"for {target.name()}"
    )


def _explain_final_wait(producer: Stream, consumer: Stream) -> str:
    """Return the wait reason of a wait at the end of backward."""
    return (
        f"backward: gradients were accumulated on {_stream_name(producer)}; "
        f"{_stream_name(consumer)} called backward"
    )


def _stream_name(stream: Stream) -> str:
    return f"stream {stream.handle} of cuda:{stream.device_index}"


# -- hooks ------------------------------------------------------------------------------------------------


def _apply_tensor_hook(hook: Callable[[Any], Any], grad: Any) -> Any:
    """Return a gradient after a tensor hook. Raises if the hook's result does not match the gradient.

    The gradient is None where no later node computed one, as in PyTorch.
    """
    new = hook(grad)
    return grad if new is None else _check_hook_result(hook, new, grad)


def _check_hook_result(hook: Any, new: Any, old: Any) -> Any:
    if old is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if not hasattr(new, "meta"):
        raise TypeError(f"expected Variable, but hook returned '{type(new).__name__}'")
    if new.meta.shape != old.meta.shape:
        raise RuntimeError(f"hook '{_hook_name(hook)}' has changed the size of value")
    if new.meta.dtype is not old.meta.dtype or new.meta.device.type != old.meta.device.type:
        raise RuntimeError(
            f"hook '{_hook_name(hook)}' has changed the type of value (was {old.type()} got {new.type()})"
        )
    return new


def _apply_node_hook(hook: Callable[..., Any], grads: Sequence[Any], *others: Any) -> Sequence[Any]:
    """Return gradients after a node hook, which is called with them and `others`."""
    new = hook(tuple(grads), *others)
    if new is None:
        return grads
    if not isinstance(new, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(new).__name__}'")
    if len(new) != len(grads):
        raise RuntimeError(
            f"hook '{_hook_name(hook)}' has returned an incorrect number of values (got {len(new)}, but expected "
            f"{len(grads)})"
        )
    pairs = zip(new, grads, strict=True)
    return [n if n is None else _check_hook_result(hook, n, old) for n, old in pairs]


def _hook_name(hook: Any) -> str:
    return getattr(hook, "__name__", "<unknown>")


# -- the order of nodes -----------------------------------------------------------------------------------


def _count_dependencies(
    roots: Sequence[Node], captures: dict[Node, list[int]], pruned: bool
) -> tuple[dict[Node, int], set[Node] | None]:
    """Return node -> number of gradients to wait for, and the nodes that lead to `captures` (None if not `pruned`)."""
    dependencies: dict[Node, int] = dict.fromkeys(roots, 0)
    stack = list(dependencies)
    while stack:
        for edge in stack.pop().edges:
            if edge is None:
                continue
            target = edge[0]
            if target in dependencies:
                dependencies[target] += 1
            else:
                dependencies[target] = 1
                stack.append(target)
    if not pruned:
        return dependencies, None
    needed_nodes: set[Node] = set()
    # A node's inputs were recorded before the node: in the order of recording they are decided first.
    for node in sorted(dependencies, key=_recording_order):
        if any(edge is not None and (edge[0] in needed_nodes or edge[0] in captures) for edge in node.edges):
            needed_nodes.add(node)
    return dependencies, needed_nodes


def _recording_order(node: Node) -> int:
    return -1 if node.sequence == LEAF_SEQUENCE else node.sequence


# -- anomalies --------------------------------------------------------------------------------------------


def _run_with_anomaly_detection(
    gradients: Callable[[Node, Sequence[Any]], Sequence[Any]], node: Node, grads: list[Any]
) -> Sequence[Any]:
    """Return a node's gradients. Raises if one is NaN; on any error, warns with the stack of the forward call."""
    mode.anomaly_nodes.append(node)
    try:
        input_grads = gradients(node, grads)
        if mode.check_nan:
            _check_for_nan(node, input_grads)
        return input_grads
    except BaseException:
        _warn_of_forward_calls(node)
        raise
    finally:
        mode.anomaly_nodes.pop()


def _check_for_nan(node: Node, input_grads: Sequence[Any]) -> None:
    for i, grad in enumerate(input_grads):
        if grad is not None and grad.meta.dtype.category >= FLOATING and bool(grad.isnan().any()):
            raise RuntimeError(f"Function '{node.name()}' returned nan values in its {i}th output.")


def _warn_of_forward_calls(node: Node) -> None:
    _warn(f"Error detected in {node.name()}. ", node, "Traceback of forward call that caused the error:\n")
    parent = node.metadata.get("parent_")
    while parent is not None:
        parent = engine_node(parent)
        _warn(
            f"\n\nPrevious calculation was induced by {parent.name()}. ", parent,
            "Traceback of forward call that induced the previous calculation:\n",
        )  # fmt: skip
        parent = parent.metadata.get("parent_")


def _warn(message: str, node: Node, text: str) -> None:
    lines = node.metadata.get("traceback_")
    if lines is None:
        text = "No forward pass information available. Enable detect anomaly during forward pass for more information."
    warn_program(message + text + "".join(lines or ()), UserWarning)
