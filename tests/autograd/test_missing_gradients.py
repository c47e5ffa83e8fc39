"""Hooks and Functions where a later node computes no gradient: PyTorch calls them with None, or with zeros."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from support import torch

import flambeau

Calls = list[Any]


def plain(value: Any) -> Any:
    """Return tensors as lists, so that those of both libraries compare."""
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, str) else value.tolist()


def first_of(lib: Any) -> Any:
    """Return a function of two tensors whose backward gives the second one no gradient."""

    class First(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            return x + y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad, None

    return First.apply


def multi_grad_hook(lib: Any, calls: Calls) -> None:
    x = lib.ones(2, requires_grad=True)
    y, z = x * 2, x * 3
    lib.autograd.graph.register_multi_grad_hook([y, z], calls.append)
    first_of(lib)(y, z).sum().backward()


def multi_grad_hook_of_a_part(lib: Any, calls: Calls) -> None:
    y, z = lib.ones(4, requires_grad=True).split(2)
    lib.autograd.graph.register_multi_grad_hook([y, z], calls.append)
    y.sum().backward()


def multi_grad_hook_of_inputs(lib: Any, calls: Calls) -> None:
    """`grad` runs no node that does not lead to its inputs."""
    x = lib.ones(2, requires_grad=True)
    y, z = x * 2, x * 3
    lib.autograd.graph.register_multi_grad_hook([y, z], calls.append)
    lib.autograd.grad((y + z).sum(), [y], retain_graph=True)
    (y + z).sum().backward()


def hooks_of_a_leaf(lib: Any, calls: Calls) -> None:
    x, z = lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True)
    z.register_hook(calls.append)
    z.register_post_accumulate_grad_hook(lambda tensor: calls.append(("post", tensor.grad)))
    first_of(lib)(x, z).sum().backward()


def hooks_of_a_node(lib: Any, calls: Calls) -> None:
    x, z = lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True)
    w = z * 2
    w.register_hook(calls.append)
    w.grad_fn.register_prehook(calls.append)
    w.grad_fn.register_hook(lambda inputs, outputs: calls.append((inputs, outputs)))
    z.register_hook(calls.append)
    first_of(lib)(x, w).sum().backward()


def hook_that_replaces_nothing(lib: Any, calls: Calls) -> None:
    y, z = lib.ones(4, requires_grad=True).split(2)
    y.register_hook(lambda grad: lib.ones(2))
    z.sum().backward()


def prehook_that_replaces_nothing(lib: Any, calls: Calls) -> None:
    x, w = lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True) * 2
    w.grad_fn.register_prehook(lambda grads: (lib.ones(2),))
    first_of(lib)(x, w).sum().backward()


def function(lib: Any, calls: Calls, materialize: bool = True) -> None:
    class Tripled(lib.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(materialize)
            return x * 3

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            calls.append(grad)
            return lib.ones(2)

    x, z = lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True)
    first_of(lib)(x, Tripled.apply(z)).sum().backward()
    calls.append(z.grad)


def function_without_zeros(lib: Any, calls: Calls) -> None:
    function(lib, calls, materialize=False)


PROGRAMS = [
    multi_grad_hook, multi_grad_hook_of_a_part, multi_grad_hook_of_inputs, hooks_of_a_leaf, hooks_of_a_node,
    hook_that_replaces_nothing, prehook_that_replaces_nothing, function, function_without_zeros,
]  # fmt: skip


def run(program: Callable[[Any, Calls], None], lib: Any) -> Any:
    calls: Calls = []
    try:
        program(lib, calls)
    except RuntimeError as error:
        return str(error)
    return plain(calls)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_missing_gradients_reach_hooks_as_in_pytorch(program: Callable[[Any, Calls], None]) -> None:
    expected = run(program, torch)
    assert expected
    assert run(program, flambeau) == expected


def test_nested_backwards_do_not_count_against_the_recursion_limit() -> None:
    """PyTorch continues in another thread after 60 levels; 300 took all of Python's frames."""
    limit = sys.getrecursionlimit()

    class Nested(flambeau.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, levels: int) -> Any:
            ctx.levels = levels
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            if ctx.levels:
                with flambeau.enable_grad():
                    Nested.apply(flambeau.ones(1, requires_grad=True), ctx.levels - 1).sum().backward()
            return grad, None

    x = flambeau.ones(1, requires_grad=True)
    Nested.apply(x, 300).sum().backward()
    assert x.grad.tolist() == [1.0]
    assert sys.getrecursionlimit() == limit


def polygamma_in_place(lib: Any, calls: Calls) -> None:
    x = lib.tensor([1.5, 2.5], dtype=lib.float64, requires_grad=True)
    for order in (0, 1, 3):
        (x * 2).polygamma_(order).sum().backward()
        calls.append(x.grad.clone())


def test_polygamma_in_place_has_a_gradient() -> None:
    pairs = zip(run(polygamma_in_place, flambeau), run(polygamma_in_place, torch), strict=True)
    assert all(ours == pytest.approx(theirs) for ours, theirs in pairs)
