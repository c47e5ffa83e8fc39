"""Selective checkpoints: what is computed again, gradients and errors, in both libraries."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from log_kit import log_operators
from support import torch

import flambeau
import flambeau.utils.checkpoint

if torch is not None:
    import torch.utils.checkpoint

LIBRARIES = [
    pytest.param(library, id=library.__name__) for library in (flambeau, torch) if library is not None
]


def _leaves(library: Any) -> Any:
    x = library.arange(6.0).reshape(2, 3).mul(0.1).requires_grad_()
    w = library.arange(9.0).reshape(3, 3).mul(0.1).requires_grad_()
    return x, w


def _function(library: Any) -> Any:
    return lambda x, w: (x @ w).sigmoid() @ w


def _run(library: Any, chosen: Any) -> tuple[list[str], list[list[float]]]:
    x, w = _leaves(library)
    contexts = partial(library.utils.checkpoint.create_selective_checkpoint_contexts, chosen)
    y = library.utils.checkpoint.checkpoint(
        _function(library), x, w, use_reentrant=False, context_fn=contexts
    )
    lines, _ = log_operators(library, lambda _: y.sum().backward())
    return lines, [x.grad.flatten().tolist(), w.grad.flatten().tolist()]


def _names(lines: list[str]) -> list[str]:
    return [line.partition("[")[0] for line in lines]


@pytest.mark.parametrize("library", LIBRARIES)
def test_kept_operators_are_not_computed_again(library: Any) -> None:
    lines, grads = _run(library, [library.ops.aten.mm.default])
    assert _names(lines).count("aten.mm.default") == 4  # backward's own
    assert _names(lines).count("aten.sigmoid.default") == 1
    x, w = _leaves(library)
    _function(library)(x, w).sum().backward()
    assert grads[0] == pytest.approx(x.grad.flatten().tolist())
    assert grads[1] == pytest.approx(w.grad.flatten().tolist())


@pytest.mark.parametrize("library", LIBRARIES)
def test_policy_is_called_for_each_operator(library: Any) -> None:
    seen: list[str] = []
    policies = library.utils.checkpoint.CheckpointPolicy

    def policy(context: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(f"{func} {context.is_recompute} {tuple(context.op_output.shape)}")
        return policies.MUST_SAVE if "sigmoid" in str(func) else policies.PREFER_RECOMPUTE

    lines, _ = _run(library, policy)
    assert seen == [
        "aten.mm.default False (2, 3)", "aten.sigmoid.default False (2, 3)", "aten.mm.default False (2, 3)",
    ]  # fmt: skip
    assert "aten.sigmoid.default" not in _names(lines)


@pytest.mark.parametrize("library", LIBRARIES)
def test_second_backward_raises(library: Any) -> None:
    x, w = _leaves(library)
    chosen = [library.ops.aten.mm.default]
    contexts = partial(library.utils.checkpoint.create_selective_checkpoint_contexts, chosen)
    y = library.utils.checkpoint.checkpoint(
        _function(library), x, w, use_reentrant=False, context_fn=contexts
    )
    y.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward an extra time"):
        y.sum().backward()


@pytest.mark.parametrize("library", LIBRARIES)
def test_change_of_kept_result_raises(library: Any) -> None:
    x, w = _leaves(library)
    chosen = [library.ops.aten.exp.default]
    contexts = partial(library.utils.checkpoint.create_selective_checkpoint_contexts, chosen)

    def function(x: Any, w: Any) -> Any:
        y = x.exp()
        y.add_(1)
        return (y @ w).sigmoid()

    y = library.utils.checkpoint.checkpoint(function, x, w, use_reentrant=False, context_fn=contexts)
    with pytest.raises(RuntimeError, match="has been mutated"):
        y.sum().backward()


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_arguments_raise(library: Any) -> None:
    create = library.utils.checkpoint.create_selective_checkpoint_contexts
    with pytest.raises(ValueError, match="Please update the OpOverloadPacket"):
        create([library.ops.aten.mm])
    with pytest.raises(TypeError, match="function or a list"):
        create(3)
