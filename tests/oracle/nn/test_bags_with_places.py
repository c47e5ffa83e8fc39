"""`torch.embedding_bag`, with its four results, against PyTorch's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from support import torch as oracle

import flambeau


def draw(rng: random.Random) -> dict[str, Any]:
    """Return the values of one call."""
    rows, count, mode = rng.choice([1, 3, 6]), rng.choice([0, 1, 4, 9]), rng.randrange(3)
    width = rng.choice([1, 2, 5])
    last = rng.random() < 0.3
    padding = rng.choice([(), (), (None,), (0,), (-1,)])
    return {
        "weight": [[rng.choice([rng.gauss(0, 1), float(rng.randint(-2, 2))]) for _ in range(width)] for _ in range(rows)],
        "indices": [rng.randrange(rows) for _ in range(count)],
        "offsets": [0, *sorted(rng.randint(0, count) for _ in range(rng.randrange(3))), *[count] * last],
        "factors": [rng.gauss(0, 1) for _ in range(count)] if mode == 0 and rng.random() < 0.5 else None,
        "rest": (rng.random() < 0.2, mode, mode != 2 and rng.random() < 0.2),
        "last": (last, *padding),
        "dtype": rng.choice(["float32", "float32", "float64"]),
        "index": rng.choice(["int64", "int32"]),
    }  # fmt: skip


def bags(module: Any, given: dict[str, Any]) -> tuple[Any, ...]:
    dtype, index = getattr(module, given["dtype"]), getattr(module, given["index"])
    weight = module.tensor(given["weight"], dtype=dtype).requires_grad_()
    indices, offsets = (module.tensor(given[name], dtype=index) for name in ("indices", "offsets"))
    factors = None if given["factors"] is None else module.tensor(given["factors"], dtype=dtype)
    found = module.embedding_bag(weight, indices, offsets, *given["rest"], factors, *given["last"])
    gradient = None
    # PyTorch's CPU kernel divides a row by the count of another one if `scale_grad_by_freq` is True.
    if given["last"][1:] in ((), (None,)) and not given["rest"][0]:
        (found[0] * found[0]).sum().backward()
        gradient = weight.grad.to_dense().tolist()
    kinds = [str(each.dtype).partition(".")[2] for each in found]
    return found[0].tolist(), gradient, kinds, [each.tolist() for each in found[1:]]


@pytest.mark.parametrize("seed", range(8))
def test_drawn_bags_and_places_are_pytorchs(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        given = draw(rng)
        (found, gradient, *rest), (theirs, slope, *others) = bags(flambeau, given), bags(oracle, given)
        assert rest == others, given
        assert oracle.allclose(oracle.tensor(found), oracle.tensor(theirs), atol=1e-5), given
        if slope is not None:
            assert oracle.allclose(oracle.tensor(gradient), oracle.tensor(slope), atol=1e-5), given


@pytest.mark.parametrize(
    "change",
    [{"mode": 3}, {"offsets": None}, {"offsets": [[0]]}, {"offsets": [1, 2]}, {"offsets": [0, 9]}, {"indices": [9, 0]},
     {"mode": 1, "per_sample_weights": [1.0, 1.0]}, {"per_sample_weights": [1.0]}],
    ids=str,
)  # fmt: skip
def test_invalid_arguments_raise_pytorchs_type(change: dict[str, Any]) -> None:
    kinds = []
    for module in (oracle, flambeau):
        given = {"indices": [1, 0], "offsets": [0, 1]} | change
        tensors = {name: module.tensor(value) for name, value in given.items() if isinstance(value, list)}
        with pytest.raises((RuntimeError, TypeError)) as caught:
            module.embedding_bag(module.ones(2, 3), **given | tensors)
        kinds.append(caught.type)
    assert kinds[0] is kinds[1]


def test_places_are_the_same_on_a_gpu() -> None:
    given = draw(random.Random(3)) | {"rest": (False, 2, False), "factors": None, "last": (False,)}
    weight, indices, offsets = (flambeau.tensor(given[name]) for name in ("weight", "indices", "offsets"))
    here = flambeau.embedding_bag(weight, indices, offsets, *given["rest"])
    with flambeau.virtual(races="error"):
        there = flambeau.embedding_bag(weight.cuda(), indices.cuda(), offsets.cuda(), *given["rest"])
        assert [each.tolist() for each in there] == [each.tolist() for each in here]
