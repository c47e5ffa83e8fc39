"""Any attribute name of `ctx` that is not PyTorch's belongs to the program, whatever the engine's node calls its state."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from support import torch

import flambeau
from flambeau.tape.function_base import ContextState, FunctionNode

# Names that PyTorch's own class gives a meaning: there, a program's value changes what PyTorch does, or raises.
PYTORCH = {
    "dirty_tensors", "materialize_grads", "metadata", "needs_input_grad", "next_functions", "non_differentiable",
    "requires_grad", "saved_for_forward", "saved_tensors", "saved_variables", "to_save",
}  # fmt: skip


def names() -> list[str]:
    """Every name of the engine's node, its state and the context's class, apart from Python's and PyTorch's own."""
    x = flambeau.ones(2, requires_grad=True)
    shown = _twice(flambeau, {}).apply(x).grad_fn
    found = {
        *dir(FunctionNode),
        *dir(ContextState),
        *dir(shown),
        "_state",
        "_node",
        "_function",
        "node",
        "variable",
        "y",
    }
    return sorted(
        n for n in found - PYTORCH if not n.startswith("__") and n not in ("save_for_backward", "mark_dirty")
    )


def _twice(lib: Any, values: dict[str, Any]) -> Any:
    class Twice(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            for name, value in values.items():
                setattr(ctx, name, value)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            assert all(getattr(ctx, name) is value for name, value in values.items())
            return grad * 2 * x

    return Twice


def _gradients(lib: Any, values: dict[str, Any]) -> list[Any]:
    function = _twice(lib, values)
    x = lib.tensor([1.0, 3.0], requires_grad=True)
    y = function.apply(function.apply(x) + x)
    seen: list[Any] = []
    y.register_hook(seen.append)
    shown = y.grad_fn
    assert all(getattr(shown, name) is value for name, value in values.items())
    with lib.autograd.detect_anomaly(check_nan=True):
        y.sum().backward(retain_graph=True)
    (again,) = lib.autograd.grad(y, x, lib.ones(2))
    return [x.grad.tolist(), again.tolist(), [g.tolist() for g in seen], repr(y)]


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", names())
def test_context_attribute_is_the_programs(name: str) -> None:
    value = object()
    assert _gradients(flambeau, {name: value}) == _gradients(flambeau, {})


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_all_names_at_once_give_pytorchs_gradients() -> None:
    values = {name: object() for name in names()}
    assert _gradients(flambeau, values) == _gradients(torch, {})


@pytest.mark.parametrize("lib", [flambeau, torch], ids=["flambeau", "torch"])
@pytest.mark.parametrize("name", sorted(PYTORCH - {"needs_input_grad", "materialize_grads"}))
def test_pytorchs_names_accept_what_pytorch_accepts(lib: Any, name: str) -> None:
    shown = _twice(lib, {}).apply(lib.ones(2, requires_grad=True)).grad_fn
    read_only = {"metadata", "next_functions", "requires_grad", "saved_tensors", "saved_variables"}
    if name in read_only:
        with pytest.raises(AttributeError):
            setattr(shown, name, ())
    else:
        setattr(shown, name, ())
        assert getattr(shown, name) == ()


@pytest.mark.parametrize("lib", [flambeau, torch], ids=["flambeau", "torch"])
def test_grad_fn_is_the_context(lib: Any) -> None:
    contexts = []

    class Keep(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            contexts.append(ctx)
            assert ctx.next_functions[0][0].variable is leaf
            ctx.metadata["a"] = 1
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            assert ctx is contexts[0]
            return grad

    leaf = lib.ones(2, requires_grad=True)
    y = Keep.apply(leaf)
    assert y.grad_fn is contexts[0]
    assert type(y.grad_fn) is Keep._backward_cls
    assert y.grad_fn._forward_cls is Keep
    assert isinstance(y.grad_fn, lib.autograd.graph.Node)
    assert isinstance(y.grad_fn, lib.autograd.function.BackwardCFunction)
    assert (y * 2).grad_fn.next_functions[0][0] is y.grad_fn
    edge = lib.autograd.graph.get_gradient_edge(y)
    assert edge.node is y.grad_fn
    assert y.grad_fn.metadata == {"a": 1}
    (grad,) = lib.autograd.grad((y * 3).sum(), [edge])
    assert grad.tolist() == [3.0, 3.0]


def test_context_alone_keeps_its_graph() -> None:
    x = flambeau.ones(2, requires_grad=True)
    calls: list[Any] = []
    shown = _twice(flambeau, {}).apply(x * 1).grad_fn
    shown.register_hook(lambda *grads: calls.append(grads))
    assert shown.next_functions[0][0].name() == "MulBackward0"
    edge = flambeau.autograd.graph.GradientEdge(shown, 0)
    flambeau.autograd.backward(edge, flambeau.ones(2))
    assert x.grad.tolist() == [2.0, 2.0]
    assert len(calls) == 1


def test_context_dies_with_the_output() -> None:
    gc.disable()
    try:
        y = _twice(flambeau, {}).apply(flambeau.ones(2, requires_grad=True))
        reference = weakref.ref(y.grad_fn)
        assert reference() is not None
        del y
        assert reference() is None
    finally:
        gc.enable()
