"""`torch.func.vmap`: results, gradients and errors equal PyTorch's, program by program and at random."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
from support import torch

import flambeau

PROGRAMS = [
    "vmap(f)(x, y)",
    "vmap(f, in_dims=(0, None))(x, 3)",
    "vmap(f, in_dims=(0, 1))(x, x.t())",
    "vmap(f, in_dims=-1)(x, x)",
    "vmap(g, out_dims=1)(x)",
    "vmap(g, out_dims=-1)(x)",
    "vmap(lambda a: y, out_dims=None)(x)",
    "vmap(lambda a: y * float('nan'), out_dims=None)(x)",
    "vmap(lambda a: y)(x)",
    "vmap(lambda a: (a, a), out_dims=(0, 1))(x)",
    "vmap(lambda a: {'k': a}, out_dims={'k': 1})(x)",
    "vmap(lambda a: [a, a])(x)",
    "vmap(lambda a: 3, out_dims=None)(x)",
    "vmap(lambda a: (a, 3), out_dims=(0, None))(x)",
    "vmap(g, out_dims=(0,))(x)",
    "vmap(lambda d: d['a'] + d['b'].sum(), in_dims=({'a': 0, 'b': None},))({'a': x, 'b': y})",
    "vmap(g)(m.zeros(0, 3))",
    "vmap(lambda a: a.sum(), out_dims=0)(m.zeros(0, 3))",
    "vmap(vmap(f, in_dims=(0, None)))(x, y)",
    "vmap(vmap(m.dot, (0, None)), (None, 0))(x, x)",
    "vmap(lambda a, *, s: a.sum(0) * s)(x, s=2)",
    "vmap(lambda a: a.add_(1))(x)",
    "vmap(g, chunk_size=2)(x)",
    "vmap(grad(lambda a: (a ** 2).sum()))(x)",
    "vmap(jacrev(m.sin))(x)",
    "jacrev(lambda a: vmap(m.tanh)(a))(y)",
    "hessian(lambda a: vmap(lambda v: v ** 3)(a).sum())(y)",
    "m.autograd.grad(vmap(m.dot, (0, None))(x, w).sum(), w)[0]",
    "m.autograd.grad(vmap(grad(lambda a: (a * w).pow(2).sum()))(x).sum(), w)[0]",
    "vmap(lambda a: a * 0 + m.rand(4), randomness='same')(x)",
    "vmap(lambda a: a + m.rand(4), randomness='different')(x).shape",
    "m.autograd.grad((w ** 2,), w, (x,), is_grads_batched=True)",
    "m.autograd.grad(w ** 2, w, x, is_grads_batched=True)[0].shape",
    "m.autograd.functional.jacobian(lambda a: a ** 2, y, vectorize=True)",
    # errors
    "vmap(f)()",
    "vmap(f, in_dims=(0,))(x, y)",
    "vmap(f, in_dims=[0, 0])(x, y)",
    "vmap(f, in_dims=(None, None))(x, y)",
    "vmap(f, in_dims=(0, 2))(x, y)",
    "vmap(f, in_dims=(0, -3))(x, y)",
    "vmap(f, in_dims='a')(x, y)",
    "vmap(f)(x, 3)",
    "vmap(f)(x, m.ones(4))",
    "vmap(f)(x, m.tensor(1.0))",
    "vmap(g, in_dims=(1.0,))(x)",
    "vmap(g, in_dims=((0, 0),))(x)",
    "vmap(lambda d: d['a'], in_dims=({'a': 0},))([x])",
    "vmap(g, out_dims=2)(x)",
    "vmap(g, out_dims=-3)(x)",
    "vmap(g, out_dims=None)(x)",
    "vmap(g, out_dims=(0, 1))(x)",
    "vmap(lambda a: (a, a), out_dims=(0,))(x)",
    "vmap(lambda a: {'k': a}, out_dims='z')(x)",
    "vmap(lambda a: 3)(x)",
    "vmap(lambda a: None)(x)",
    "vmap(lambda a: a + m.rand(4))(x)",
    "vmap(lambda a: m.nn.functional.dropout(a))(x)",
    "vmap(g, randomness='other')(x)",
    "vmap(g, chunk_size=0)(x)",
    "vmap(3)(x)",
]


def f(a: Any, b: Any) -> Any:
    return a * b


def g(a: Any) -> Any:
    return a


def run(m: Any, program: str, **values: Any) -> Any:
    names = {
        "m": m, "f": f, "g": g, "vmap": m.func.vmap, "grad": m.func.grad, "jacrev": m.func.jacrev,
        "hessian": m.func.hessian, "x": m.arange(12.0).view(3, 4), "y": m.arange(3.0),
        "w": m.ones(4).requires_grad_(), **values,
    }  # fmt: skip
    m.manual_seed(3)
    try:
        return eval(program, names)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def listed(value: Any) -> Any:
    """Return nested results with tensors as rounded lists and shapes."""
    if isinstance(value, dict):
        return {key: listed(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(listed, value)) if type(value) in (tuple, list) else tuple(value)
    if hasattr(value, "detach"):
        flat = value.detach().reshape(-1).tolist()
        return tuple(value.shape), [f"{float(each):.4g}".replace("-0", "0") for each in flat]
    return value


@pytest.mark.parametrize("program", PROGRAMS)
def test_vmap_programs_equal_pytorch(program: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = listed(run(torch, program))
    assert listed(run(flambeau, program)) == expected


def test_random_vmaps_equal_pytorch() -> None:
    bodies = [
        "a * b.sum()", "a @ b", "m.outer(a.reshape(-1), b.reshape(-1))", "(a.unsqueeze(0) + b).mean(0)", "a.flip(0) - b",
        "m.softmax(a, -1) * b", "m.cat([a, b])", "a.cumsum(0).exp() / 9 + b[0]", "m.where(a > b, a, b * 2)", "a[1:] * b[:-1]",
        "a.sort(0)[0] + b", "m.nn.functional.layer_norm(a, a.shape[-1:]) + b", "a.view(-1).norm() * b", "m.einsum('i,i->', a, b)",
    ]  # fmt: skip
    for seed in range(120):
        rng = random.Random(seed)
        shape = [4]
        dims, places = [], []
        for _ in range(2):
            place = rng.choice([None, 0, 1, -1, -2])
            full = list(shape)
            if place is not None:
                full.insert(place % 2, 3)
            dims.append(full)
            places.append(place)
        if places == [None, None]:
            continue
        body, out = rng.choice(bodies), rng.choice([0, 0, -1])
        program = f"vmap(lambda a, b: {body}, in_dims={tuple(places)}, out_dims={out})(p, q)"
        if rng.random() < 0.4:
            program = f"m.autograd.grad({program}.pow(2).sum(), (p, q))"
        results = []
        for m in (torch, flambeau):
            p, q = (
                (m.arange(float(m.tensor(s).prod())) * 0.7 + k).sin().view(s).requires_grad_()
                for k, s in enumerate(dims)
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results.append(run(m, program, p=p, q=q))
        expected, found = results
        if isinstance(expected, str):
            assert isinstance(found, str), program
            assert found.partition(":")[0] == expected.partition(":")[0], program
            continue
        for one, other in zip(*[r if isinstance(r, tuple) else (r,) for r in results], strict=True):
            assert one.shape == other.shape, program
            difference = flambeau.tensor(one.tolist()) - flambeau.tensor(other.tolist())
            assert difference.abs().max() < 1e-4, program


def test_refused_random_numbers_leave_the_generator() -> None:
    flambeau.manual_seed(5)
    state = flambeau.get_rng_state()
    with pytest.raises(RuntimeError, match="randomness error mode"):
        flambeau.vmap(lambda a: a + flambeau.rand(4))(flambeau.ones(3, 4))
    assert flambeau.equal(flambeau.get_rng_state(), state)


def test_vmap_runs_on_virtual_gpus() -> None:
    with flambeau.virtual(devices=1, races="error"):
        x = flambeau.arange(6.0, device="cuda").view(2, 3)
        assert flambeau.vmap(lambda a: a.sum() * a)(x).tolist() == [[0.0, 3.0, 6.0], [36.0, 48.0, 60.0]]
        with pytest.raises(RuntimeError, match="randomness error mode"):
            flambeau.vmap(lambda a: a + flambeau.rand(3, device="cuda"))(x)
        same = flambeau.vmap(lambda a: a * 0 + flambeau.rand(3, device="cuda"), randomness="same")(x)
        assert same[0].tolist() == same[1].tolist()


def make_models(m: Any, kinds: str) -> list[Any]:
    """Return models whose parameters are set: l and L are Linear (L in evaluation mode), b BatchNorm1d, f frozen."""
    models = []
    for at, kind in enumerate(kinds):
        model = m.nn.BatchNorm1d(3) if kind == "b" else m.nn.Linear(3, 3)
        with m.no_grad():
            for param in model.parameters():
                param.fill_(at + 0.5)
        if kind == "f":
            model.weight.requires_grad_(False)
        models.append(model.eval() if kind == "L" else model)
    return models


@pytest.mark.parametrize("kinds", ["lll", "bb", "", "lL", "lb", "lf"])
def test_stacked_states_equal_pytorch(kinds: str) -> None:
    def stacked(m: Any) -> Any:
        try:
            states = m.func.stack_module_state(make_models(m, kinds))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        leaves = [t.is_leaf and t.requires_grad for t in states[0].values()]
        return listed(states), [list(s) for s in states], leaves

    assert stacked(flambeau) == stacked(torch)


def test_an_ensemble_runs_as_in_pytorch() -> None:
    results = []
    for m in (torch, flambeau):
        models = make_models(m, "lll")
        params, buffers = m.func.stack_module_state(models)

        def call(p: Any, b: Any, x: Any, m: Any = m, model: Any = models[0]) -> Any:
            return m.func.functional_call(model, (p, b), (x,))

        outputs = m.vmap(call, in_dims=(0, 0, None))(params, buffers, m.ones(2, 3))
        outputs.sum().backward()
        results.append(listed([outputs, params["weight"].grad]))
    assert results[0] == results[1]
