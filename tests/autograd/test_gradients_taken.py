"""When a leaf takes a gradient's memory as its own, and when a copy: as PyTorch does, whoever listens."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import flambeau

LIBRARIES = pytest.mark.parametrize("m", [flambeau, torch], ids=["flambeau", "torch"])


def leaf_of(m: Any) -> tuple[Any, Any]:
    """A leaf and the node that accumulates its gradient."""
    w = m.ones(3, requires_grad=True)
    return w, (w * 1).grad_fn.next_functions[0][0]


@LIBRARIES
def test_hooks_of_a_leaf_see_the_memory_that_it_takes(m: Any) -> None:
    w, node = leaf_of(m)
    seen: list[int] = []
    node.register_hook(lambda given, got: seen.append(got[0].data_ptr()))
    w.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.data_ptr()))
    (w * 2).sum().backward()
    assert seen == [w.grad.data_ptr()] * 2


@LIBRARIES
def test_what_a_hook_keeps_is_its_own(m: Any) -> None:
    w, node = leaf_of(m)
    kept: list[Any] = []
    node.register_prehook(lambda got: kept.append(got[0]))
    node.register_hook(lambda given, got: None)
    (w * 2).sum().backward()
    assert w.grad.data_ptr() != kept[0].data_ptr()
    (w * 2).sum().backward()
    assert kept[0].tolist() == [2] * 3 and w.grad.tolist() == [4] * 3


@LIBRARIES
def test_a_gradient_of_two_leaves_is_taken_by_none(m: Any) -> None:
    a, node = leaf_of(m)
    b = m.ones(3, requires_grad=True)
    node.register_hook(lambda given, got: None)
    (a + b).backward(m.ones(3))
    a.grad.zero_()
    assert b.grad.tolist() == [1] * 3
