"""Forward-mode AD beside PyTorch: operators on PyTorch's samples, in-place changes, views, and compositions."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import opinfo_kit as kit
import pytest
import torch as oracle
import torch.autograd.forward_ad as oracle_forward

import flambeau as torch
from flambeau.autograd import forward_ad

DAY = int(os.environ.get("FLAMBEAU_HUNT_SEED") or datetime.now(UTC).strftime("%Y%m%d"))
LIBRARIES = ((oracle, oracle_forward), (torch, forward_ad))


def flatten(x: Any) -> list[Any]:
    if x is None:
        return [None]
    if isinstance(x, torch.Tensor | oracle.Tensor):
        return np.asarray(x.detach().numpy(), dtype=float).reshape(-1).tolist()
    if isinstance(x, list | tuple):
        return [each for part in x for each in flatten(part)]
    return [x]


def assert_agree(program: Callable[..., Any]) -> None:
    theirs, ours = (flatten(program(*each)) for each in LIBRARIES)
    assert [x is None for x in ours] == [x is None for x in theirs]
    np.testing.assert_allclose([x or 0 for x in ours], [x or 0 for x in theirs], rtol=1e-6, atol=1e-9)


def values(library: Any, *shape: int) -> Any:
    count = int(np.prod(shape))
    return library.tensor([(i * 37 % 11) / 7 - 0.6 for i in range(count)], dtype=library.float64).reshape(
        shape
    )


# -- operators ------------------------------------------------------------------------------------------------------

# Functions whose results are random or not unique, whose names differ here, or whose samples Flambeau has no values of.
# Norms: at zero tangents are NaN here. cholesky_inverse: another extension beyond triangular matrices.
SKIPPED = (
    "rand", "normal", "bernoulli", "empty", "dropout", "multinomial", "rrelu", "sparse", "nested", "jiterator",
    "svd", "eig", "qr", "lstsq", "pca_lowrank", "svd_lowrank", "lobpcg", "fractional", "uniform", "cauchy",
    "exponential", "geometric", "log_normal", "to_sparse", "_refs", "torch_", "masked.", "ops.", "argwhere",
    "attention", "resize", "as_strided", "pinv", "matrix_rank", "unpool", "linalg.norm", "linalg.vector_norm",
    "cholesky_inverse",
)  # fmt: skip


def run_dual(
    op: Callable[..., Any], x: Any, args: Any, kwargs: Any, library: Any, forward: Any, seed: int
) -> Any:
    """Return results and tangents of a call whose first input is dual."""
    draw = np.random.default_rng(seed).standard_normal(tuple(x.shape)).astype(np.float64)
    tangent = library.from_numpy(np.asarray(draw)).to(x.dtype)
    with forward.dual_level():
        result = op(forward.make_dual(x, tangent), *args, **kwargs)
        listed = [result] if not isinstance(result, list | tuple) else list(result)
        parts = [forward.unpack_dual(t) for t in listed if isinstance(t, library.Tensor)]
        return [(p.primal, p.tangent) for p in parts if p.primal.dtype.is_floating_point]


def find(name: str, library: Any) -> Any:
    """Return the function of an operator's name, such as "nn.functional.gelu"."""
    found = library
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.filterwarnings("ignore")
def test_operators_pass_pytorchs_tangents() -> None:
    ops = [op for op in kit.op_infos() if op.supports_forward_ad and oracle.float64 in op.dtypes]
    compared, differing = 0, []
    for op in random.Random(DAY).sample(ops, 120):
        if any(word in op.name for word in SKIPPED):
            continue
        try:
            theirs, ours = find(op.name, oracle), find(op.name, torch)
        except AttributeError:
            continue
        for sample in kit.samples(op, 2, DAY, dtype=oracle.float64):
            if not getattr(sample.input, "numel", int)() or sample.input.dtype is not oracle.float64:
                continue
            try:
                inputs = kit.convert((sample.input, list(sample.args), dict(sample.kwargs)))
                expected = run_dual(theirs, sample.input, sample.args, sample.kwargs, *LIBRARIES[0], DAY)
            except (kit.CannotConvert, RuntimeError, TypeError, ValueError, AttributeError):
                continue  # PyTorch refuses what the sample needs of its method
            compared += 1
            try:
                result = run_dual(ours, *inputs, *LIBRARIES[1], DAY)
                fits = agree(result, expected)
            except Exception as error:  # listed with the others
                result, fits = error, False
            if not fits:
                differing.append((op.name, sample, result, expected))
    assert compared > 60, compared
    assert not differing, (len(differing), sorted({d[0] for d in differing}), differing[0])


def agree(result: Any, expected: Any) -> bool:
    if len(result) != len(expected):
        return False
    for (_, ours), (primal, theirs) in zip(result, expected, strict=True):
        zeros = np.zeros(tuple(primal.shape))
        x = zeros if ours is None else ours.detach().numpy()
        # force: PyTorch has tensors of zeros without memory
        y = zeros if theirs is None else theirs.detach().numpy(force=True)
        if not np.allclose(x, y, rtol=1e-5, atol=1e-7, equal_nan=True):
            return False
    return True


# -- dual tensors ---------------------------------------------------------------------------------------------------


def test_views_and_changes_in_place() -> None:
    def program(library: Any, forward: Any) -> Any:
        results = []
        with forward.dual_level():
            x = forward.make_dual(values(library, 3, 4), values(library, 3, 4) * 2 + 1)
            base = library.zeros(3, 4, dtype=library.float64)
            part = base[1]
            part.mul_(2).add_(x[0])
            results += [forward.unpack_dual(base), forward.unpack_dual(part)]
            y = x * 1
            y[0].zero_()
            y.t()[1].mul_(x.t()[0])
            z = x + 0
            z.add_(1).mul_(3).exp_()
            w = library.empty(3, 4, dtype=library.float64).copy_(x)
            results += [forward.unpack_dual(t) for t in (y, z, w, x, *x.unbind(1), x.detach() * 2)]
        return results

    assert_agree(program)


def test_tangents_end_with_their_level() -> None:
    for library, forward in LIBRARIES:
        with forward.dual_level():
            x = forward.make_dual(library.ones(2), library.ones(2))
        assert forward.unpack_dual(x).tangent is None
        with forward.dual_level():
            assert forward.unpack_dual(x).tangent is None


@pytest.mark.parametrize(
    "use",
    [
        lambda library, forward: forward.make_dual(library.ones(2), library.ones(2)),
        lambda library, forward: forward.exit_dual_level(),
        lambda library, forward: within(forward, lambda: forward.make_dual(library.ones(2), library.ones(3))),
        lambda library, forward: within(
            forward, lambda: forward.make_dual(library.ones(2).int(), library.ones(2))
        ),
        lambda library, forward: within(forward, forward.enter_dual_level),
        lambda library, forward: within(forward, lambda: forward.exit_dual_level(level=3)),
    ],
)
def test_wrong_use_raises_pytorchs_errors(use: Any) -> None:
    with pytest.raises((RuntimeError, ValueError)) as theirs:
        use(*LIBRARIES[0])
    with pytest.raises(theirs.type) as ours:
        use(*LIBRARIES[1])
    assert str(ours.value)[:60] == str(theirs.value)[:60]


def within(forward: Any, use: Callable[[], Any]) -> None:
    with forward.dual_level():
        use()


# -- compositions ---------------------------------------------------------------------------------------------------


def f(library: Any) -> Callable[..., Any]:
    weight = values(library, 4, 3)
    return lambda x: ((x @ weight).tanh().softmax(-1) * x.sum()).exp().prod(-1).sum()


@pytest.mark.filterwarnings("ignore:Attempted to insert")  # PyTorch's, of linearize
def test_functions_of_functions() -> None:
    def program(library: Any, forward: Any) -> Any:
        func, g = library.func, f(library)
        x, t = values(library, 2, 4), values(library, 2, 4) + 0.3
        inner = lambda x: func.jvp(g, (x,), (t,))[1]  # noqa: E731
        return [
            func.jvp(g, (x,), (t,)),
            func.jvp(func.grad(g), (x,), (t,)),
            func.grad(inner)(x),
            func.jvp(inner, (x,), (t * 2,)),
            func.hessian(g)(x),
            func.jacfwd(func.jacfwd(g))(x),
            func.jacfwd(func.grad(g))(x),
            func.jacrev(func.jacfwd(g))(x),
            func.jacfwd(lambda x, y: (x * y.sum(), y.sin()), argnums=(0, 1))(x, t),
            func.vmap(lambda row, along: func.jvp(lambda r: r.sin() * r.sum(), (row,), (along,)))(x, t),
            func.linearize(g, x)[0],
            func.linearize(lambda x: x.sin() * x, x)[1](t),
            func.jvp(lambda d: {"a": d["x"] * d["y"]}["a"], ({"x": x, "y": t},), ({"x": t, "y": x},)),
            func.functionalize(lambda x: x.clone().mul_(2))(x),
        ]

    assert_agree(program)


def test_jacobians_in_forward_mode() -> None:
    def program(library: Any, forward: Any) -> Any:
        functional, x = library.autograd.functional, values(library, 2, 4)
        how = {"vectorize": True, "strategy": "forward-mode"}
        g = f(library)
        return [
            functional.jacobian(lambda x: x.sin() @ x.t(), x, **how),
            functional.jacobian(lambda x, y: (x * y, y.sum()), (x, x + 1), **how),
            functional.hessian(g, x, vectorize=True, outer_jacobian_strategy="forward-mode"),
        ]

    assert_agree(program)


def test_functions_of_the_program_pass_tangents() -> None:
    def program(library: Any, forward: Any) -> Any:
        class Scale(library.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, y: Any, factor: float) -> Any:
                ctx.save_for_forward(x, y)
                ctx.save_for_backward(x, y)
                ctx.factor = factor
                return x * y * factor, x + y

            @staticmethod
            def jvp(ctx: Any, x_t: Any, y_t: Any, _: Any) -> Any:
                x, y = ctx.saved_tensors
                return (x_t * y + x * y_t) * ctx.factor, x_t + y_t

            @staticmethod
            def backward(ctx: Any, one: Any, two: Any) -> Any:
                x, y = ctx.saved_tensors
                return one * y * ctx.factor + two, one * x * ctx.factor + two, None

        x, y = values(library, 3), values(library, 3) + 2
        results = []
        with forward.dual_level():
            dual = forward.make_dual(x, y)
            results += [forward.unpack_dual(t) for t in Scale.apply(dual, y, 3.0)]
            results += [forward.unpack_dual(t) for t in Scale.apply(dual, dual * 2, 0.5)]
        results.append(library.func.hessian(lambda x: (Scale.apply(x, x, 2.0)[0] ** 2).sum())(x) if library is torch else
                       library.autograd.functional.hessian(lambda x: (Scale.apply(x, x, 2.0)[0] ** 2).sum(), x))  # fmt: skip
        return results

    assert_agree(program)


def test_a_function_without_jvp_refuses() -> None:
    for library, forward in LIBRARIES:

        class Plain(library.autograd.Function):  # type: ignore[name-defined]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 2

        with (
            forward.dual_level(),
            pytest.raises(NotImplementedError, match="must implement the jvp function"),
        ):
            Plain.apply(forward.make_dual(library.ones(2), library.ones(2)))


def test_tangents_are_those_of_differences() -> None:
    """Networks on virtual GPUs: numeric derivatives along random directions."""
    generator = np.random.default_rng(DAY)
    with warnings.catch_warnings(), torch.virtual(devices=1, races="error"):
        warnings.simplefilter("ignore")
        network = torch.nn.Sequential(
            torch.nn.Conv1d(2, 3, 2),
            torch.nn.GELU(),
            torch.nn.Flatten(),
            torch.nn.Linear(12, 4),
            torch.nn.LayerNorm(4),
        )
        network = network.double().cuda()
        x = torch.from_numpy(generator.standard_normal((3, 2, 5))).cuda()
        t = torch.from_numpy(generator.standard_normal((3, 2, 5))).cuda()
        _, tangent = torch.func.jvp(network, (x,), (t,))
        with torch.no_grad():
            numeric = (network(x + 1e-6 * t) - network(x - 1e-6 * t)) / 2e-6
        np.testing.assert_allclose(
            tangent.detach().cpu().numpy(), numeric.cpu().numpy(), rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("kind", ["float64", "complex128"])
def test_tangents_of_logcumsumexp(kind: str) -> None:
    # Its gradient takes logarithms of grad, which forward mode differentiates at 0.
    generator = np.random.default_rng(DAY)
    numbers = generator.standard_normal((2, 3, 5)) * 3
    x, tangent = (
        (numbers[0], numbers[1]) if kind == "float64" else (numbers[0] + 1j * numbers[1], numbers[1] * 1j)
    )

    def program(library: Any, forward: Any) -> Any:
        with forward.dual_level():
            dual = forward.make_dual(library.from_numpy(x.copy()), library.from_numpy(tangent.copy()))
            found = forward.unpack_dual(library.logcumsumexp(dual, 1)).tangent
            return library.view_as_real(found) if found.is_complex() else found

    assert_agree(program)


def test_second_derivatives_of_a_gradient_of_zeros() -> None:
    x = torch.tensor([-np.inf, 1.0, 1.0, -900.0, 2.0], dtype=torch.float64, requires_grad=True)
    grad = torch.tensor([0.0, 1.0, 0.0, -1.0, 0.0], dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(torch.logcumsumexp(x, 0), x, grad, create_graph=True)
    by_x, by_grad = torch.autograd.grad(found.sum(), (x, grad))
    np.testing.assert_allclose(by_grad, np.ones(5), rtol=1e-12)  # the gradients of each sum add up to 1
    np.testing.assert_allclose(by_x, np.zeros(5), atol=1e-12)
