"""`LinearCrossEntropyLoss`, its function, and `replace_all_batch_norm_modules_`, against PyTorch's CPU build."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import torch

import flambeau

CASES: list[dict[str, Any]] = [
    {}, {"bias": True}, {"out_features": (4, 2)}, {"out_features": (3,), "bias": True}, {"reduction": "sum"},
    {"reduction": "none"}, {"label_smoothing": 0.2}, {"ignore_index": 1}, {"weight": [0.5, 1.0, 2.0]},
]  # fmt: skip


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_pytorchs(case: dict[str, Any], probabilities: bool) -> None:
    random = np.random.default_rng(0)
    places = case.get("out_features", ())
    x = random.standard_normal((5, 4)).astype(np.float32)
    labels = random.integers(0, 3, (5, *places))
    shares = random.random((5, 3, *places), np.float32)
    state: dict[str, Any] = {}
    results = []
    for lib in (torch, flambeau):
        options = {**case, "weight": lib.tensor(case["weight"])} if "weight" in case else case
        module = lib.nn.LinearCrossEntropyLoss(4, 3, **options)
        if not state:
            state = {name: value.numpy() for name, value in module.state_dict().items()}
        module.load_state_dict({name: lib.from_numpy(value) for name, value in state.items()})
        given = lib.from_numpy(x).requires_grad_()
        try:
            loss = module(given, lib.from_numpy(shares if probabilities else labels))
        except RuntimeError as error:
            results.append([str(error)])
            continue
        loss.sum().backward()
        parts = [loss.detach(), given.grad, *[p.grad for p in module.parameters()]]
        results.append([part.numpy() for part in parts])
    for theirs, ours in zip(*results, strict=True):
        if isinstance(theirs, str):
            assert ours == theirs
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


SHAPES = [((), (3, 4)), ((2, 3, 4), (3, 4)), ((2, 4), (4,)), ((2, 4), (3, 5)), ((4,), (3, 2, 4))]


@pytest.mark.parametrize("shape, weight", SHAPES)
def test_shapes_that_do_not_fit_are_refused_as_in_pytorch(shape: Any, weight: Any) -> None:
    messages = []
    for lib in (torch, flambeau):
        with pytest.raises(RuntimeError) as error:
            lib.nn.functional.linear_cross_entropy(
                lib.ones(shape), lib.ones(weight), lib.zeros(2, dtype=lib.int64)
            )
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_options_raise_with_advice() -> None:
    loss = flambeau.nn.LinearCrossEntropyLoss(4, 3, options=object())
    with pytest.raises(AttributeError, match="acc_dtype"):
        loss(flambeau.ones(2, 4), flambeau.zeros(2, dtype=flambeau.int64))


def test_batch_normalizations_lose_their_running_statistics() -> None:
    for lib in (torch, flambeau):
        net = lib.nn.Sequential(lib.nn.Conv2d(1, 2, 1), lib.nn.Sequential(lib.nn.BatchNorm2d(2)))
        assert lib.func.replace_all_batch_norm_modules_(net) is net
        norm = net[1][0]
        assert (norm.running_mean, norm.running_var, norm.num_batches_tracked) == (None, None, None)
        assert not norm.track_running_stats
        assert net(lib.ones(2, 1, 3, 3)).shape == (2, 2, 3, 3)
