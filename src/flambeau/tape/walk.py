"""`backward`: the walk from roots to leaves.

# Note [The order of the walk]
A node runs when all gradients that it will get have arrived: their number is counted beforehand. Of the
nodes that are ready the one recorded last runs first, leaves before all. So the order depends on the program
alone. Neither the count nor the walk is recursive: a chain of any length runs.

# Note [Streams of the walk]
Each node runs on the stream of its forward operation, and so does the addition of gradients that meet at it.
Where a gradient was computed on another stream, an event is recorded there; the node's stream waits for it before
gradients are added or the node runs, no sooner. The gradient's memory is kept for its new stream (`record_stream`).
Amid the walk the current streams are PyTorch's: a node of a GPU sees the default streams of all other GPUs, as
PyTorch's thread for that GPU does; a node of the CPU sees the caller's streams and the caller's device.
The initial gradients count as made on the streams that are current where
backward is called; at the end these wait for the streams of the leaves. So giving an initial gradient, calling
backward and using the gradients stand to each other as any operations on the current stream do
(https://docs.pytorch.org/docs/1.8.0/notes/cuda.html#stream-semantics-of-backward-passes). A leaf has the stream
that Note [Streams of leaves] in tensor/history.py gives it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.sites import warn_program
from flambeau.runtime import current, system
from flambeau.runtime.hooks import launch_hooks
from flambeau.runtime.streams.event import Event
from flambeau.runtime.streams.stream import Stream
from flambeau.runtime.streams.wait_reason import because
from flambeau.tape.mode import anywhere, mode
from flambeau.tape.node import LAST, Leaf, Node

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


_numbers = itertools.count()


class _Walk:
    """One walk. `number` tells it from others."""

    def __init__(self, keep: bool, create: bool, inputs: Sequence[Place] | None, accumulate: bool) -> None:
        self.keep, self.create, self.accumulate = keep, create, accumulate
        self.places = inputs
        self.wanted: dict[Node, list[int]] = {}
        for i, (node, _) in enumerate(inputs or ()):
            self.wanted.setdefault(node, []).append(i)
        self.found: list[Any] = [None] * len(inputs or ())
        self.buffers: dict[Node, list[Any]] = {}
        self.ready: list[tuple[int, Node]] = []
        self.leaves: list[Leaf] = []  # that have all of their gradients
        self.ended: dict[int, list[Stream]] = {}  # by device: streams on which gradients came to rest
        self.marks: dict[Stream, _Mark] = {}  # of what the node that runs has computed, by its stream
        self.pending: dict[Node, list[tuple[_Mark, Node | None]]] = {}  # what a node's stream has to wait for
        self.endings: list[Callable[[], None]] = []  # called when all gradients have come to rest
        self.number = next(_numbers)

    def run(self, roots: Sequence[Root]) -> list[Any]:
        self.waiting, self.runs = _survey(
            [node for node, _, _ in roots], self.wanted, self.places is not None
        )
        self.here = here = current.local
        self.streams = here.streams
        self.anomaly, self.context = mode.anomaly, None
        self.told = launch_hooks.heard()
        self.aside = self.anomaly or self.told
        step = self.told_step if self.told else self.step
        self.callers = streams, device = list(here.streams), here.device
        self.selected: int | None = None
        recorded, around = mode.recording, mode.walk
        mode.recording, mode.walk = self.create, self
        try:
            for node, output, grad in roots:
                self.deliver(node, output, grad)
            for node in dict.fromkeys([node for node, _, _ in roots]):
                if not self.waiting.get(node):
                    self.push(node)
            while self.leaves or self.ready:
                step(self.leaves.pop(0) if self.leaves else heapq.heappop(self.ready)[1])
        finally:
            here.streams[:] = streams
            here.device = device
            mode.recording, mode.walk = recorded, around
        for index, others in self.ended.items():
            for stream in others:
                if stream != streams[index]:
                    with because(_rests, stream, streams[index]):
                        order(streams[index], stream.record_event())
        for ending in self.endings:  # an ending may add more
            ending()
        return self.found

    def comes_to(self, node: Node) -> bool:
        """Whether gradients may arrive at a node."""
        return node in self.waiting and self.leads(node)

    def leads(self, node: Node) -> bool:
        """Whether a gradient is of use at a node."""
        return self.runs is None or node in self.runs or node in self.wanted

    def push(self, node: Node) -> None:
        if isinstance(node, Leaf):
            self.leaves.append(node)
        else:
            heapq.heappush(self.ready, (-node.sequence, node))

    def select(self, index: int) -> None:
        """Set the current device and streams for nodes of device `index`: see Note [Streams of the walk]."""
        self.selected = index
        if index < 0:
            self.streams[:], self.here.device = self.callers
            return
        self.here.device = index
        for i, stream in enumerate(self.streams[:-1]):
            self.streams[i] = stream.context.default_stream

    def deliver(self, node: Node, output: int, grad: Any, source: Node | None = None) -> None:
        """Add a gradient to what a node has got so far: see Note [Streams of the walk].

        Args:
            node: The node that consumes the gradient.
            output: Which output of the node the gradient is of.
            grad: The gradient. The call takes it over.
            source: The node that computed it; None for the initial gradients.
        """
        buffer = self.buffers.get(node)
        if buffer is None:
            buffer = self.buffers[node] = [None] * len(node.outputs)
        held = buffer[output]
        where = grad.meta.device.index
        if where is None:
            buffer[output] = grad if held is None else held + grad
            return
        streams = self.streams
        producer = streams[where] if source is None or source.index < 0 else source.stream
        consumer = streams[where] if node.index < 0 else node.stream
        if held is None:
            if producer is not consumer and producer != consumer:
                self.cross(producer, consumer, node, grad, source)
            buffer[output] = grad
            return
        adder = consumer if consumer.device_index == where else streams[where]
        if producer is not adder and producer != adder:
            self.cross(producer, adder, node, grad, source)
        if self.pending:
            self.synchronize(node, adder)
        current, streams[where] = streams[where], adder
        buffer[output] = held + grad
        streams[where] = current
        if adder is not consumer and adder != consumer:
            self.pending.setdefault(node, []).append((_Mark(adder), source))

    def cross(self, producer: Stream, consumer: Stream, node: Node, grad: Any, source: Node | None) -> None:
        """Note that a gradient is ready on another stream than the one that uses it."""
        if isinstance(node, Leaf) and anywhere.warns_of_streams:
            _warn_of_streams()
        self.pending.setdefault(node, []).append((self.mark(producer, source), source))
        if consumer.device_index == grad.meta.device.index:
            grad.record_stream(consumer)

    def mark(self, producer: Stream, source: Node | None) -> _Mark:
        """Record an event behind what a node computed: one for each stream, since the node has computed all of it."""
        mark = self.marks.get(producer)
        if mark is None:
            with because(_computed, source, producer):
                mark = self.marks[producer] = _Mark(producer)
        return mark

    def synchronize(self, node: Node, stream: Stream) -> None:
        """Let a stream wait for the gradients that have crossed to a node."""
        for mark, source in self.pending.pop(node, ()):
            if stream not in mark.waiters:
                mark.waiters.append(stream)
                with because(_crosses, source, node, mark.stream, stream):
                    order(stream, mark.event)

    def told_step(self, node: Node) -> None:
        """`step` as profilers are told of it: what passes a gradient on is no part of the node itself."""
        with launch_hooks.within(f"autograd::engine::evaluate_function: {node.name()}"):
            self.step(node)

    def step(self, node: Node) -> None:
        """Run one node and pass on what it gives."""
        grads = self.buffers.pop(node, None)
        index, stream = node.index, node.stream
        if stream.context is not self.context:
            system.require_open(stream.context)
            self.context = stream.context
        if self.marks:
            self.marks.clear()
        if index != self.selected:
            self.select(index)
        self.streams[index] = stream
        if self.pending:
            self.synchronize(node, stream)
        watchers = node.watchers
        if grads is not None and (
            (watchers is not None and (watchers.tensor_hooks or watchers.keepers))
            or (self.wanted and node in self.wanted)
        ):
            self.arrived(node, grads)
        if isinstance(node, Leaf):
            if grads is not None and grads[0] is not None:
                self.rest(node, grads.pop())
            elif node.watchers is not None:
                self.rest_without(node)
            return
        if self.runs is not None and node not in self.runs:
            return
        given = None
        if grads is not None:
            if node.watchers is None and not self.aside:
                given = node.gradients(grads) if self.runs is None else self.asked_of(node, grads)
                if not self.keep:
                    node.release(self.waiting)
            else:
                given = self.gradients(node, grads)
        del grads
        self.pass_on(node, given)

    def pass_on(self, node: Node, given: Sequence[Any] | None) -> None:
        """Give its gradients to the nodes that made a node's inputs; those that have all of theirs are ready."""
        waiting = self.waiting
        for i, edge in enumerate(node.edges):
            if edge is None:
                continue
            target, output = edge
            if given is not None:
                grad = given[i]
                if grad is not None and (self.runs is None or self.leads(target)):
                    self.deliver(target, output, grad, node)
            waiting[target] = left = waiting[target] - 1
            if not left:
                self.push(target)

    def arrived(self, node: Node, grads: list[Any]) -> None:
        """Replace gradients by what the hooks of the tensors that they are of return; keep those asked for."""
        watchers = node.watchers
        if watchers is not None:
            for output, hooks in watchers.tensor_hooks.items():
                for hook in list(hooks.values()):
                    if grads[output] is not None:
                        grads[output] = _hooked(hook, grads[output])
            for output, keeper in list(watchers.keepers.items()):
                if grads[output] is not None:
                    keeper(grads[output])
        for i in self.wanted.get(node, ()):
            if not (self.accumulate and node.sequence == LAST):
                self.found[i] = grads[self.places[i][1]]  # type: ignore[index]
            self.ends(node)

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
        watchers = leaf.watchers
        if watchers is None:
            held = [grad]
            del grad  # nobody but the callee may hold it: then its memory becomes the leaf's gradient
            if self.told:
                self.told_add(leaf, held)
            else:
                leaf.add(held.pop(), self.create)
            return
        for prehook in list(watchers.pre.values()):
            (grad,) = _hooked_all(prehook, (grad,))
        if self.told:
            self.told_add(leaf, [grad], holders=1)
        else:
            leaf.add(
                grad, self.create, holders=1
            )  # hooks are told of it: they may see the leaf's gradient then
        for hook in list(watchers.post_accumulate.values()):
            hook(leaf.variable)
        for hook in list(watchers.post.values()):
            hook((), (grad,))

    def told_add(self, leaf: Leaf, held: list[Any], holders: int = 0) -> None:
        with launch_hooks.within(leaf.name()):
            leaf.add(held.pop(), self.create, holders)

    def rest_without(self, leaf: Leaf) -> None:
        """Tell who watches a leaf that no gradient came: what was computed from it was not used."""
        if self.accumulate and (self.runs is None or leaf in self.wanted):
            watchers = leaf.watched
            for hook in list(watchers.post_accumulate.values()):
                hook(leaf.variable)
            for hook in list(watchers.post.values()):
                hook((), (None,))

    def asked_of(self, node: Node, grads: Sequence[Any]) -> Sequence[Any]:
        """What a node gives, to those of its inputs at which it is of use."""
        if self.runs is None:
            return node.gradients(grads)
        asked = [edge is not None and self.leads(edge[0]) for edge in node.edges]
        return node.gradients_of(asked, grads)

    def told_asked_of(self, node: Node, grads: Sequence[Any]) -> Sequence[Any]:
        with launch_hooks.within(node.name()):
            return self.asked_of(node, grads)

    def gradients(self, node: Node, grads: list[Any]) -> Sequence[Any]:
        watchers = node.watchers
        if watchers is not None:
            for hook in list(watchers.pre.values()):
                grads = list(_hooked_all(hook, grads))
        ask = self.told_asked_of if self.told else self.asked_of
        given = _explained(ask, node, grads) if self.anomaly else ask(node, grads)
        if watchers is not None:
            for hook in list(watchers.post.values()):
                given = _hooked_all(hook, given, tuple(grads))
        if not self.keep:
            node.release(self.waiting)
        return given


class _Mark:
    """A point on a stream behind which gradients are ready.

    Attributes:
        stream: The stream that computed them.
        event: Recorded there.
        waiters: The streams that wait for it already.
    """

    __slots__ = ("event", "stream", "waiters")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.event = stream.record_event()
        self.waiters: list[Stream] = []


def order(waiter: Stream, event: Event) -> None:
    """Let a stream wait for an event: each edge of the walk goes through here."""
    waiter.wait_event(event)


def _computed(source: Node | None, producer: Stream) -> str:
    """Explain, for traces, why an event is recorded amid the walk."""
    return f"backward: {_gradient_of(source)} is ready on {_called(producer)}"


def _gradient_of(source: Node | None) -> str:
    return "the initial gradient" if source is None else f"the gradient of {source.name()}"


def _warn_of_streams() -> None:
    """Warn, once per process, that a leaf accumulates on another stream than the one that computed its gradient."""
    anywhere.warns_of_streams = False
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


def _crosses(source: Node | None, target: Node, producer: Stream, consumer: Stream) -> str:
    """Why a stream waits amid the walk, for traces."""
    return (
        f"backward: {_gradient_of(source)} crosses from {_called(producer)} to {_called(consumer)}, "
        f"for {target.name()}"
    )


def _rests(producer: Stream, consumer: Stream) -> str:
    """Why one waits at the end of the walk."""
    return (
        f"backward: gradients have come to rest on {_called(producer)}; {_called(consumer)} called backward"
    )


def _called(stream: Stream) -> str:
    return f"stream {stream.handle} of cuda:{stream.device_index}"


# -- what hooks return ------------------------------------------------------------------------------------


def _hooked(hook: Callable[[Any], Any], grad: Any) -> Any:
    """A gradient after the hook of its tensor. Raises where what the hook returned does not fit."""
    new = hook(grad)
    return grad if new is None else _fitting(hook, new, grad)


def _fitting(hook: Any, new: Any, old: Any) -> Any:
    if not hasattr(new, "meta"):
        raise TypeError(f"expected Variable, but hook returned '{type(new).__name__}'")
    if new.meta.shape != old.meta.shape:
        raise RuntimeError(f"hook '{_name(hook)}' has changed the size of value")
    if new.meta.dtype is not old.meta.dtype or new.meta.device.type != old.meta.device.type:
        raise RuntimeError(
            f"hook '{_name(hook)}' has changed the type of value (was {old.type()} got {new.type()})"
        )
    return new


def _hooked_all(hook: Callable[..., Any], grads: Sequence[Any], *more: Any) -> Sequence[Any]:
    """Gradients after a hook of a node: it is called with them and `more`."""
    new = hook(tuple(grads), *more)
    if new is None:
        return grads
    if not isinstance(new, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(new).__name__}'")
    if len(new) != len(grads):
        raise RuntimeError(
            f"hook '{_name(hook)}' has returned an incorrect number of values (got {len(new)}, but expected "
            f"{len(grads)})"
        )
    pairs = zip(new, grads, strict=True)
    return [n if n is None or old is None else _fitting(hook, n, old) for n, old in pairs]


def _name(hook: Any) -> str:
    return getattr(hook, "__name__", "<unknown>")


# -- who runs, and in which order -------------------------------------------------------------------------


def _survey(
    roots: Sequence[Node], wanted: dict[Node, list[int]], pruned: bool
) -> tuple[dict[Node, int], set[Node] | None]:
    """How many gradients each node waits for; and, if `pruned`, the nodes that have a wanted one behind them."""
    waiting: dict[Node, int] = dict.fromkeys(roots, 0)
    stack = list(waiting)
    while stack:
        for edge in stack.pop().edges:
            if edge is None:
                continue
            target = edge[0]
            if target in waiting:
                waiting[target] += 1
            else:
                waiting[target] = 1
                stack.append(target)
    if not pruned:
        return waiting, None
    runs: set[Node] = set()
    # A node's inputs were recorded before it: in the order of recording all are decided before they are asked for.
    for node in sorted(waiting, key=_recorded):
        if any(edge is not None and (edge[0] in runs or edge[0] in wanted) for edge in node.edges):
            runs.add(node)
    return waiting, runs


def _recorded(node: Node) -> int:
    return -1 if node.sequence == LAST else node.sequence


# -- anomalies --------------------------------------------------------------------------------------------


def _explained(
    gradients: Callable[[Node, Sequence[Any]], Sequence[Any]], node: Node, grads: list[Any]
) -> Sequence[Any]:
    """A node's gradients under anomaly detection: NaN is refused, and an error says where the node was made."""
    mode.walking.append(node)
    try:
        given = gradients(node, grads)
        if mode.checks_nan:
            _refuse_nan(node, given)
        return given
    except BaseException:
        _tell_where(node)
        raise
    finally:
        mode.walking.pop()


def _refuse_nan(node: Node, given: Sequence[Any]) -> None:
    for i, grad in enumerate(given):
        if grad is not None and grad.meta.dtype.category >= FLOATING and bool(grad.isnan().any()):
            raise RuntimeError(f"Function '{node.name()}' returned nan values in its {i}th output.")


def _tell_where(node: Node) -> None:
    _warn(f"Error detected in {node.name()}. ", node, "Traceback of forward call that caused the error:\n")
    parent = node.metadata.get("parent_")
    while parent is not None:
        _warn(
            f"\n\nPrevious calculation was induced by {parent.name()}. ", parent,
            "Traceback of forward call that induced the previous calculation:\n",
        )  # fmt: skip
        parent = parent.metadata.get("parent_")


def _warn(what: str, node: Node, where: str) -> None:
    lines = node.metadata.get("traceback_")
    if lines is None:
        where = "No forward pass information available. Enable detect anomaly during forward pass for more information."
    warn_program(what + where + "".join(lines or ()), UserWarning)
