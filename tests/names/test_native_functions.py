"""These tests compare undocumented functions of torch with PyTorch's CPU build, and check control flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch as oracle

import flambeau

VALUES = numpy.random.default_rng(3).normal(size=(2, 3, 4, 4))
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "shape": lambda m, x: m._shape_as_tensor(x),
    "softmax": lambda m, x: m._softmax_backward_data(x, x.softmax(1), 1, m.float64),
    "softmax of the last dimension": lambda m, x: m._softmax_backward_data(x, x.softmax(-1), -1, m.float64),
    "grid": lambda m, x: m.affine_grid_generator(x[:, 0, :2, :3], [2, 3, 5, 6], False),
    "fill": lambda m, x: m.fill(x, 3),
    "frobenius": lambda m, x: m.frobenius_norm(x, (1, 2), True),
    "frobenius of one dimension": lambda m, x: m.frobenius_norm(x, 1),
    "nuclear": lambda m, x: m.nuclear_norm(x[0, 0], True),
    "nuclear of dimensions": lambda m, x: m.nuclear_norm(x, (0, 1)),
    "norm of all": lambda m, x: m.norm_except_dim(x, 2, -1),
    **{f"norm except {d}": lambda m, x, d=d: m.norm_except_dim(x, 2, d) for d in (0, 2, 3)},
    **{
        f"grid sampler {i} {p} {corners}": lambda m, x, i=i, p=p, corners=corners: m.grid_sampler(
            x, x.permute(0, 2, 3, 1)[..., :2], i, p, corners
        )
        for i in range(3) for p in range(3) for corners in (False, True)
    },
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:at..(frobenius|nuclear)_norm is deprecated")
@pytest.mark.parametrize("name", CALLS)
def test_values_equal_pytorchs(name: str) -> None:
    ours, theirs = (CALLS[name](m, m.tensor(VALUES)) for m in (flambeau, oracle))
    assert tuple(ours.shape) == tuple(theirs.shape)
    assert str(ours.dtype) == str(theirs.dtype)
    numpy.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-12, atol=1e-14)


def test_signs_of_dtypes_equal_pytorchs() -> None:
    for name in ("uint8", "int8", "bool", "float32", "complex64"):
        ours, theirs = (m.is_signed(m.zeros(1, dtype=getattr(m, name))) for m in (flambeau, oracle))
        assert ours is theirs


def test_a_sampler_refuses_unknown_modes() -> None:
    x = flambeau.ones(1, 1, 2, 2)
    for modes in ((3, 0), (0, -1)):
        with pytest.raises(RuntimeError, match="modes are 0, 1 or 2"):
            flambeau.grid_sampler(x, flambeau.zeros(1, 2, 2, 2), *modes, False)


def test_control_flow_is_differentiable() -> None:
    for predicate in (True, False, flambeau.tensor([True]), flambeau.tensor(0)):
        x = flambeau.tensor(3.0, requires_grad=True)
        flambeau.cond(predicate, lambda t: t * 2, lambda t: t * t * t, (x,)).backward()
        assert x.grad is not None
        assert x.grad.item() == (2 if bool(predicate) else 27)
    x = flambeau.tensor(3.0, requires_grad=True)
    i, y = flambeau.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * x), (flambeau.tensor(0), x))
    y.backward()
    assert (i.item(), y.item(), x.grad.item()) == (3, 81.0, 4 * 27.0)


@pytest.mark.parametrize(
    "arguments", ["x, same, same, (x,)", "1, same, same, (x,)", "True, 3, same, (x,)", "True, same, same, x"]
)
def test_a_condition_refuses_other_arguments(arguments: str) -> None:
    names = {"x": flambeau.ones(2), "same": lambda t: t}
    with pytest.raises(RuntimeError, match="Expect"):
        flambeau.cond(*eval(arguments, names))


def test_a_loop_refuses_another_number_of_values() -> None:
    with pytest.raises(RuntimeError, match="should return 2 values"):
        flambeau.while_loop(lambda a, b: True, lambda a, b: (a,), (1, 2))


SAVED: dict[str, Callable[[Any, Any], Any]] = {
    "mul": lambda m, x: x * m.ones(2, 2, requires_grad=True), "exp": lambda m, x: x.exp(),
    "pow": lambda m, x: x**3, "mm": lambda m, x: x @ x.T, "div": lambda m, x: x / (x + 2), "relu": lambda m, x: x.relu(),
    "sin": lambda m, x: x.sin(),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_saved_tensors_are_listed(name: str) -> None:
    listed = []
    for m in (flambeau, oracle):
        node = SAVED[name](m, m.ones(2, 2, requires_grad=True)).grad_fn
        names = {each for each in dir(node) if each.startswith("_saved_")}
        listed.append({each for each in names if isinstance(getattr(node, each), m.Tensor)})
    assert listed[0] == listed[1]
