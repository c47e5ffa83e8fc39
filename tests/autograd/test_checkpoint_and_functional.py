"""`torch.utils.checkpoint` and `torch.autograd.functional` beside PyTorch's."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from support import torch

import flambeau

BOTH = [flambeau, torch]


def both(program: Callable[[Any], Any]) -> Any:
    ours, theirs = (outcome(program, lib) for lib in BOTH)
    assert ours == theirs
    return ours


def outcome(program: Callable[[Any], Any], lib: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return listed(program(lib))
        except Exception as error:
            return type(error).__name__, str(error).split("\n")[0]


def listed(x: Any) -> Any:
    if hasattr(x, "tolist"):
        return listed(x.tolist())
    if isinstance(x, float):
        return float(f"{x:.9g}")
    return [listed(y) for y in x] if isinstance(x, list | tuple) else x


def leaf(lib: Any) -> Any:
    return lib.tensor([1.0, 2.0, 3.0], dtype=lib.float64, requires_grad=True)


# -- checkpoint -------------------------------------------------------------------------------------------


def run(lib: Any, function: Any, **options: Any) -> Any:
    x = leaf(lib)
    lib.utils.checkpoint.checkpoint(function, x, **options).sum().backward()
    return x.grad


def counted(lib: Any, early: bool) -> Any:
    """How far the second computation comes: with `early_stop` not to the end."""
    seen: list[str] = []

    def function(t: Any) -> Any:
        seen.append("begin")
        t = t.exp().sin()
        seen.append("end")
        return t + 1

    grad = run(lib, function, use_reentrant=False, early_stop=early)
    with lib.utils.checkpoint.set_checkpoint_early_stop(early):
        again = run(lib, function, use_reentrant=False)
    return seen, grad, again


def nested(lib: Any) -> Any:
    checkpoint = lib.utils.checkpoint.checkpoint
    calls: list[str] = []

    def inner(t: Any) -> Any:
        calls.append("inner")
        return t.exp().sin()

    def outer(t: Any) -> Any:
        calls.append("outer")
        return checkpoint(inner, t.cos(), use_reentrant=False).tanh()

    return run(lib, outer, use_reentrant=False), calls.count("outer")


def random(lib: Any, reentrant: bool, preserve: bool) -> Any:
    seen: list[Any] = []

    def function(t: Any) -> Any:
        noise = lib.rand(3, dtype=lib.float64)
        seen.append(noise.tolist())
        return (t * noise).exp()

    lib.manual_seed(3)
    run(
        lib,
        function,
        use_reentrant=reentrant,
        preserve_rng_state=preserve,
        **({} if reentrant else {"early_stop": False}),
    )
    return seen[0] == seen[1], lib.rand(2).tolist()


def changing(lib: Any, second: Callable[[Any], Any], **options: Any) -> Any:
    first = [True]

    def function(t: Any) -> Any:
        if first:
            first.clear()
            return t.exp().sin()
        return second(t)

    return run(lib, function, use_reentrant=False, **options)


def contexts(lib: Any) -> Any:
    seen: list[str] = []

    @contextlib.contextmanager
    def told(name: str) -> Any:
        seen.append(name)
        yield

    run(lib, lambda t: t.exp().sin(), use_reentrant=False, context_fn=lambda: (told("first"), told("second")))
    return seen


def sequential(lib: Any, **options: Any) -> Any:
    x = leaf(lib)
    functions = [lambda t: t.sin(), lambda t: t * t, lambda t: t.exp(), lambda t: t + 1, lambda t: t.tanh()]
    lib.utils.checkpoint.checkpoint_sequential(functions, 2, x, **options).sum().backward()
    return x.grad


def through_grad(lib: Any) -> Any:
    x = leaf(lib)
    y = lib.utils.checkpoint.checkpoint(lambda t: t.exp(), x, use_reentrant=True)
    return lib.autograd.grad(y.sum(), x)


def second_order(lib: Any) -> Any:
    x = leaf(lib)
    y = lib.utils.checkpoint.checkpoint(lambda t: (t * t).exp().sum(), x, use_reentrant=False)
    (grad,) = lib.autograd.grad(y, x, create_graph=True)
    return lib.autograd.grad(grad.sum(), x)


CHECKPOINTS: dict[str, Callable[[Any], Any]] = {
    "again": lambda lib: run(lib, lambda t: t.exp().sin(), use_reentrant=False),
    "reentrant": lambda lib: run(lib, lambda t: t.exp().sin(), use_reentrant=True),
    "early": lambda lib: counted(lib, True),
    "to the end": lambda lib: counted(lib, False),
    "nested": nested,
    "random": lambda lib: random(lib, False, True),
    "random, reentrant": lambda lib: random(lib, True, True),
    "other random": lambda lib: random(lib, False, False)[0],
    "fewer": lambda lib: changing(lib, lambda t: t * 2),
    "other dtype": lambda lib: changing(lib, lambda t: t.float().exp().sin()),
    "other shape": lambda lib: changing(lib, lambda t: t[:2].exp().sin()),
    "unknown check": lambda lib: run(lib, lambda t: t, use_reentrant=False, determinism_check="some"),
    "contexts": contexts,
    "context of a reentrant one": lambda lib: run(
        lib, lambda t: t, use_reentrant=True, context_fn=lambda: (1, 2)
    ),
    "keywords": lambda lib: run(lib, lambda t, k: (t * k).exp(), use_reentrant=False, k=2),
    "keywords of a reentrant one": lambda lib: run(lib, lambda t, k: t * k, use_reentrant=True, k=2),
    "sequential": lambda lib: sequential(lib, use_reentrant=False),
    "sequential, reentrant": lambda lib: sequential(lib, use_reentrant=True),
    "sequential, keywords": lambda lib: sequential(lib, use_reentrant=True, foo=1),
    "grad of a reentrant one": through_grad,
    "second order": second_order,
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_checkpoint(name: str) -> None:
    both(CHECKPOINTS[name])


def test_warnings() -> None:
    for lib in BOTH:
        checkpoint = lib.utils.checkpoint.checkpoint
        with pytest.warns(UserWarning, match="use_reentrant parameter should be passed explicitly"):
            checkpoint(lambda t: t.exp(), leaf(lib))
        with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
            checkpoint(lambda t: t * 2, lib.ones(2), use_reentrant=True)


# -- functional -------------------------------------------------------------------------------------------


def product(x: Any, y: Any) -> Any:
    return (x * y).exp() + x.sum()


def scalar(x: Any, y: Any) -> Any:
    return ((x * y).sin() * x).sum()


def given(lib: Any) -> Any:
    return lib.tensor([0.5, -1.0, 2.0], dtype=lib.float64), lib.tensor([0.25, 1.0, -0.5], dtype=lib.float64)


def tracked(lib: Any, name: str, function: Any) -> Any:
    """With create_graph the results can be differentiated."""
    x, y = (t.requires_grad_() for t in given(lib))
    found = getattr(lib.autograd.functional, name)(function, (x, y), create_graph=True)
    flat = found[0] if not isinstance(found[0], tuple) else found[0][0]
    return lib.autograd.grad(flat.sum(), x)


FUNCTIONAL: dict[str, Callable[[Any], Any]] = {
    "jacobian": lambda lib: lib.autograd.functional.jacobian(product, given(lib)),
    "jacobian of one": lambda lib: lib.autograd.functional.jacobian(lambda t: t.exp(), given(lib)[0]),
    "jacobian of several": lambda lib: lib.autograd.functional.jacobian(
        lambda a, b: (a * b, a.sum()), given(lib)
    ),
    "hessian": lambda lib: lib.autograd.functional.hessian(scalar, given(lib)),
    "hessian of one": lambda lib: lib.autograd.functional.hessian(lambda t: (t**3).sum(), given(lib)[0]),
    "hessian of no scalar": lambda lib: lib.autograd.functional.hessian(product, given(lib)),
    "vjp": lambda lib: lib.autograd.functional.vjp(product, given(lib), given(lib)[0]),
    "vjp without vector": lambda lib: lib.autograd.functional.vjp(scalar, given(lib)),
    "vjp that needs one": lambda lib: lib.autograd.functional.vjp(product, given(lib)),
    "jvp": lambda lib: lib.autograd.functional.jvp(product, given(lib), given(lib)),
    "jvp that needs one": lambda lib: lib.autograd.functional.jvp(product, given(lib)),
    "hvp": lambda lib: lib.autograd.functional.hvp(scalar, given(lib), given(lib)),
    "vhp": lambda lib: lib.autograd.functional.vhp(scalar, given(lib), given(lib)),
    "constant": lambda lib: lib.autograd.functional.jacobian(lambda t: lib.ones(2), given(lib)[0]),
    "no tensor": lambda lib: outcome(lambda _: lib.autograd.functional.jacobian(lambda t: t, 3), lib)[0],
    "tracked jacobian": lambda lib: tracked(lib, "jacobian", product),
    "tracked hessian": lambda lib: tracked(lib, "hessian", scalar),
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional(name: str) -> None:
    both(FUNCTIONAL[name])
