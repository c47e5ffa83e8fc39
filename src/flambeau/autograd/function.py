"""`Function`: operations with a derivative that the program writes itself."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.tape.mode import mode, recording
from flambeau.tape.node import Edge, Leaf, Node
from flambeau.tensor.history import Saved, edge_of, fitted, require_no_leaf, unviewed, zeros_of
from flambeau.tensor.tensor import History, Tensor, make


class FunctionCtx:
    """What `forward` and `backward` of a Function share."""

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors (or None) for `saved_tensors`. Inputs and outputs only: others may leak memory."""
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep tensors for `jvp`, which Flambeau does not call."""

    def mark_dirty(self, *args: Any) -> None:
        """Say which inputs `forward` changed in place; they must be returned."""
        self.dirty_tensors = args

    def mark_non_differentiable(self, *args: Any) -> None:
        """Say which outputs require no gradient."""
        self.non_differentiable = args

    def set_materialize_grads(self, value: bool) -> None:
        """Whether a missing gradient comes to `backward` as zeros (True, the default) or as None."""
        self.materialize_grads = value


class _Node(Node, FunctionCtx):
    """The node of one call of a Function: its ctx."""

    __slots__ = ()

    _function: Any

    def __init__(self) -> None:
        self.edges, self.outputs = (), ()
        self.needs_input_grad: tuple[bool, ...] = ()
        self.to_save: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.materialize_grads = True
        self._saved: list[Saved | None] | None = []
        self._metas: tuple[Any, ...] = ()

    def name(self) -> str:
        return type(self).__name__

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` kept. Raises RuntimeError if it was freed or changed in place."""
        if self._saved is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time (or directly access saved tensors after they have "
                "already been freed). Saved intermediate values of the graph are freed when you call .backward() or "
                "autograd.grad(). Specify retain_graph=True if you need to backward through the graph a second time "
                "or if you need to access saved tensors after calling backward."
            )
        if not self.outputs:  # forward still runs
            return tuple(self.to_save)
        return tuple([None if s is None else s.unpack(self) for s in self._saved])

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """`saved_tensors` of old."""
        return self.saved_tensors

    def release(self) -> None:
        self._saved = None

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        if self.materialize_grads:
            grads = [zeros_of(m) if g is None else g for g, m in zip(grads, self.outputs, strict=True)]
        given = self._function.backward(self, *grads)
        listed = given if isinstance(given, tuple | list) else (given,)
        while len(listed) > len(self.edges) and listed[-1] is None:
            listed = listed[:-1]
        if len(listed) != len(self.edges):
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients (expected {len(self.edges)}, got "
                f"{len(listed)})"
            )
        return [self._checked(i, g, m) for i, (g, m) in enumerate(zip(listed, self._metas, strict=True))]

    def _checked(self, position: int, grad: Any, meta: Any) -> Any:
        if grad is None or self.edges[position] is None:
            return None
        if not isinstance(grad, Tensor):
            raise TypeError(
                f"function {self.name()} returned a gradient different than expected: {type(grad).__name__}"
            )
        lead = grad.meta.ndim - meta.ndim
        tail = grad.meta.shape[lead:]
        if lead < 0 or any(have != want and want != 1 for have, want in zip(tail, meta.shape, strict=True)):
            raise RuntimeError(
                f"Function {self.name()} returned an invalid gradient at index {position} - got "
                f"{list(grad.meta.shape)} but expected shape compatible with {list(meta.shape)}"
            )
        return fitted(grad, meta)


@functools.cache
def _node_class(function: type) -> Any:
    return type(f"{function.__name__}Backward", (_Node,), {"__slots__": (), "_function": function})


class Function:
    """Derive from it, define static `forward(ctx, *args)` and `backward(ctx, *grads)`, and call `apply`.

    Where `setup_context(ctx, inputs, output)` is defined, `forward` takes no ctx. `backward` returns a gradient,
    or None, for each argument of `forward`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd "
            "function with static forward method. (Example: "
            "https://pytorch.org/docs/stable/autograd.html#torch.autograd.Function)"
        )

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        """Compute the outputs."""
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        """Compute the gradients of the inputs."""
        raise NotImplementedError(
            "You must implement either the backward or vjp method for your custom autograd.Function to use it with "
            "backward mode AD."
        )

    vjp = backward

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Keep what `backward` needs."""
        raise NotImplementedError("setup_context is not implemented.")

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, with a node on the tape where an argument requires a gradient."""
        return _apply(cls, args, kwargs)


def _apply(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    node = _node_class(function)()
    edges: list[Edge] = [
        edge_of(a) if isinstance(a, Tensor) and a.history is not None else None for a in args
    ]
    needed = mode.recording and any(edges)
    node.needs_input_grad = tuple([e is not None and mode.recording for e in edges])
    apart = function.setup_context is not Function.setup_context
    with recording(False):
        result = function.forward(*args, **kwargs) if apart else function.forward(node, *args, **kwargs)
        if apart:
            function.setup_context(node, args, result)
    single = not isinstance(result, tuple | list)
    outputs = [result] if single else list(result)
    for t in node.dirty_tensors:
        if needed:
            require_no_leaf(t)
        t.counter.version += 1
    outputs = [_own(t, args, node) if isinstance(t, Tensor) else t for t in outputs]
    if needed:
        _record(node, edges, args, outputs)
    return outputs[0] if single else tuple(outputs)


def _own(t: Any, args: Sequence[Any], node: _Node) -> Any:
    """An input that is returned unchanged is returned as a view, so that it keeps its own history."""
    if any(t is a for a in node.dirty_tensors):
        return t
    if any(t is a for a in args):
        alike = make(t.meta, t.memory, t.ptr)
        alike.counter = t.counter
        return alike
    return (
        unviewed(t) if t.history is not None and t.history.base is not None and t.history.node is None else t
    )


def _record(node: Any, edges: Sequence[Edge], args: Sequence[Any], outputs: Sequence[Any]) -> None:
    node.edges = tuple(edges)
    node._metas = tuple([a.meta if isinstance(a, Tensor) else None for a in args])
    tensors = [t for t in outputs if isinstance(t, Tensor)]
    node.placed(tuple([t.meta for t in tensors]))
    for edge in edges:
        if edge is not None and isinstance(edge[0], Leaf):
            edge[0].lies_on(node.stream if edge[0].index == node.index else edge[0].stream)
    for i, t in enumerate(tensors):
        apart = any(t is other for other in node.non_differentiable)
        if t.meta.dtype.category >= FLOATING and not apart:
            t.history = History(node, i)
    node._saved = [None if t is None else _kept(t, tensors) for t in node.to_save]
    node.to_save = ()


def _kept(t: Tensor, outputs: Sequence[Tensor]) -> Saved:
    for i, output in enumerate(outputs):
        if t is output:
            return Saved(t, i)
    return Saved(t)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that cannot be differentiated itself: a walk through its results raises RuntimeError."""

    @functools.wraps(backward)
    def wrapped(ctx: Any, *grads: Any) -> Any:
        with recording(False):
            given = backward(ctx, *grads)
        if not (mode.recording and any(isinstance(g, Tensor) and edge_of(g) is not None for g in grads)):
            return given
        single = not isinstance(given, tuple)
        listed = (given,) if single else given
        refused = tuple([_refusing(g, grads) if isinstance(g, Tensor) else g for g in listed])
        return refused[0] if single else refused

    return wrapped


class _Refuses(Function):
    @staticmethod
    def forward(ctx: Any, value: Any, *grads: Any) -> Any:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            "trying to differentiate twice a function that was marked with @once_differentiable"
        )


def _refusing(value: Tensor, grads: Sequence[Any]) -> Any:
    return _Refuses.apply(value, *grads)


Function.__module__ = FunctionCtx.__module__ = "torch.autograd.function"
