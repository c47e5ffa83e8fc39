"""The two halves of a Function's node: programs see `FunctionBase`, the engine runs `FunctionNode`.

# Note [Names of a Function's context]
Programs put attributes of any name on `ctx`, which is also the `grad_fn` of the outputs. So the context shares no
names with the engine's node: its class has PyTorch's public names only, and its own state lies behind a slot whose
descriptor is removed from the class. The node holds the context. The context has a weak reference to the node and
everything needed to build the node once more, so neither keeps a reference cycle alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.handle import RemovableHandle
from flambeau.core.meta import Meta
from flambeau.runtime import current
from flambeau.runtime.streams.stream import Stream
from flambeau.tape.autograd_node import Edge, Node, NodeHooks, add_hook, next_sequence, show_edges


class ContextState:
    """The state of one call of a Function that programs cannot access by a name.

    Attributes:
        edges: For each argument, the node that computed it and the output number there; None for other arguments.
        outputs: TensorMeta of each output; None for an output that is not a tensor.
        sequence: Position in the order of recording.
        stream: The stream of the forward operation; None until the call is recorded.
        index: Index of the CUDA device of `stream`; -1 for the CPU.
        hooks: Hooks and metadata; None if there are none.
        node_ref: Weak reference to the engine's node; None until the call is recorded.
        node_class: Class of the engine's node.
        saved: Tensors that `save_for_backward` kept; None once they are freed.
        input_metas: TensorMeta of each argument; None for an argument that is not a tensor.
        forward_is_running: True until `forward` has returned.
    """

    __slots__ = (
        "edges",
        "forward_is_running",
        "hooks",
        "index",
        "input_metas",
        "node_class",
        "node_ref",
        "outputs",
        "saved",
        "sequence",
        "stream",
    )

    def __init__(self, node_class: type[FunctionNode], edges: Sequence[Edge]) -> None:
        self.node_class = node_class
        self.edges = tuple(edges)
        self.outputs: tuple[Meta | None, ...] = ()
        self.sequence = next_sequence()
        self.stream: Stream | None = None
        self.index = -1
        self.hooks: NodeHooks | None = None
        self.node_ref: weakref.ref[FunctionNode] | None = None
        self.saved: list[Any] | None = []
        self.input_metas: tuple[Meta | None, ...] = ()
        self.forward_is_running = True


class FunctionBase:
    """The node of a Function's call as programs see it. See Note [Names of a Function's context]."""

    __slots__ = ("_state",)

    def name(self) -> str:
        """Return the name of the node: the Function's name and `Backward`."""
        return type(self).__name__

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """Return the (node, output number) of each argument; (None, 0) for arguments that need no gradient."""
        return show_edges(state_of(self).edges)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return a dictionary in which programs may store data about this node."""
        return _hooks_of(self).metadata

    @property
    def requires_grad(self) -> bool:
        """Return True if an argument of the call requires a gradient."""
        return any(state_of(self).edges)

    def _sequence_nr(self) -> int:
        return state_of(self).sequence

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after this node; its result, if any, replaces grad_inputs."""
        return add_hook(_hooks_of(self).post, hook)

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before this node; its result, if any, replaces grad_outputs."""
        return add_hook(_hooks_of(self).pre, hook)


_slot = FunctionBase.__dict__["_state"]
state_of: Callable[[Any], ContextState] = _slot.__get__
set_state: Callable[[Any, ContextState], None] = _slot.__set__
del FunctionBase._state  # type: ignore[attr-defined]


def _hooks_of(context: FunctionBase) -> NodeHooks:
    state = state_of(context)
    if state.hooks is None:
        state.hooks = NodeHooks()
        node = None if state.node_ref is None else state.node_ref()
        if node is not None:
            node.node_hooks = state.hooks
    return state.hooks


class FunctionNode(Node):
    """The engine's node of a recorded call of a Function.

    Attributes:
        context: The `ctx` of the call, which programs see as `grad_fn`.
        state: State of `context`.
    """

    __slots__ = ("context", "state")

    runs_without_gradients = True

    def __init__(self, context: Any, state: ContextState) -> None:
        self.context, self.state = context, state
        self.edges, self.sequence, self.index = state.edges, state.sequence, state.index
        self.outputs = state.outputs  # type: ignore[assignment]
        self.node_hooks = state.hooks
        self.stream = current.local.streams[-1] if state.stream is None else state.stream
        state.node_ref = weakref.ref(self)

    @property
    def public(self) -> Any:
        return self.context

    @property
    def ensured_hooks(self) -> NodeHooks:
        return _hooks_of(self.context)

    def name(self) -> str:
        return type(self.context).__name__

    def record(self, outputs: Sequence[Meta | None]) -> None:
        """Note the outputs and the stream of the call, which has just run."""
        state = self.state
        self.set_outputs(tuple([m for m in outputs if m is not None]))
        self.sequence = state.sequence
        self.outputs = state.outputs = tuple(outputs)  # type: ignore[assignment]
        state.stream, state.index = self.stream, self.index


def engine_node(shown: Any) -> Node:
    """Return the engine's node of a node that the program has seen."""
    if isinstance(shown, Node):
        return shown
    state = state_of(shown)
    node = None if state.node_ref is None else state.node_ref()
    return state.node_class(shown, state) if node is None else node
