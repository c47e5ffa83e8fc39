"""`Node`: one recorded operation. `Leaf`: a tensor made by no operation, where its gradient comes to rest.

A node holds edges to the nodes that made its inputs, and what it saved to compute their gradients; it never
holds its outputs, so a graph has no reference cycles and goes when the last tensor that needs it goes.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Container, Sequence
from typing import Any, NamedTuple

from flambeau.core.handle import RemovableHandle
from flambeau.core.meta import Meta
from flambeau.core.sites import program_stack
from flambeau.runtime import current
from flambeau.runtime.streams.stream import Stream
from flambeau.tape.mode import mode

Edge = tuple["Node", int] | None


class GradientEdge(NamedTuple):
    """A place in the graph: output `output_nr` of `node`."""

    node: Node
    output_nr: int


Grads = Sequence[Any]
Hooks = OrderedDict[int, Callable[..., Any]]

next_number = itertools.count().__next__  # the order of recording
LAST = 1 << 62  # a leaf's sequence: its gradient is accumulated as soon as it is complete


class Watchers:
    """Who wants to hear of a node: made when the first asks.

    tensor_hooks: of each output, called with its gradient. keepers: who keeps the gradient of which output.
    pre, post: called before and after the node. post_accumulate: of a leaf, called with its tensor.
    """

    __slots__ = ("keepers", "metadata", "post", "post_accumulate", "pre", "tensor_hooks")

    def __init__(self) -> None:
        self.tensor_hooks: dict[int, Hooks] = {}
        self.keepers: dict[int, Callable[[Any], None]] = {}
        self.pre: Hooks = OrderedDict()
        self.post: Hooks = OrderedDict()
        self.post_accumulate: Hooks = OrderedDict()
        self.metadata: dict[str, Any] = {}


class Node:
    """One operation on the tape. `edges[i]` says which output of which node its input `i` was.

    outputs: the metas of its outputs: a missing gradient stands for zeros of that meta.
    sequence: its place in the order of recording; the walk backward takes the latest ready node first.
    stream: the forward operation's, on which its backward operation runs; `index` is that device's.
    watchers: hooks and notes; None of most nodes.
    """

    __slots__ = ("__weakref__", "edges", "index", "outputs", "sequence", "stream", "watchers")

    edges: Sequence[Edge]
    outputs: tuple[Meta, ...]
    sequence: int
    stream: Stream
    index: int
    watchers: Watchers | None

    def __init__(self, edges: Sequence[Edge], outputs: Sequence[Meta]) -> None:
        self.edges = tuple(edges)
        self.watchers = None
        self.placed(tuple(outputs))

    def placed(self, outputs: tuple[Meta, ...]) -> None:
        """Take the next number and the current stream of the first GPU that an output lies on, else of the CPU."""
        self.outputs = outputs
        self.sequence = next_number()
        self.index = index = next((m.device.index for m in outputs if m.device.index is not None), -1)
        self.stream = current.local.streams[index]
        if mode.anomaly:
            self.note_where()

    def note_where(self) -> None:
        """Under anomaly detection: remember where this node was made, and in the walk of which."""
        self.metadata["traceback_"] = program_stack()
        if mode.walking:
            self.metadata["parent_"] = mode.walking[-1]

    def gradients(self, grads: Grads) -> Grads:
        """The gradients of the inputs from those of the outputs; None stands for zeros on both sides."""
        raise NotImplementedError

    def gradients_of(self, asked: Sequence[bool], grads: Grads) -> Grads:
        """The same; those of inputs that are not asked for may be None."""
        return self.gradients(grads)

    def release(self, walked: Container[Node]) -> None:
        """Forget what was saved: a second walk through this node is refused. `walked`: the nodes of this walk."""

    # -- what programs see of it --------------------------------------------------------------------------

    def name(self) -> str:
        """PyTorch's name of the node, as in `AddBackward0`."""
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """(node, output number) of each input; (None, 0) where it needs no gradient."""
        return tuple([edge if edge is not None else (None, 0) for edge in self.edges])

    @property
    def watched(self) -> Watchers:
        """Its watchers, to add one."""
        if self.watchers is None:
            self.watchers = Watchers()
        return self.watchers

    @property
    def metadata(self) -> dict[str, Any]:
        """A place for whoever wants to note something about this node."""
        return self.watched.metadata

    def _sequence_nr(self) -> int:
        return self.sequence

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after this node's; what it returns replaces grad_inputs."""
        return hooked(self.watched.post, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before this node; what it returns replaces them."""
        return hooked(self.watched.pre, hook)

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


def hooked(hooks: Hooks, hook: Callable[..., Any]) -> RemovableHandle:
    """Add a hook; what takes it off again."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class Leaf(Node):
    """Where the gradient of a leaf tensor is accumulated. The tensor owns it; it knows the tensor weakly."""

    __slots__ = ("_added", "grad", "variable_ref")

    def __init__(self, variable: Any, added: Callable[[Any, Any, Meta, bool, int], Any]) -> None:
        super().__init__((), (variable.meta,))
        self.sequence = LAST
        self.grad: Any = None
        self.variable_ref = weakref.ref(variable)
        self._added = added

    def add(self, grad: Any, create: bool, holders: int = 0) -> None:
        """Accumulate a gradient; as a recorded operation if `create`. `holders`: references that the caller keeps."""
        self.grad = self._added(self.grad, grad, self.outputs[0], create, holders)

    def lies_in(self, meta: Meta) -> None:
        """The tensor has other memory now, of another shape, dtype or device: later gradients are of that."""
        self.outputs = (meta,)
        where = meta.device.index
        self.index = index = -1 if where is None else where
        self.stream = current.local.streams[index]

    @property
    def variable(self) -> Any:
        """The leaf tensor; None if it is gone."""
        return self.variable_ref()

    def name(self) -> str:
        return "torch::autograd::AccumulateGrad"

    def __repr__(self) -> str:
        return f"<AccumulateGrad object at {id(self):#x}>"


Leaf.__name__ = Leaf.__qualname__ = "AccumulateGrad"  # as programs know it
