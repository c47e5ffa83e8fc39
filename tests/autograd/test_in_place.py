"""Changes in place of what has a history: to whom gradients pass then, and what is refused, as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from support import torch

import flambeau

TARGETS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda y: y,
    "part": lambda y: y[1:3],
    "whole view": lambda y: y.view(2, 2),
    "element": lambda y: y[1],
}
Change = Callable[[Any, Any, Any, Any], Any]
OVERWRITES: dict[
    str, Change
] = {  # (library, target, a tensor of its shape with a history, a number with one)
    "zero_": lambda lib, t, z, s: t.zero_(),
    "fill_": lambda lib, t, z, s: t.fill_(3),
    "fill_ of a tensor": lambda lib, t, z, s: t.fill_(s),
    "copy_": lambda lib, t, z, s: t.copy_(lib.ones(t.shape)),
    "copy_ of a history": lambda lib, t, z, s: t.copy_(z),
    "set_item": lambda lib, t, z, s: t.__setitem__(..., z),
    "set_item of a number": lambda lib, t, z, s: t.__setitem__(..., 5.0),
    "normal_": lambda lib, t, z, s: t.normal_(),
    "uniform_": lambda lib, t, z, s: t.uniform_(),
    "exponential_": lambda lib, t, z, s: t.exponential_(),
    "cauchy_": lambda lib, t, z, s: t.cauchy_(),
    "log_normal_": lambda lib, t, z, s: t.log_normal_(),
    "geometric_": lambda lib, t, z, s: t.geometric_(0.5),
    "random_": lambda lib, t, z, s: t.random_(0, 5),
    "bernoulli_": lambda lib, t, z, s: t.bernoulli_(0.5),
    "bernoulli_ of a tensor": lambda lib, t, z, s: t.bernoulli_(lib.full(t.shape, 0.5)),
    "eq_": lambda lib, t, z, s: t.eq_(1),
    "lt_": lambda lib, t, z, s: t.lt_(lib.ones(t.shape)),
}
CHANGES: dict[str, Change] = {
    "under no_grad": lambda lib, t, z, s: lib.nn.init.zeros_(t),
    "masked_fill_": lambda lib, t, z, s: t.masked_fill_(z > 1, s),
    "clamp_": lambda lib, t, z, s: t.clamp_(0.0, 1.0),
    "round_": lambda lib, t, z, s: t.round_(),
    "sign_": lambda lib, t, z, s: t.sign_(),
    "floor division": lambda lib, t, z, s: t.div_(z, rounding_mode="floor"),
    "mul_ by 0": lambda lib, t, z, s: t.mul_(0),
    "cumsum_": lambda lib, t, z, s: t.cumsum_(0),
    "cumprod_": lambda lib, t, z, s: t.cumprod_(-1),
    "ldexp_": lambda lib, t, z, s: t.ldexp_(z),
    "ldexp_ by integers": lambda lib, t, z, s: t.ldexp_(lib.full(t.shape, 2)),
    "renorm_": lambda lib, t, z, s: t.view(-1, 1).renorm_(2, 0, 1.0),
    "conj_physical_": lambda lib, t, z, s: t.conj_physical_(),
    "addmm_": lambda lib, t, z, s: t.view(-1, 1).addmm_(z.view(-1, 1), s.view(1, 1)),
    "mvlgamma_": lambda lib, t, z, s: t.mvlgamma_(2),
    "threshold_": lambda lib, t, z, s: lib.nn.functional.threshold_(t, 3.0, 1.0),
}


def seen(lib: Any, change: Change, target: Callable[[Any], Any]) -> list[Any]:
    """Versions, gradients and hooks that were called, of a tensor that was changed in place."""
    x, z, s = [
        lib.tensor(values, requires_grad=True) for values in ([1.0, 2.0, 1.5, 0.5], [1.0, 2.0, 3.0, 1.0], 2.0)
    ]
    told: list[Any] = []
    y = x * 2
    y.register_hook(lambda grad: told.append(grad.tolist()))
    y.retain_grad()
    before, place = y._version, target(y)
    change(lib, place, target(z * 1), s)
    notes = [y._version - before, place.requires_grad, y.is_leaf]
    (y * lib.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    notes += [None if t.grad is None else t.grad.tolist() for t in (x, z, s, y)]
    return [*notes, told]


def close(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(close, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-5, abs_tol=1e-6)
    return bool(ours == theirs)


@pytest.mark.parametrize("where", TARGETS)
@pytest.mark.parametrize("name", [*OVERWRITES, *CHANGES])
def test_gradients_pass_as_in_pytorch(name: str, where: str) -> None:
    change = (OVERWRITES | CHANGES)[name]
    ours, theirs = (seen(lib, change, TARGETS[where]) for lib in (flambeau, torch))
    assert close(ours, theirs), f"{ours} is not {theirs}"


@pytest.mark.parametrize("name", OVERWRITES)
def test_what_had_no_history_gets_no_gradient(name: str) -> None:
    for lib in (flambeau, torch):
        z, s = lib.ones(4, requires_grad=True), lib.tensor(2.0, requires_grad=True)
        y = lib.zeros(4)
        OVERWRITES[name](lib, y, z, s)
        edges = (
            [] if y.grad_fn is None else [node for node, _ in y.grad_fn.next_functions if node is not None]
        )
        assert len(edges) == (name in ("fill_ of a tensor", "copy_ of a history", "set_item"))


@pytest.mark.parametrize("name", ["zero_", "copy_", "normal_", "eq_"])
def test_second_derivatives_see_zeros_too(name: str) -> None:
    for lib in (flambeau, torch):
        x = lib.ones(4, requires_grad=True)
        y = x * x
        OVERWRITES[name](lib, y, None, None)
        (grad,) = lib.autograd.grad((y * x).sum(), x, create_graph=True)
        assert grad.tolist() == y.tolist()
        (again,) = lib.autograd.grad(grad.sum(), x, allow_unused=True)
        assert again is None or again.tolist() == [0.0] * 4


@pytest.mark.parametrize("name", ["sqrt_", "exp_", "sigmoid_", "tanh_", "cumprod_", "sin_"])
def test_second_derivatives_pass_views_that_a_function_changed(name: str) -> None:
    """Where a node saved what it gave, the gradient's own gradient leads to it beside the base's node."""
    found = []
    for lib in (flambeau, torch):
        x = lib.tensor([2.0, 3.0, 0.5], dtype=lib.float64, requires_grad=True)
        y = x * 1
        getattr(y[1:], name)(*[0] * (name == "cumprod_"))
        (grad,) = lib.autograd.grad(y.sin().sum(), x, create_graph=True)
        (again,) = lib.autograd.grad(grad.sum(), x)
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.sum().backward()
        found.append([grad.tolist(), again.tolist()])
    assert close(*found)


@pytest.mark.parametrize("name", [*OVERWRITES, "cumsum_", "ldexp_"])
@pytest.mark.parametrize("of", ["leaf", "view of a leaf", "one of several", "inference"])
def test_refusals_are_pytorchs(name: str, of: str) -> None:
    texts = []
    for lib in (flambeau, torch):
        x = lib.ones(4, requires_grad=True)
        with lib.inference_mode(of == "inference"):
            target = {
                "leaf": lambda x=x: x,
                "view of a leaf": lambda x=x: x[:],
                "one of several": lambda x=x: (x * 2).split(2)[0],
                "inference": lambda x=x: x * 2,
            }[of]()
        other = lib.ones(target.shape, requires_grad=True)
        with pytest.raises(RuntimeError) as refused:
            (OVERWRITES | CHANGES)[name](lib, target, other, other.sum())
        texts.append(str(refused.value))
        assert x.tolist() == [1.0] * 4, "a call that raises changed nothing"
    assert texts[0] == texts[1]


# -- other memory ---------------------------------------------------------------------------------------------


def of_another(lib: Any, t: Any) -> Any:
    return t.set_(lib.zeros(2))


SETS: dict[str, Callable[[Any, Any], Any]] = {
    "a tensor": of_another,
    "nothing": lambda lib, t: t.set_(),
    "its own storage": lambda lib, t: t.set_(t.untyped_storage(), 0, (2,)),
}


@pytest.mark.parametrize("name", SETS)
def test_set_has_no_derivative(name: str) -> None:
    notes = []
    for lib in (flambeau, torch):
        leaf = lib.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError) as refused:
            SETS[name](lib, leaf)
        y = leaf * 2
        view = y[:2]
        SETS[name](lib, y)
        note: list[Any] = [str(refused.value), leaf.tolist(), y._version, view._version, view.tolist()]
        with pytest.raises(RuntimeError) as unwritten:
            y.sum().backward()
        note += [str(unwritten.value), type(y.grad_fn).__name__, y.grad_fn.name(), y.requires_grad]
        notes.append(note)
    assert notes[0] == notes[1]


def test_a_leaf_that_was_set_accumulates_in_its_new_shape() -> None:
    for lib in (flambeau, torch):
        leaf = lib.ones(3, requires_grad=True)
        with lib.no_grad():
            leaf.set_(lib.ones(2))
        (leaf * 3).sum().backward()
        assert leaf.grad.tolist() == [3.0, 3.0]
        assert leaf._version == 1


def test_what_looks_at_a_tensor_with_a_history_has_one() -> None:
    for lib in (flambeau, torch):
        y = lib.ones(3, requires_grad=True) * 1
        t = lib.zeros(3)
        t.set_(y)
        assert t.requires_grad
        assert [node is not None for node, _ in t.grad_fn.next_functions] == [False, True]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_views_see_what_grew(device: str) -> None:
    with flambeau.virtual(devices=1):
        for lib, where in ((flambeau, device), (torch, "cpu")):
            t = lib.ones(4, device=where)
            view = t[1:3]
            t.resize_(100)
            t.fill_(7.0)
            assert view.tolist() == [7.0, 7.0]
            assert t._version == view._version == 2
            assert t.resize_(100)._version == 2, "nothing changed"


def test_a_result_that_is_resized_was_changed_once() -> None:
    for lib in (flambeau, torch):
        out = lib.empty(0)
        lib.add(lib.ones(3), 1, out=out)
        assert out._version == 1


@pytest.mark.parametrize("recording", [True, False])
def test_python_functions_of_elements_have_no_derivative(recording: bool) -> None:
    for lib in (flambeau, torch):
        x = lib.ones(2, requires_grad=True)
        for t in (x, x * 1) if recording else (x,):
            with lib.set_grad_enabled(recording):
                with pytest.raises(
                    RuntimeError, match=r"Can't call apply_\(\) on Variable that requires grad"
                ):
                    t.apply_(lambda a: a)
                with pytest.raises(RuntimeError, match=r"Can't call map_\(\) on Variable that requires grad"):
                    t.map_(lib.ones(2), lambda a, b: b)
                with pytest.raises(RuntimeError, match=r"Can't call map_\(\) on Variable that requires grad"):
                    lib.ones(2).map_(t, lambda a, b: b)
        assert x.detach().apply_(lambda a: a + 1).tolist() == [2.0, 2.0]


def test_a_scan_in_place_keeps_its_dtype() -> None:
    texts = []
    for lib in (flambeau, torch):
        with pytest.raises(RuntimeError) as refused:
            lib.ones(4).cumsum_(0, dtype=lib.float64)
        texts.append(str(refused.value))
        assert lib.ones(4).cumsum_(0, dtype=lib.float32).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert texts[0] == texts[1]
