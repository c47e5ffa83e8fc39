"""`backward`: the walk from roots to leaves.

# Note [The order of the walk]
A node runs when all gradients that it will get have arrived: their number is counted beforehand. Of the
nodes that are ready the one recorded last runs first, leaves before all. So the order depends on the program
alone. Neither the count nor the walk is recursive: a chain of any length runs.

# Note [Streams of the walk]
Each node runs on the stream of its forward operation, and so does the addition of gradients that meet at it.
Where a gradient was made on another stream, that stream is waited for, and the gradient's memory is kept for
its new stream (`record_stream`). The initial gradients count as made on the streams that are current where
backward is called; at the end these wait for the streams of the leaves. So giving an initial gradient, calling
backward and using the gradients stand to each other as any operations on the current stream do
(https://docs.pytorch.org/docs/1.8.0/notes/cuda.html#stream-semantics-of-backward-passes).
"""

from __future__ import annotations

import heapq
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from flambeau.runtime import current, system
from flambeau.runtime.stream import Stream
from flambeau.tape.mode import mode
from flambeau.tape.node import Leaf, Node

Root = tuple[Node, int, Any]
Place = tuple[Node, int]


def backward(
    roots: Sequence[Root],
    keep: bool = False,
    create: bool = False,
    inputs: Sequence[Place] | None = None,
    accumulate: bool = True,
) -> list[Any]:
    """Walk from `roots` (node, output number, gradient) towards the leaves.

    keep: nodes keep what they saved. create: the walk itself is recorded. inputs: walk only to these places;
    accumulate: leaves (those among `inputs`, if given) add to their `.grad`.
    Returns the gradients that arrived at `inputs`, None where none did.
    """
    return _Walk(keep, create, inputs, accumulate).run(roots)


class _Walk:
    def __init__(self, keep: bool, create: bool, inputs: Sequence[Place] | None, accumulate: bool) -> None:
        self.keep, self.create, self.accumulate = keep, create, accumulate
        self.places = inputs
        self.wanted: dict[Node, list[int]] = {}
        for i, (node, _) in enumerate(inputs or ()):
            self.wanted.setdefault(node, []).append(i)
        self.found: list[Any] = [None] * len(inputs or ())
        self.buffers: dict[Node, list[Any]] = {}
        self.ready: list[tuple[int, int, Node]] = []
        self.ended: dict[int, list[Stream]] = {}  # by device: streams on which gradients came to rest
        self.count = 0
        self.waited: set[tuple[Stream, Stream]] = set()

    def run(self, roots: Sequence[Root]) -> list[Any]:
        self.waiting, self.runs = _survey(
            [node for node, _, _ in roots], self.wanted, self.places is not None
        )
        here = current.local.__dict__
        streams, device, recorded = list(here["streams"]), here["device"], mode.recording
        mode.recording = self.create
        try:
            for node, output, grad in roots:
                self.deliver(node, output, grad)
            for node in dict.fromkeys(node for node, _, _ in roots):
                if not self.waiting.get(node):
                    self.push(node)
            while self.ready:
                self.step(heapq.heappop(self.ready)[2])
        finally:
            here["streams"][:] = streams
            here["device"] = device
            mode.recording = recorded
        for index, others in self.ended.items():
            for stream in others:
                if stream != streams[index]:
                    order(streams[index], stream)
        return self.found

    def push(self, node: Node) -> None:
        self.count += 1
        heapq.heappush(self.ready, (-node.sequence, self.count, node))

    def deliver(self, node: Node, output: int, grad: Any) -> None:
        """Add a gradient to what a node has got so far, on that node's stream: see Note [Streams of the walk]."""
        buffer = self.buffers.get(node)
        if buffer is None:
            buffer = self.buffers[node] = [None] * len(node.outputs)
        where = grad.meta.device.index
        streams = current.local.streams
        if where is not None and where == node.index:
            producer = streams[where]
            if producer != node.stream:
                self.after(producer, node.stream)
                grad.record_stream(node.stream)
            if buffer[output] is not None:
                streams[where] = node.stream
                buffer[output] = buffer[output] + grad
                streams[where] = producer
                return
        held = buffer[output]
        buffer[output] = grad if held is None else held + grad

    def after(self, producer: Stream, consumer: Stream) -> None:
        """Let a stream wait for what one node made: once, since all of it was made before any is passed on."""
        if (producer, consumer) not in self.waited:
            self.waited.add((producer, consumer))
            order(consumer, producer)

    def step(self, node: Node) -> None:
        """Run one node and pass on what it gives."""
        grads = self.buffers.pop(node, None)
        system.require_open(node.stream.context)
        self.waited.clear()
        here = current.local.__dict__
        here["streams"][node.index] = node.stream
        if node.index >= 0:
            here["device"] = node.index
        if grads is not None:
            grads = self.arrived(node, grads)
        if isinstance(node, Leaf):
            if grads is not None and grads[0] is not None:
                self.rest(node, grads.pop())
            return
        if self.runs is not None and node not in self.runs:
            return
        given = (
            self.gradients(node, grads) if grads is not None and _any(grads) and _any(node.edges) else None
        )
        del grads
        for i, edge in enumerate(node.edges):
            if edge is None:
                continue
            target, output = edge
            if given is not None and given[i] is not None and self.leads(target):
                self.deliver(target, output, given[i])
            self.waiting[target] -= 1
            if not self.waiting[target]:
                self.push(target)

    def leads(self, node: Node) -> bool:
        """Whether a gradient is of use at a node."""
        return self.runs is None or node in self.runs or node in self.wanted

    def arrived(self, node: Node, grads: list[Any]) -> list[Any]:
        """The gradients after the hooks of the tensors that they are of; keep those that are asked for."""
        notes = node.__dict__
        for output, hooks in notes.get("tensor_hooks", {}).items():
            for hook in list(hooks.values()):
                if grads[output] is not None:
                    grads[output] = _replaced(hook(grads[output]), grads[output])
        for output, keeper in notes.get("keepers", {}).items():
            if grads[output] is not None:
                keeper(grads[output])
        for i in self.wanted.get(node, ()) if self.places is not None else ():
            output = self.places[i][1]  # type: ignore[index]
            if not (self.accumulate and isinstance(node, Leaf)):
                self.found[i] = grads[output]
            self.ends(node)
        return grads

    def ends(self, node: Node) -> None:
        if node.index >= 0:
            streams = self.ended.setdefault(node.index, [])
            if node.stream not in streams:
                streams.append(node.stream)

    def rest(self, leaf: Leaf, grad: Any) -> None:
        """Accumulate into a leaf."""
        self.ends(leaf)
        if not self.accumulate or (self.runs is not None and leaf not in self.wanted):
            return
        for prehook in list(leaf.__dict__.get("prehooks", {}).values()):
            replaced = prehook((grad,))
            grad = grad if replaced is None else replaced[0] if isinstance(replaced, tuple) else replaced
        held = [grad]
        del grad
        leaf.add(held.pop(), self.create)
        variable = leaf.variable
        for hook in list(leaf.__dict__.get("hooks", {}).values()):
            hook((), (leaf.grad,))
        for hook in list(leaf.__dict__.get("post_hooks", {}).values()):
            hook(variable)

    def gradients(self, node: Node, grads: list[Any]) -> Sequence[Any]:
        notes = node.__dict__
        for hook in list(notes.get("prehooks", {}).values()):
            replaced = hook(tuple(grads))
            if replaced is not None:
                grads = list(replaced) if isinstance(replaced, tuple | list) else [replaced]
        try:
            given = node.gradients(grads)
            if mode.anomaly and mode.checks_nan:
                _refuse_nan(node, given)
        except BaseException:
            if mode.anomaly:
                _tell_where(node)
            raise
        for hook in list(notes.get("hooks", {}).values()):
            replaced = hook(tuple(given), tuple(grads))
            if replaced is not None:
                given = tuple(replaced) if isinstance(replaced, tuple | list) else (replaced,)
        if not self.keep:
            node.release()
        return given


def order(waiter: Stream, other: Stream) -> None:
    """Let a stream wait for what another was given: each edge of the walk goes through here."""
    waiter.wait_stream(other)


def _any(grads: Iterable[Any]) -> bool:
    return any(g is not None for g in grads)


def _replaced(new: Any, old: Any) -> Any:
    if new is None:
        return old
    if new.meta.shape != old.meta.shape:
        raise RuntimeError(
            f"hook has changed the size of value: it was {list(old.meta.shape)} and is {list(new.meta.shape)}"
        )
    return new


def _survey(
    roots: Sequence[Node], wanted: dict[Node, list[int]], pruned: bool
) -> tuple[dict[Node, int], set[Node] | None]:
    """How many gradients each node waits for; and, if `pruned`, the nodes that have a wanted one behind them."""
    waiting: dict[Node, int] = {}
    seen: set[Node] = set(roots)
    visited: list[Node] = []
    stack = list(dict.fromkeys(roots))
    while stack:
        node = stack.pop()
        visited.append(node)
        for edge in node.edges:
            if edge is None:
                continue
            target = edge[0]
            waiting[target] = waiting.get(target, 0) + 1
            if target not in seen:
                seen.add(target)
                stack.append(target)
    if not pruned:
        return waiting, None
    runs: set[Node] = set()
    # A node's inputs were recorded before it: in the order of recording all are decided before they are asked for.
    for node in sorted(visited, key=_recorded):
        if any(edge is not None and (edge[0] in runs or edge[0] in wanted) for edge in node.edges):
            runs.add(node)
    return waiting, runs


def _recorded(node: Node) -> int:
    return -1 if isinstance(node, Leaf) else node.sequence


def _refuse_nan(node: Node, given: Sequence[Any]) -> None:
    for i, grad in enumerate(given):
        if grad is not None and grad.meta.dtype.category >= 2 and bool(grad.isnan().any()):
            raise RuntimeError(f"Function '{node.name()}' returned nan values in its {i}th output.")


def _tell_where(node: Node) -> None:
    lines = node.metadata.get("traceback_")
    where = (
        "".join(lines)
        if lines
        else "No forward pass information available. Enable detect anomaly during forward pass."
    )
    warnings.warn(
        f"Error detected in {node.name()}. Traceback of forward call that caused the error:\n{where}",
        UserWarning,
        stacklevel=2,
    )
