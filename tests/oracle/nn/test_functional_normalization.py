"""Normalization against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from functional import both, draw, refuses
from support import from_torch, same, torch

import flambeau

KINDS = ("float16", "bfloat16", "float32", "float64")
NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 4e-6, "float64": 1e-14}
SHAPES = ((4, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 4))


def optional(count: int, kind: str) -> Any:
    weight, bias = draw(count, kind=kind, seed=8), draw(count, kind=kind, seed=9)
    return ((None, None), (weight, None), (None, bias), (weight, bias))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm(shape: tuple[int, ...], kind: str) -> None:
    x = draw(*shape, kind=kind)
    mean, var = draw(3, kind=kind, seed=1), draw(3, kind=kind, seed=2, low=0.5)
    for w, b in optional(3, kind):
        for training in (False, True):
            both(
                lambda nn, x, m, v, w, b, t=training: nn.batch_norm(x, m, v, w, b, t),
                x, mean.clone(), var.clone(), w, b, atol=NEAR[kind],
            )  # fmt: skip
        both(lambda nn, x, w, b: nn.batch_norm(x, None, None, w, b, True, eps=0.1), x, w, b, atol=NEAR[kind])
    ours = [from_torch(t) for t in (mean, var)]
    flambeau.nn.functional.batch_norm(from_torch(x), *ours, training=True, momentum=0.3)
    torch.nn.functional.batch_norm(x, mean, var, training=True, momentum=0.3)
    same(ours, [mean, var], 4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_instance_norm(shape: tuple[int, ...], kind: str) -> None:
    x = draw(*shape, kind=kind)
    mean, var = draw(3, kind=kind, seed=1), draw(3, kind=kind, seed=2, low=0.5)
    for w, b in optional(3, kind):
        both(lambda nn, x, w, b: nn.instance_norm(x, None, None, w, b), x, w, b, atol=NEAR[kind])
        for own in (False, True):
            both(
                lambda nn, x, m, v, w, b, own=own: nn.instance_norm(x, m, v, w, b, own),
                x, mean.clone(), var.clone(), w, b, atol=NEAR[kind],
            )  # fmt: skip
    ours = [from_torch(t) for t in (mean, var)]
    flambeau.nn.functional.instance_norm(from_torch(x), *ours)
    torch.nn.functional.instance_norm(x, mean, var)
    same(ours, [mean, var], 8)


@pytest.mark.parametrize("kind", KINDS)
def test_layer_and_rms_norm(kind: str) -> None:
    x = draw(2, 3, 4, 5, kind=kind)
    for size in ((5,), (4, 5), (3, 4, 5)):
        w, b = draw(*size, kind=kind, seed=1), draw(*size, kind=kind, seed=2)
        for x_ in (x, x.transpose(0, 1)[..., :].contiguous().transpose(0, 1), x[:0]):
            for more in ((None, None), (w, None), (w, b), (None, b)):
                both(lambda nn, x, w, b, s=size: nn.layer_norm(x, s, w, b), x_, *more, atol=NEAR[kind])
            for weight in (None, w):
                both(lambda nn, x, w, s=size: nn.rms_norm(x, s, w), x_, weight, atol=NEAR[kind])
                both(lambda nn, x, w, s=size: nn.rms_norm(x, s, w, 0.1), x_, weight, atol=NEAR[kind])
    both(lambda nn, x: nn.layer_norm(x * 0 + 3, (5,)), x, atol=NEAR[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_group_norm(kind: str) -> None:
    for shape in ((2, 6), (2, 6, 5), (2, 6, 3, 4)):
        x = draw(*shape, kind=kind)
        for groups in (1, 2, 3):
            for w, b in optional(6, kind):
                both(lambda nn, x, w, b, g=groups: nn.group_norm(x, g, w, b), x, w, b, atol=NEAR[kind])


def test_local_response_norm() -> None:
    for shape in ((2, 7, 4), (2, 7, 3, 4), (1, 7, 2, 3, 4)):
        for size in (1, 2, 5):
            both(lambda nn, x, s=size: nn.local_response_norm(x, s, 0.1, 0.6, 2.0), draw(*shape), ulps=8)


def test_large_means_do_not_spoil_variances() -> None:
    x = draw(4, 1000) * 1e-2 + 1000
    exact = torch.nn.functional.layer_norm(x.double(), (1000,))
    ours = torch.tensor(flambeau.nn.functional.layer_norm(from_torch(x), (1000,)).tolist())
    assert float((ours - exact).abs().max()) < 2e-2


def test_refusals() -> None:
    x, w = draw(2, 3, 4), draw(3)
    refuses(
        ValueError,
        "more than 1 value",
        lambda nn, x: nn.batch_norm(x[:1, :, 0], None, None, training=True),
        x,
    )
    refuses(RuntimeError, "must be defined", lambda nn, x: nn.batch_norm(x, None, None), x)
    refuses(RuntimeError, "should contain 3", lambda nn, x, w: nn.batch_norm(x, w[:2], w[:2]), x, w)
    refuses(RuntimeError, "normalized_shape", lambda nn, x: nn.layer_norm(x, (3,)), x)
    refuses(RuntimeError, "same shape as normalized_shape", lambda nn, x, w: nn.layer_norm(x, (4,), w), x, w)
    refuses(RuntimeError, "divisible by num_groups", lambda nn, x: nn.group_norm(x, 2), x)
    refuses(ValueError, "more than 1 spatial", lambda nn, x: nn.instance_norm(x[:, :, :1]), x)
    refuses(NotImplementedError, "LayerNorm", lambda nn, x: nn.layer_norm(x.long(), (4,)), x)


@pytest.mark.parametrize("place", range(1, 5))
@pytest.mark.parametrize("value", [1.0, float("nan"), 3, "x"])
def test_batch_norm_refuses_numbers_as_tensors(place: int, value: object) -> None:
    with flambeau.virtual(devices=1):
        x = flambeau.ones(3, 3, device="cuda")
        args: list[object] = [
            x,
            flambeau.zeros(3, device="cuda"),
            flambeau.ones(3, device="cuda"),
            None,
            None,
        ]
        args[place] = value
        with pytest.raises(TypeError, match="must be Tensor"):
            flambeau.nn.functional.batch_norm(*args)
        assert x.sum().item() == 9
