"""`Function`: operations with a derivative that the program writes itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Sequence
from importlib import import_module
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import FLOATING
from flambeau.ops.view import view
from flambeau.tape.autograd_node import Edge, Node
from flambeau.tape.function_base import (
    ContextState,
    FunctionBase,
    FunctionNode,
    engine_node,
    set_state,
    state_of,
)
from flambeau.tape.mode import mode, recording
from flambeau.tensor import interception
from flambeau.tensor.autograd.autograd_meta import edge_of, run
from flambeau.tensor.autograd.grad_validation import fit_gradient, zeros_of
from flambeau.tensor.autograd.in_place import replace_node
from flambeau.tensor.autograd.saved import FREED, save
from flambeau.tensor.tensor import CUSTOM, SEVERAL, AutogradMeta, Tensor, as_type


class FunctionCtx:
    """The context that `forward` and `backward` of a Function share."""

    def save_for_backward(self, *tensors: Any) -> None:
        """Save tensors (or None) as `saved_tensors`. Save only inputs and outputs; saving others may leak memory."""
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Save tensors for `jvp`, as `saved_tensors`."""
        self.saved_for_forward = tensors

    def mark_dirty(self, *args: Any) -> None:
        """Declare the inputs that `forward` changed in place; they must be returned."""
        self.dirty_tensors = args

    def mark_non_differentiable(self, *args: Any) -> None:
        """Declare the outputs that require no gradient."""
        self.non_differentiable = args

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether `backward` receives zeros (True, the default) or None for a missing gradient."""
        self.materialize_grads = value


class BackwardCFunction(FunctionBase, FunctionCtx):
    """The context of one call of a Function, which is also the `grad_fn` of its outputs.

    A program may set any attribute whose name PyTorch does not use: see Note [Names of a Function's context].
    """

    __slots__ = (
        "dirty_tensors",
        "materialize_grads",
        "needs_input_grad",
        "non_differentiable",
        "saved_for_forward",
        "to_save",
    )

    _forward_cls: Any

    def __init__(self, edges: Sequence[Edge]) -> None:
        set_state(self, ContextState(_CallNode, edges))
        self.needs_input_grad = tuple([e is not None for e in edges])
        self.to_save: tuple[Any, ...] = ()
        self.saved_for_forward: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.materialize_grads = True

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """Return what `save_for_backward` kept. Raises RuntimeError if it was freed or changed in place."""
        state = state_of(self)
        if state.saved is None:
            raise RuntimeError(FREED)
        if state.forward_is_running:
            return tuple(self.to_save)
        node = engine_node(self)
        return tuple([None if kept is None else kept.restore(node) for kept in state.saved])

    saved_variables = saved_tensors


class _CallNode(FunctionNode):
    """The engine's node of a call: computes gradients with the Function's `backward`."""

    __slots__ = ()

    def release(self, finished: Container[Node]) -> None:
        self.state.saved = None

    def gradients(self, grads: Sequence[Any]) -> Sequence[Any]:
        context, input_metas = self.context, self.state.input_metas
        if context.materialize_grads:
            metas = zip(grads, self.outputs, strict=True)
            grads = [g if m is None or g is not None else zeros_of(m) for g, m in metas]
        given = _backward_of(type(context)._forward_cls)(context, *grads)
        listed = given if isinstance(given, tuple) else (given,)
        count = len(input_metas)
        while len(listed) > count and listed[-1] is None:
            listed = listed[:-1]
        if len(listed) != count:
            raise RuntimeError(
                f"function {self.name()} returned an incorrect number of gradients (expected {count}, got "
                f"{len(listed)})"
            )
        return [
            self._check_gradient(i, g, m) for i, (g, m) in enumerate(zip(listed, input_metas, strict=True))
        ]

    def _check_gradient(self, position: int, grad: Any, meta: Any) -> Any:
        if grad is None:
            return None
        if meta is None:
            raise RuntimeError(
                f"function {self.name()} returned a gradient different than None at position {position + 1}, but the "
                "corresponding forward input was not a Variable"
            )
        if not isinstance(grad, Tensor):
            raise RuntimeError(f"expected Variable or None (got {type(grad).__name__})")
        if self.edges[position] is None:
            return None
        lead = grad.meta.ndim - meta.ndim
        tail = grad.meta.shape[max(lead, 0) :]
        if lead < 0 or any(have != want and want != 1 for have, want in zip(tail, meta.shape, strict=True)):
            raise RuntimeError(
                f"Function {self.name()} returned an invalid gradient at index {position} - got "
                f"{list(grad.meta.shape)} but expected shape compatible with {list(meta.shape)}"
            )
        return fit_gradient(grad, meta)


def _backward_of(function: Any) -> Callable[..., Any]:
    if function.vjp is Function.vjp:
        return function.backward  # type: ignore[no-any-return]
    if function.backward is not Function.backward:
        raise RuntimeError(
            "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only "
            "implement one of them."
        )
    return function.vjp  # type: ignore[no-any-return]


class Function:
    """The base of custom operations. Define static `forward(ctx, *args)` and `backward(ctx, *grads)`, and call `apply`.

    If `setup_context(ctx, inputs, output)` is defined, `forward` has no ctx. `backward` returns a gradient, or None,
    for each argument of `forward`.
    """

    _backward_cls: type[BackwardCFunction]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        members = {"_forward_cls": cls, "__module__": "torch.autograd.function"}
        # The class is kept here alone, so that it is freed with cls.
        cls._backward_cls = type(f"{cls.__name__}Backward", (BackwardCFunction,), members)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warn_program(
            f"{type(self)} should not be instantiated. Methods on autograd functions are all static, so you should "
            "invoke them on the class itself. Instantiating an autograd function will raise an error in a future "
            "version of PyTorch.",
            DeprecationWarning,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
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
        """Save the values that `backward` needs."""
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> Any:
        """Compute the tangents of the outputs."""
        raise NotImplementedError(
            "You must implement the jvp function for custom autograd.Function to use it with forward mode AD."
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, with a node in the autograd graph where an argument requires a gradient."""
        return _apply(cls, args, kwargs)


def _apply(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    has_setup_context = function.setup_context is not Function.setup_context
    if has_setup_context:
        args, kwargs = _by_position(function.forward, args, kwargs), {}
    if interception.count:
        forward_mode = import_module("flambeau.tensor.forward_mode")
        level = forward_mode.innermost_level(args)
        if level is not None:
            return _apply_dual(function, args, kwargs, level, forward_mode)
    return _call_forward(function, args, kwargs, has_setup_context)[0]


def _apply_dual(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], level: Any, forward_mode: Any
) -> Any:
    """Call a Function with dual inputs, and give its outputs the tangents of its `jvp`."""
    primals, tangents = forward_mode.split(args, level)
    has_setup_context = function.setup_context is not Function.setup_context
    result, ctx = _call_forward(function, primals, kwargs, has_setup_context)
    if ctx.materialize_grads:
        tangents = [
            zeros_of(a.meta)
            if t is None and isinstance(a, Tensor) and a.meta.dtype.category >= FLOATING
            else t
            for a, t in zip(args, tangents, strict=True)
        ]
    state_of(ctx).forward_is_running, ctx.to_save = True, ctx.saved_for_forward  # what `saved_tensors` reads
    given = function.jvp(ctx, *tangents)
    state_of(ctx).forward_is_running, ctx.to_save = False, ()
    outputs = result if isinstance(result, tuple) else (result,)
    listed = given if isinstance(given, tuple) else (given,)
    if len(listed) != len(outputs):
        raise RuntimeError(
            f"Function {function.__name__}'s jvp returned an invalid number of forward gradients (expected "
            f"{len(outputs)} but got {len(listed)})"
        )
    for output, tangent in zip(outputs, listed, strict=True):
        if isinstance(output, Tensor) and tangent is not None:
            forward_mode.set_tangent(output, level, tangent)
    for a, p in zip(args, primals, strict=True):
        if a is not p and _is_among(p, outputs):  # changed in place
            a.history = p.history
    forward_mode.save_tangents(outputs, args, level)
    return result


def _call_forward(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any], has_setup_context: bool
) -> tuple[Any, Any]:
    """Run `forward` and record the call. Returns the result and the context."""
    edges = [edge_of(a) if isinstance(a, Tensor) and a.history is not None else None for a in args]
    ctx = function._backward_cls(edges)
    with recording(False):
        result = (
            function.forward(*args, **kwargs) if has_setup_context else function.forward(ctx, *args, **kwargs)
        )
        if has_setup_context:
            function.setup_context(ctx, args, result)
    outputs = list(result) if isinstance(result, tuple) else [result]
    _check(ctx, args, outputs)
    needed = mode.recording and any(edges)
    tensors = [t for t in outputs if isinstance(t, Tensor)]
    _check_dirty(ctx, tensors, needed)
    for t in ctx.dirty_tensors:
        t.counter.version += 1
    distinct = [_own(t, args, ctx, needed) if isinstance(t, Tensor) else t for t in outputs]
    fixed = ctx.non_differentiable
    ctx.non_differentiable = tuple(
        [new for new, t in zip(distinct, outputs, strict=True) if _is_among(t, fixed)]
    )
    outputs = distinct
    if needed:
        _record(ctx, args, outputs)
    else:
        state_of(ctx).edges = ()
    state_of(ctx).forward_is_running = False
    return (tuple(outputs) if isinstance(result, tuple) else outputs[0]), ctx


def _by_position(forward: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    bound = inspect.signature(forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args


def _check(ctx: BackwardCFunction, args: Sequence[Any], outputs: Sequence[Any]) -> None:
    for i, t in enumerate(ctx.to_save):
        if t is not None and not isinstance(t, Tensor):
            raise TypeError(
                f"save_for_backward can only save variables, but argument {i} is of type {type(t).__name__}"
            )
    if any(not _is_among(t, outputs) for t in ctx.dirty_tensors):
        raise RuntimeError(
            "Some elements marked as dirty during the forward method were not returned as output. The inputs that are "
            "modified inplace must all be outputs of the Function."
        )


def _check_dirty(ctx: BackwardCFunction, tensors: Sequence[Any], needed: bool) -> None:
    for t in ctx.dirty_tensors if needed else ():
        if t.is_leaf and t.requires_grad:
            raise RuntimeError("a leaf Variable that requires grad has been used in an in-place operation.")
        if t.base is not None and len(tensors) > 1:
            raise RuntimeError(
                "If your Function modifies inplace an input that is a view of another Tensor, your Function cannot "
                "return more than one Tensor. This is not supported by the current autograd engine. You should either "
                "make sure the input is not a view (using .clone() for example) or make your Function only return one "
                "Tensor (potentially splitting it into two Functions: one doing the inplace that returns a single "
                "Tensor and a second one doing the other operations). You can ask on the forum "
                "https://discuss.pytorch.org/ if you need help to do this change."
            )


def _is_among(t: Any, listed: Sequence[Any]) -> bool:
    return any(t is other for other in listed)


def _own(t: Any, args: Sequence[Any], ctx: BackwardCFunction, needed: bool) -> Any:
    """Return an output. An input that is returned unchanged becomes a view, so that the input keeps its history."""
    if not _is_among(t, args) or _is_among(t, ctx.dirty_tensors):
        return t
    with recording(False):
        return run(view, t, t.meta.shape) if needed else t.detach()


def _record(ctx: Any, args: Sequence[Any], outputs: Sequence[Any]) -> None:
    state = state_of(ctx)
    state.input_metas = tuple([a.meta if isinstance(a, Tensor) else None for a in args])
    node = _CallNode(ctx, state)
    node.record([t.meta if isinstance(t, Tensor) else None for t in outputs])  # backward counts them all
    tensors = [t for t in outputs if isinstance(t, Tensor)]
    for i, t in enumerate(outputs):
        if (
            node.outputs[i] is None
            or t.meta.dtype.category < FLOATING
            or _is_among(t, ctx.non_differentiable)
        ):
            continue
        if _is_among(t, ctx.dirty_tensors):
            replace_node(t, node, next((k for k, a in enumerate(args) if a is t), None), i)
        elif t.history is not None and t.history.base is not None:
            t.history.node, t.history.index, t.history.version = node, i, t.counter.version
            t.history.restriction = CUSTOM if len(tensors) == 1 else SEVERAL
        else:
            t.history = AutogradMeta(node, i)
    state.saved = [None if t is None else _SavedArgument(t, outputs) for t in ctx.to_save]
    ctx.to_save = ()


class _SavedArgument:
    """A tensor that `save_for_backward` was given; an input of a subclass with its class and attributes."""

    __slots__ = ("attributes", "kind", "saved")

    def __init__(self, t: Tensor, outputs: Sequence[Any]) -> None:
        places = [i for i, output in enumerate(outputs) if t is output]
        self.saved = save(t, None, places[0]) if places else save(t, edge_of(t))
        self.kind = Tensor if places else type(t)
        self.attributes = None if self.kind is Tensor else t.__dict__

    def restore(self, node: Node) -> Tensor:
        t = self.saved.unpack(node)
        if self.attributes is None:
            return t
        restored: Tensor = as_type(t, self.kind)
        restored.__dict__.update(self.attributes)
        return restored


class InplaceFunction(Function):
    """A Function with a mark that PyTorch keeps for old programs. Use `Function`, and `ctx.mark_dirty` for inputs that
    change.
    """

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a `backward` that cannot be differentiated itself: a walk through its results raises RuntimeError."""

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Any) -> Any:
        with recording(False):
            given = backward(ctx, *grads)
        if not (mode.recording and any(isinstance(g, Tensor) and edge_of(g) is not None for g in grads)):
            return given
        single = not isinstance(given, tuple)
        listed = (given,) if single else given
        refused = tuple([_refusing(g, grads) if isinstance(g, Tensor) else g for g in listed])
        return refused[0] if single else refused

    return wrapper


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
