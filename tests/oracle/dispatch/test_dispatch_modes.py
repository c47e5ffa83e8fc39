"""Modes: how they nest, end and fail, in both libraries; and that a program without one pays nothing."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from support import torch

import flambeau
import flambeau.utils._python_dispatch
from flambeau.tensor import call as call_module
from flambeau.tensor import interception
from flambeau.tensor.autograd import autograd_meta

if torch is not None:
    import torch.utils._python_dispatch

LIBRARIES = [
    pytest.param(library, id=library.__name__) for library in (flambeau, torch) if library is not None
]


def _mode(library: Any, handle: Any) -> Any:
    class Mode(library.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return handle(func, args, kwargs or {})

    return Mode()


@pytest.mark.parametrize("library", LIBRARIES)
def test_inner_mode_is_called_first(library: Any) -> None:
    seen: list[str] = []

    def handler(name: str) -> Any:
        def handle(func: Any, args: Any, kwargs: Any) -> Any:
            seen.append(f"{name} {func}")
            return func(*args, **kwargs)

        return handle

    x = library.ones(2)
    with _mode(library, handler("outer")), _mode(library, handler("inner")):
        x + x
    x + x
    assert seen == ["inner aten.add.Tensor", "outer aten.add.Tensor"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_result_of_handler_is_result_of_function(library: Any) -> None:
    x, y = library.ones(2, requires_grad=True), library.zeros(2)
    with _mode(library, lambda func, args, kwargs: y.clone()):
        z = x * 2
    assert z.tolist() == [0.0, 0.0]
    assert z.requires_grad
    z.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("library", LIBRARIES)
def test_error_in_handler_ends_mode(library: Any) -> None:
    def fail(func: Any, args: Any, kwargs: Any) -> Any:
        raise KeyError(str(func))

    x = library.ones(2)
    with pytest.raises(KeyError, match=r"aten\.exp\.default"), _mode(library, fail):
        x.exp()
    assert x.exp().shape == (2,)


@pytest.mark.parametrize("library", LIBRARIES)
def test_nothing_is_recorded_in_handler(library: Any) -> None:
    x = library.ones(2, requires_grad=True)
    required: list[bool] = []

    def handle(func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        required.append(result.requires_grad)
        return result

    with _mode(library, handle):
        y = x.exp()
    assert not any(required)
    assert y.requires_grad
    assert y.grad_fn.name() == "ExpBackward0"


@pytest.mark.parametrize("library", LIBRARIES)
def test_disabled_modes_see_nothing(library: Any) -> None:
    seen: list[str] = []

    def handle(func: Any, args: Any, kwargs: Any) -> Any:
        seen.append(str(func))
        return func(*args, **kwargs)

    x = library.ones(2)
    with _mode(library, handle):
        with library.utils._python_dispatch._disable_current_modes():
            x.exp()
        x.log()
    assert seen == ["aten.log.default"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_overloads_can_be_replaced(library: Any) -> None:
    def handle(func: Any, args: Any, kwargs: Any) -> Any:
        if func is library.ops.aten.add.Tensor:
            return library.ops.aten.sub.Tensor(*args, **kwargs)
        return func(*args, **kwargs)

    x = library.full((2,), 3.0)
    with _mode(library, handle):
        assert (x + 1).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("library", LIBRARIES)
def test_views_share_memory_and_gradients(library: Any) -> None:
    x = library.zeros(2, 3, requires_grad=True)
    with _mode(library, lambda func, args, kwargs: func(*args, **kwargs)):
        y = x * 1
        y[0].add_(2)
        y.t()[1].mul_(3)
        y.sum().backward()
    assert y.tolist() == [[2.0, 6.0, 2.0], [0.0, 0.0, 0.0]]
    assert x.grad.tolist() == [[1.0, 3.0, 1.0], [1.0, 3.0, 1.0]]


@pytest.mark.parametrize("library", LIBRARIES)
def test_second_derivatives_under_mode(library: Any) -> None:
    x = library.tensor([[0.5, 2.0]], requires_grad=True)
    w = library.tensor([[1.0, 3.0]], requires_grad=True)
    with _mode(library, lambda func, args, kwargs: func(*args, **kwargs)):
        y = library.nn.functional.linear(x, w).exp().sum()
        (first,) = library.autograd.grad(y, x, create_graph=True)
        (second,) = library.autograd.grad(first.sum(), w)
    e = library.tensor(6.5).exp().item()
    assert second.flatten().tolist() == pytest.approx([e + 0.5 * e * 4, e + 2 * e * 4], rel=1e-5)


def _count_calls(function: Any) -> int:
    """Return the number of Python functions that a call enters."""
    count = 0

    def trace(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(trace)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_program_after_mode_runs_as_before() -> None:
    a = b = flambeau.ones(4)
    for _ in range(3):  # the second call keeps the plan of a view that the first has seen
        a + b, a.view(2, 2)
    before = _count_calls(lambda: a + b), _count_calls(lambda: a.view(2, 2))
    view_plans = autograd_meta._fast_view_plans  # none while the host's time is simulated
    with _mode(flambeau, lambda func, args, kwargs: func(*args, **kwargs)):
        a + b
        assert interception.count == 1
    assert interception.count == 0
    assert call_module.fast_plans is call_module.plans
    assert autograd_meta._fast_view_plans is view_plans
    assert (_count_calls(lambda: a + b), _count_calls(lambda: a.view(2, 2))) == before
