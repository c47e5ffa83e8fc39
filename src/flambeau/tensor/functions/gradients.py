"""Gradients of tensors: `requires_grad`, `grad`, `grad_fn`, hooks, `backward`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import FLOATING, dtype
from flambeau.core.errors import NotSupportedError, argument_type
from flambeau.core.handle import RemovableHandle
from flambeau.core.meta import Meta
from flambeau.ops.linalg.matmul import c_name
from flambeau.runtime.hooks import launch_deferral
from flambeau.tape import engine
from flambeau.tape.autograd_node import GradientEdge, Leaf, Node, add_hook
from flambeau.tape.function_base import engine_node
from flambeau.tape.mode import mode
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.public import alias, both, method
from flambeau.tensor.arguments.typing import preserve_format
from flambeau.tensor.autograd.autograd_meta import edge_of, node_of, requires_grad
from flambeau.tensor.autograd.grad_validation import zeros_of
from flambeau.tensor.autograd.leaves import make_leaf, release_leaf
from flambeau.tensor.exchange.transfer import new_filled
from flambeau.tensor.tensor import Tensor


def _property(define: Callable[[Tensor], Any], set_: Callable[[Tensor, Any], None] | None = None) -> None:
    name = define.__name__.strip("_")
    delete = None if set_ is None else lambda self: set_(self, None)
    alias(name, property(define, set_, delete, define.__doc__), as_function=False)  # type: ignore[arg-type]


# -- leaves -----------------------------------------------------------------------------------------------


def _requires_grad(self: Tensor) -> bool:
    """Return True if gradients are computed for this tensor. May be set on leaves."""
    return requires_grad(self)


@method
def requires_grad_(self: Tensor, requires_grad: bool = True) -> Tensor:
    """Set whether gradients are computed for this leaf. Returns itself.

    Raises:
        RuntimeError: If it is an integer or bool tensor, or not a leaf.
    """
    node = node_of(self)
    if node is not None and not isinstance(node, Leaf):
        if requires_grad:
            return self
        raise RuntimeError(
            "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a "
            "subgraph that doesn't require differentiation use var_no_grad = var.detach()."
        )
    if requires_grad and self.meta.dtype.category < FLOATING:
        raise RuntimeError("only Tensors of floating point dtype can require gradients")
    if requires_grad and self.memory.version < 0 and not mode.inference:
        raise RuntimeError(
            "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed."
        )
    if requires_grad and node is None:
        make_leaf(self)
    elif not requires_grad and isinstance(node, Leaf):
        release_leaf(self, node)
    return self


def _set_requires_grad(self: Tensor, value: Any) -> None:
    requires_grad_(self, bool(value))


_property(_requires_grad, _set_requires_grad)


def _is_leaf(self: Tensor) -> bool:
    """Return True if no recorded operation computed the tensor."""
    node = node_of(self)
    return node is None or isinstance(node, Leaf)


_property(_is_leaf)


def _grad_fn(self: Tensor) -> Any:
    """Return the node of the operation that computed the tensor; None for a leaf."""
    node = node_of(self)
    return None if node is None or isinstance(node, Leaf) else node.public


_property(_grad_fn)


def _output_nr(self: Tensor) -> int:
    """Return the position of this tensor among the outputs of its `grad_fn`, from 0."""
    return self.history.index if self.history is not None and node_of(self) is not None else 0


_property(_output_nr)


@both
def is_inference(input: Tensor) -> bool:
    """Return True if the tensor was created in `inference_mode`."""
    return input.memory.version < 0


# -- .grad ------------------------------------------------------------------------------------------------


def _grad(self: Tensor) -> Any:
    """Return the gradient that `backward` has accumulated; None before."""
    history = self.history
    if history is not None and history.node is not None:
        node = history.node if history.base is None else node_of(self)
        if isinstance(node, Leaf):
            return node.grad
        if "_grad" not in self.__dict__:
            _warn_of_non_leaf()
    return self.__dict__.get("_grad")


def _warn_of_non_leaf() -> None:
    warn_program(
        "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be "
        "populated during autograd.backward(). If you indeed want the .grad field to be populated for a non-leaf "
        "Tensor, use .retain_grad() on the non-leaf Tensor. If you access the non-leaf Tensor by mistake, make sure "
        "you access the leaf Tensor instead.",
        UserWarning,
    )


def _set_grad(self: Tensor, value: Any) -> None:
    if value is not None:
        _check_grad(self, value)
    history = self.history
    node = None if history is None else history.node if history.base is None else node_of(self)
    if isinstance(node, Leaf):
        node.grad = value
    elif value is None:
        self.__dict__.pop("_grad", None)
    else:
        self.__dict__["_grad"] = value


def _check_grad(t: Tensor, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"assigned grad expected to be a Tensor or None but got grad of type {type(value).__name__}"
        )
    if value is t:
        raise RuntimeError("can't assign Variable as its own grad")
    here, there = t.meta, value.meta
    if here.dtype is not there.dtype:
        raise RuntimeError(
            f"attempting to assign a gradient with dtype '{c_name(there.dtype)}' to a tensor with grad_dtype "
            f"'{here.dtype.torch_name}'. The gradient must match the tensor's grad_dtype (here its dtype always)."
        )
    if here.device is not there.device:
        raise RuntimeError(_other_device(here, there))
    if here.shape != there.shape:
        raise RuntimeError(
            f"attempting to assign a gradient of size '{list(there.shape)}' to a tensor of size '{list(here.shape)}'. "
            "Please ensure that the gradient and the tensor are the same size"
        )


def _other_device(here: Meta, there: Meta) -> str:
    if here.device.type != there.device.type:
        kinds = f"with device type '{there.device.type}' to a tensor with device type '{here.device.type}'"
    else:
        kinds = (
            f"located on device with index '{there.device.index}' to a tensor located on device with index "
            f"'{here.device.index}'"
        )
    same = "Please ensure that the gradient and the tensor are on the same device"
    return f"attempting to assign a gradient {kinds}. {same}"


_property(_grad, _set_grad)


def _grad_dtype(self: Tensor) -> dtype:
    """Return the dtype of the gradient, which is the tensor's dtype. Setting another one, which PyTorch permits,
    raises.
    """
    if not self.is_leaf:
        raise RuntimeError("grad_dtype can only be accessed on leaf tensors.")
    return self.meta.dtype


def _set_grad_dtype(self: Tensor, value: Any) -> None:
    if not self.is_leaf:
        raise RuntimeError("grad_dtype can only be set on leaf tensors.")
    if value is not None and not isinstance(value, dtype):
        raise RuntimeError(f"grad_dtype must be a torch.dtype or None, but got {type(value).__name__}")
    if value is not self.meta.dtype:
        raise NotSupportedError(
            f"grad_dtype={value}: gradients are of their tensor's dtype here, {self.meta.dtype}; convert .grad instead"
        )


_property(_grad_dtype, _set_grad_dtype)

# -- hooks ------------------------------------------------------------------------------------------------


def _refuse_untracked(t: Tensor, doing: str) -> None:
    if not requires_grad(t):
        raise RuntimeError(f"{doing} tensor that doesn't require gradient")


@method
def register_hook(self: Tensor, hook: Callable[[Any], Any]) -> RemovableHandle:
    """Call `hook(grad)` whenever a gradient of this tensor is computed; its result replaces the gradient if it is not
    None.
    """
    _refuse_untracked(self, "cannot register a hook on a")
    edge = edge_of(self)
    if edge is None:  # a view created without recording gets no gradient
        return RemovableHandle(OrderedDict())
    node, index = edge
    return add_hook(node.ensured_hooks.tensor_hooks.setdefault(index, OrderedDict()), hook)


@method
def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], None]) -> RemovableHandle:
    """Call `hook(tensor)` after a gradient was accumulated into this leaf's `.grad`."""
    _refuse_untracked(self, "cannot register a hook on a")
    node = node_of(self)
    if node is None:  # as in `register_hook`
        return RemovableHandle(OrderedDict())
    if not isinstance(node, Leaf):
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    return add_hook(node.ensured_hooks.post_accumulate, hook)


@method
def retain_grad(self: Tensor) -> None:
    """Keep the gradient of a tensor that is not a leaf in its `.grad`."""
    if not requires_grad(self):
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    history = self.history
    if history is None or history.node is None or isinstance(history.node, Leaf) or _retains_grad(self):
        return
    edge = edge_of(self)
    assert edge is not None
    node, index = edge
    attributes = self.__dict__

    def keep(grad: Any) -> None:
        held = attributes.get("_grad")
        attributes["_grad"] = grad if held is None else held + grad

    node.ensured_hooks.retain_grad_hooks[index] = keep


def _retains_grad(self: Tensor) -> bool:
    """Return True if `.grad` of a tensor that is not a leaf is kept."""
    edge = edge_of(self)
    watchers = None if edge is None else edge[0].node_hooks
    return watchers is not None and edge[1] in watchers.retain_grad_hooks  # type: ignore[index]


_property(_retains_grad)

# -- backward ---------------------------------------------------------------------------------------------


@method
def backward(
    self: Tensor,
    gradient: Any = None,
    retain_graph: Any = None,  # as in PyTorch, any object is accepted and its truth value counts
    create_graph: Any = False,
    inputs: Any = None,
) -> None:
    """Compute the gradients of this tensor with respect to the leaves and add them to their `.grad`.

    Args:
        gradient: The gradient of this tensor, of its shape; optional for a tensor of one element.
        retain_graph: Keep the graph for another backward (default: `create_graph`).
        create_graph: Record backward itself, for higher derivatives.
        inputs: Accumulate into these leaves only.

    Raises:
        RuntimeError: If the tensor does not require a gradient, `gradient` is missing for a tensor of several elements,
            or an earlier backward freed the graph.
    """
    run_backward((self,), gradient, retain_graph, create_graph, inputs)


def run_backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Run `torch.autograd.backward`."""
    if inputs is not None:
        inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
        if not inputs:
            raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    if create_graph:
        warn_program(
            "Using backward() with create_graph=True will create a reference cycle between the parameter and its "
            "gradient which can cause a memory leak. We recommend using autograd.grad when creating the graph to avoid "
            "this. If you have to use this function, make sure to reset the .grad fields of your parameters to None "
            "after use to break the cycle and avoid the leak.",
            UserWarning,
        )
    roots = _roots(as_tuple(tensors), grad_tensors, create_graph)
    for t in inputs or ():
        retain_grad(t)
    places = None if inputs is None else [_place(t) for t in inputs]
    _run_engine(roots, bool(create_graph if retain_graph is None else retain_graph), create_graph, places)


def _run_engine(
    roots: Any, keep: bool, create_graph: bool, places: Any, accumulate: bool = True
) -> list[Any]:
    """Run backward. After a compiled function recorded calls for it, launches of backward are collected as well."""
    create_graph = bool(create_graph)  # PyTorch accepts 0 and 1, which `mode.recording` may not become
    if not launch_deferral.has_recorded:
        return engine.run_backward(roots, keep, create_graph, places, accumulate)
    with import_module("flambeau.tensor.fusion.collecting").CollectedLaunches():
        return engine.run_backward(roots, keep, create_graph, places, accumulate)


def run_grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: Any = None,
    create_graph: bool = False,
    allow_unused: Any = None,
    materialize_grads: bool = False,
) -> tuple[Any, ...]:
    """Run `torch.autograd.grad`."""
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False."
        )
    wanted = as_tuple(inputs)
    if not wanted:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    roots = _roots(as_tuple(outputs), grad_outputs, create_graph)
    places = [_place(t) for t in wanted]
    keep = create_graph if retain_graph is None else bool(retain_graph)
    found = _run_engine(roots, keep, create_graph, places, accumulate=False)
    if materialize_grads:
        return tuple([_zeros_like(t) if g is None else g for t, g in zip(wanted, found, strict=True)])
    if not allow_unused and None in (unused := [None if g is None else i for i, g in enumerate(found)]):
        raise RuntimeError(
            f"The differentiated Tensor at index {unused.index(None)} appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior."
        )
    return tuple(found)


def _zeros_like(t: Any) -> Any:
    return zeros_of(engine_node(t.node).outputs[t.output_nr] if isinstance(t, GradientEdge) else t.meta)


def as_tuple(tensors: Any) -> tuple[Any, ...]:
    """Return a tensor or a sequence of them as a tuple."""
    return (tensors,) if isinstance(tensors, (Tensor, GradientEdge)) else tuple(tensors)


def _place(t: Any) -> tuple[Node, int]:
    if isinstance(t, GradientEdge):
        return engine_node(t.node), t.output_nr
    edge = edge_of(t)
    if edge is None:
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    return edge


def _roots(tensors: Sequence[Tensor], grads: Any, create: bool) -> list[tuple[Node, int, Any]]:
    given = (None,) * len(tensors) if grads is None else as_tuple(grads)
    if len(given) != len(tensors):
        raise RuntimeError(f"got {len(tensors)} tensors and {len(given)} gradients")
    roots = []
    for i, (t, grad) in enumerate(zip(tensors, given, strict=True)):
        if isinstance(t, GradientEdge):
            if grad is None:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            roots.append((engine_node(t.node), t.output_nr, grad))
            continue
        edge = edge_of(t)
        if edge is None:
            raise RuntimeError(f"element {i} of tensors does not require grad and does not have a grad_fn")
        roots.append((*edge, _first_gradient(t, grad, i, create)))
    return roots


def _first_gradient(t: Any, grad: Any, position: int, create: bool) -> Any:
    if grad is None:
        if t.meta.numel != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if t.meta.dtype.is_complex:
            raise RuntimeError(
                f"grad can be implicitly created only for real scalar outputs but got {t.meta.dtype}"
            )
        if interception.count and dispatch.is_shown((t,)):
            return dispatch.show("ones_like", t, pin_memory=False, memory_format=preserve_format)
        return new_filled(t.meta, 1)
    if not isinstance(grad, Tensor):
        raise TypeError(argument_type("backward", "gradient", 1, "Tensor", grad))
    if grad.meta.shape != t.meta.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{position}] has a shape of torch.Size({list(grad.meta.shape)}) and "
            f"output[{position}] has a shape of torch.Size({list(t.meta.shape)})."
        )
    if grad.meta.dtype.is_complex != t.meta.dtype.is_complex:
        raise RuntimeError(
            "For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in dtype: "
            f"grad_output[{position}] has a dtype of {grad.meta.dtype} and output[{position}] has a dtype of "
            f"{t.meta.dtype}."
        )
    return grad if create else grad.detach()
