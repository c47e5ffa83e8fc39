"""Adam with `capturable=True`: one launch for all parameters, whose step counts stay on the GPU, against PyTorch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch as reference

import flambeau as torch
from flambeau.tensor.functions import foreach_update

STEPS = 7
TOLERANCES = {
    "float32": 1e-4,
    "float64": 1e-4,
    "bfloat16": 5e-2,
    "complex64": 1e-4,
}  # bias corrections are float32


@pytest.fixture(autouse=True)
def gpu() -> Iterator[Any]:
    with torch.virtual(devices=1, races="error", poison=True) as machine:
        yield machine


def draw(choice: random.Random) -> tuple[str, dict[str, Any], list[tuple[tuple[int, ...], str]]]:
    """Return a class, its options, and the shapes and dtypes of parameters."""
    options = {
        "lr": choice.choice([0.05, 0.3]), "betas": choice.choice([(0.9, 0.999), (0.5, 0.7)]),
        "eps": choice.choice([1e-8, 1e-3]), "weight_decay": choice.choice([0, 0.1]),
        "amsgrad": choice.random() < 0.5, "maximize": choice.random() < 0.5,
    }  # fmt: skip
    kinds = choice.choice([["float32"], ["float32", "bfloat16", "float64"], ["complex64", "float32"]])
    shapes = [(3, 4), (5,), (), (1,), (2, 3, 2), (4, 1)]
    params = [(choice.choice(shapes), choice.choice(kinds)) for _ in range(choice.randint(1, 6))]
    return choice.choice(["Adam", "AdamW"]), options, params


def values(numbers: np.random.RandomState, shape: tuple[int, ...], kind: str) -> np.ndarray[Any, Any]:
    found = np.asarray(numbers.randn(*shape), "float32")
    return found + 1j * np.asarray(numbers.randn(*shape), "float32") if kind == "complex64" else found


def train(
    m: Any, device: str, seed: int, kind: str, options: dict[str, Any], described: Any
) -> list[np.ndarray[Any, Any]]:
    """Return the parameters after steps, of which some find parameters without a gradient, or new options."""
    choice, numbers = random.Random(seed), np.random.RandomState(seed)

    def tensor(shape: tuple[int, ...], dtype: str) -> Any:
        return m.tensor(values(numbers, shape, dtype)).to(device, getattr(m, dtype))

    params = [m.nn.Parameter(tensor(*each)) for each in described]
    optimizer = getattr(m.optim, kind)(params, **options)
    for _ in range(STEPS):
        for p, each in zip(params, described, strict=True):
            grad = tensor(*each)
            p.grad = None if choice.random() < 0.2 else grad
        optimizer.step()
        if choice.random() < 0.3:
            rate = optimizer.param_groups[0]["lr"]
            if isinstance(rate, m.Tensor):
                rate.mul_(0.5)
            else:
                optimizer.param_groups[0]["lr"] = rate * 0.5
    wide = {"bfloat16": "float32"}
    return [
        p.detach().cpu().to(getattr(m, wide.get(k, k))).numpy()
        for p, (_, k) in zip(params, described, strict=True)
    ]


@pytest.mark.parametrize("rate", ["number", "on the GPU", "on the CPU"])
@pytest.mark.parametrize("seed", range(12))
def test_steps_are_those_of_pytorch(seed: int, rate: str) -> None:
    kind, options, described = draw(random.Random(f"adam {seed}"))
    want = train(reference, "cpu", seed, kind, options, described)
    places = {"on the GPU": "cuda", "on the CPU": "cpu"}
    if rate != "number":
        options = options | {"lr": torch.tensor(options["lr"], device=places[rate])}
    got = train(torch, "cuda", seed, kind, options | {"capturable": True}, described)
    for a, b, (_, dtype) in zip(got, want, described, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype])


def test_tensors_as_betas_take_the_way_of_single_parameters() -> None:
    options: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.99)}
    described = [((3, 4), "float32"), ((5,), "float32")]
    want = train(reference, "cpu", 0, "Adam", options, described)
    betas = tuple([torch.tensor(x, device="cuda") for x in options["betas"]])
    got = train(torch, "cuda", 0, "Adam", options | {"betas": betas, "capturable": True}, described)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("count", [1, 3, 40])
def test_number_of_launches_is_that_of_one_parameter(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    updates = []
    run = foreach_update._run

    def counted(record: Any, *rest: Any) -> None:
        updates.append(record.name)
        run(record, *rest)

    params = [torch.nn.Parameter(torch.ones(4, device="cuda")) for _ in range(count)]
    optimizer = torch.optim.Adam(params, capturable=True)
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer.step()
    monkeypatch.setattr(foreach_update, "_run", counted)
    optimizer.step()
    assert updates == ["_counted_adam", "_foreach_copy"]
    assert [s["step"].item() for s in optimizer.state.values()] == [2.0] * count


def test_counters_on_the_cpu_are_refused() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([p], capturable=True)
    p.grad = torch.ones(3)
    with pytest.raises(AssertionError, match="capturable=True"):
        optimizer.step()
