"""The nodes of the autograd graph: `Node` is one recorded operation, `Leaf` accumulates a leaf's gradient.

A node holds edges to the nodes that computed its inputs, and the values that it saved to compute their gradients. It
never holds its outputs: so a graph has no reference cycles, and is freed with the last tensor that needs it.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Sequence
from typing import Any, ClassVar, NamedTuple

from flambeau.core.callsite import program_stack
from flambeau.core.handle import RemovableHandle
from flambeau.core.meta import Meta
from flambeau.runtime import current
from flambeau.runtime.streams.stream import Stream
from flambeau.tape.mode import mode

Edge = tuple["Node", int] | None


class GradientEdge(NamedTuple):
    """One edge of the graph: output `output_nr` of `node`.

    Attributes:
        node: The node, as programs see it.
        output_nr: The number of the output.
        ownership_token: The engine's node, which the edge keeps alive; None if the program made the edge.
    """

    node: Any
    output_nr: int
    ownership_token: Any = None


Grads = Sequence[Any]
Hooks = OrderedDict[int, Callable[..., Any]]

_sequences = itertools.count()
next_sequence = _sequences.__next__  # the order of recording
LEAF_SEQUENCE = 1 << 62  # a leaf's sequence: its gradient is accumulated as soon as it is complete


def reserve_sequences(count: int) -> int:
    """Take `count` consecutive numbers of the order of recording, at least one, and return the first.

    One call takes them, so that no other thread gets one between.
    """
    (last,) = deque(itertools.islice(_sequences, count), maxlen=1)
    return last - count + 1


class NodeHooks:
    """The hooks and metadata of a node, created with the first hook.

    Attributes:
        tensor_hooks: Output number -> hooks that are called with the gradient of this output.
        retain_grad_hooks: Output number -> function that stores the gradient for `Tensor.retain_grad`.
        pre: Hooks that run before the node.
        post: Hooks that run after the node.
        post_accumulate: For leaves: hooks that are called with the tensor after accumulation.
        metadata: The dictionary that the program sees as `Node.metadata`.
    """

    __slots__ = ("metadata", "post", "post_accumulate", "pre", "retain_grad_hooks", "tensor_hooks")

    def __init__(self) -> None:
        self.tensor_hooks: dict[int, Hooks] = {}
        self.retain_grad_hooks: dict[int, Callable[[Any], None]] = {}
        self.pre: Hooks = OrderedDict()
        self.post: Hooks = OrderedDict()
        self.post_accumulate: Hooks = OrderedDict()
        self.metadata: dict[str, Any] = {}


class Node:
    """One recorded operation of the autograd graph.

    Attributes:
        edges: For each input, the node that computed it and the output number there; None if it needs no gradient.
        outputs: TensorMeta of each output; a missing gradient stands for zeros of that meta.
        sequence: Position in the order of recording; the engine runs the ready node with the highest one first.
        stream: The stream of the forward operation, on which the backward operation runs too.
        index: Index of the CUDA device of `stream`; -1 for the CPU.
        node_hooks: Hooks and metadata; None if there are none, as for most nodes.
        runs_without_gradients: True if `gradients` runs even if no output has a gradient, as Functions of programs do.
    """

    __slots__ = ("__weakref__", "edges", "index", "node_hooks", "outputs", "sequence", "stream")

    edges: Sequence[Edge]
    outputs: tuple[Meta, ...]
    sequence: int
    stream: Stream
    index: int
    node_hooks: NodeHooks | None
    runs_without_gradients: ClassVar[bool] = False

    def __init__(self, edges: Sequence[Edge], outputs: Sequence[Meta]) -> None:
        self.edges = tuple(edges)
        self.node_hooks = None
        self.set_outputs(tuple(outputs))

    def set_outputs(self, outputs: tuple[Meta, ...]) -> None:
        """Take the next number, and the current stream of the first GPU that an output is on, otherwise of the CPU."""
        self.outputs = outputs
        self.sequence = next_sequence()
        self.index = index = next((m.device.index for m in outputs if m.device.index is not None), -1)
        self.stream = current.local.streams[index]
        if mode.anomaly:
            self.record_creation()

    def record_creation(self) -> None:
        """Store the creating call's stack and the node being run; only used under anomaly detection."""
        self.metadata["traceback_"] = program_stack()
        if mode.anomaly_nodes:
            self.metadata["parent_"] = mode.anomaly_nodes[-1].public

    def gradients(self, grads: Grads) -> Grads:
        """Return the gradients of the inputs, given those of the outputs; None stands for zeros in both."""
        raise NotImplementedError

    def gradients_for(self, needed: Sequence[bool], grads: Grads) -> Grads:
        """Return the gradients of the inputs; may be None for inputs whose entry in `needed` is False."""
        return self.gradients(grads)

    def release(self, finished: Container[Node]) -> None:
        """Free the saved tensors, so that a second backward through this node raises.

        Args:
            finished: All nodes of this backward run.
        """

    # -- the public interface -----------------------------------------------------------------------------

    def name(self) -> str:
        """Return the name of the node as PyTorch spells it, such as `AddBackward0`."""
        return type(self).__name__

    @property
    def public(self) -> Any:
        """Return the node as programs see it: itself, or the `ctx` of a Function's call."""
        return self

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """Return the (node, output number) of each input; (None, 0) for inputs that need no gradient."""
        return show_edges(self.edges)

    @property
    def ensured_hooks(self) -> NodeHooks:
        """Return the hooks of this node, created if there are none yet."""
        if self.node_hooks is None:
            self.node_hooks = NodeHooks()
        return self.node_hooks

    @property
    def metadata(self) -> dict[str, Any]:
        """Return a dictionary in which programs may store data about this node."""
        return self.ensured_hooks.metadata

    def _sequence_nr(self) -> int:
        return self.sequence

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after this node; its result, if any, replaces grad_inputs."""
        return add_hook(self.ensured_hooks.post, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before this node; its result, if any, replaces grad_outputs."""
        return add_hook(self.ensured_hooks.pre, hook)

    def __repr__(self) -> str:
        return f"<{self.name()} object at {id(self):#x}>"


def show_edges(edges: Sequence[Edge]) -> tuple[tuple[Any, int], ...]:
    """Return edges as programs see them in `next_functions`."""
    return tuple([(None, 0) if edge is None else (edge[0].public, edge[1]) for edge in edges])


def add_hook(hooks: Hooks, hook: Callable[..., Any]) -> RemovableHandle:
    """Add a hook and return the handle that removes it."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


class Leaf(Node):
    """The node that accumulates the gradient of a leaf tensor, PyTorch's AccumulateGrad.

    The tensor owns its leaf; the leaf has a weak reference to the tensor.

    Attributes:
        grad: The accumulated gradient, which the program sees as `Tensor.grad`.
        variable_ref: Weak reference to the tensor.
    """

    __slots__ = ("_accumulate", "grad", "variable_ref")

    def __init__(self, variable: Any, accumulate: Callable[[Any, Any, Meta, bool, int], Any]) -> None:
        super().__init__((), (variable.meta,))
        self.sequence = LEAF_SEQUENCE
        self.grad: Any = None
        self.variable_ref = weakref.ref(variable)
        self._accumulate = accumulate

    def add(self, grad: Any, create_graph: bool, references: int = 0) -> None:
        """Add a gradient to `self.grad`.

        Args:
            grad: The gradient to add.
            create_graph: True if the addition is recorded, for double backward.
            references: The number of references to `grad` that the caller keeps; with none, its memory may be reused.
        """
        self.grad = self._accumulate(self.grad, grad, self.outputs[0], create_graph, references)

    def set_meta(self, meta: Meta) -> None:
        """Expect later gradients to have another meta, because the tensor's data was replaced."""
        self.outputs = (meta,)
        device_index = meta.device.index
        self.index = index = -1 if device_index is None else device_index
        self.stream = current.local.streams[index]

    @property
    def variable(self) -> Any:
        """Return the leaf tensor; None if it was freed."""
        return self.variable_ref()

    def name(self) -> str:
        return "torch::autograd::AccumulateGrad"

    def __repr__(self) -> str:
        return f"<AccumulateGrad object at {id(self):#x}>"


Leaf.__name__ = Leaf.__qualname__ = "AccumulateGrad"  # the name that programs see
