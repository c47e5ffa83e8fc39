"""Losses against PyTorch."""

from __future__ import annotations

import math
from typing import Any

import pytest
from functional import HALF_AND_UP, both, classes, draw, refuses
from support import torch

import flambeau

REDUCTIONS = ("none", "mean", "sum")


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", HALF_AND_UP)
def test_losses_of_differences(kind: str, reduction: str) -> None:
    x, y = draw(4, 5, kind=kind), draw(4, 5, kind=kind, seed=1)
    for name, more in (
        ("mse_loss", {}), ("l1_loss", {}), ("smooth_l1_loss", {}), ("smooth_l1_loss", {"beta": 0.3}),
        ("smooth_l1_loss", {"beta": 0.0}), ("huber_loss", {}), ("huber_loss", {"delta": 0.4}),
    ):  # fmt: skip
        for target in (y, y[:1], y.t()[:0].t()[:, :0], draw(3)):
            both(
                lambda nn, a, b, n=name, m=more: getattr(nn, n)(a, b, reduction=reduction, **m),
                x,
                target,
                ulps=4,
            )
    both(
        lambda nn, a, b, w: nn.mse_loss(a, b, reduction=reduction, weight=w),
        x,
        y,
        draw(4, 5, kind=kind, low=0.1),
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", ((), (6,), (4, 3), (2, 3, 2)))
def test_nll_and_cross_entropy_of_classes(shape: tuple[int, ...], reduction: str) -> None:
    size = (*shape[:1], 5, *shape[1:])
    target = classes(*shape, count=5)
    for kind in ("float32", "float64", "bfloat16"):
        x, weight = draw(*size, kind=kind), draw(5, kind=kind, low=0.5)
        for w in (None, weight):
            both(lambda nn, a, b, w: nn.nll_loss(a, b, w, reduction=reduction), x, target, w, ulps=6)
            for more in (
                {},
                {"ignore_index": 2},
                {"label_smoothing": 0.2},
                {"label_smoothing": 0.1, "ignore_index": 1},
            ):
                both(
                    lambda nn, a, b, w, m=more: nn.cross_entropy(a, b, w, reduction=reduction, **m),
                    x, target, w, ulps=16 if kind != "bfloat16" else 4,
                )  # fmt: skip


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_of_probabilities(reduction: str) -> None:
    for size in ((5,), (4, 5), (2, 5, 3)):
        x = draw(*size)
        target = torch.softmax(draw(*size, seed=2), 0 if len(size) == 1 else 1)
        for w in (None, draw(5, low=0.5)):
            for smoothing in (0.0, 0.3):
                both(
                    lambda nn, a, b, w, s=smoothing: nn.cross_entropy(a, b, w, reduction=reduction, label_smoothing=s),
                    x, target, w, ulps=12,
                )  # fmt: skip


def test_all_ignored_is_nan() -> None:
    both(lambda nn, a, b: nn.cross_entropy(a, b), draw(3, 4), torch.full((3,), -100))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_probabilities(reduction: str) -> None:
    p, y, x = draw(4, 5, low=0, high=1), draw(4, 5, low=0, high=1, seed=1), draw(4, 5, seed=2)
    weight = draw(5, low=0.5, seed=4)
    edge = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.5]])
    for w in (None, weight):
        both(lambda nn, a, b, w: nn.binary_cross_entropy(a, b, w, reduction=reduction), p, y, w, ulps=16)
        both(
            lambda nn, a, b, w: nn.binary_cross_entropy_with_logits(a, b, w, reduction=reduction),
            x,
            y,
            w,
            ulps=16,
        )
    both(lambda nn, a, b: nn.binary_cross_entropy(a, b, reduction=reduction), edge, edge.flip(1))
    both(
        lambda nn, a, b, w: nn.binary_cross_entropy_with_logits(a, b, reduction=reduction, pos_weight=w),
        x, y, weight, ulps=16,
    )  # fmt: skip
    for log_target in (False, True):
        both(
            lambda nn, a, b, g=log_target: nn.kl_div(a, b, reduction=reduction, log_target=g),
            x, y, atol=1e-5,
        )  # fmt: skip
    for log_input in (False, True):
        for full in (False, True):
            both(
                lambda nn, a, b, i=log_input, f=full: nn.poisson_nll_loss(a, b, i, f, reduction=reduction),
                p, y * 4, atol=2e-5,
            )  # fmt: skip
    for var in (p + 0.1, p[:, :1] + 0.1, p[:, 0] + 0.1, 0.5, p[:2]):
        for full in (False, True):
            both(
                lambda nn, a, b, v, f=full: nn.gaussian_nll_loss(a, b, v, f, reduction=reduction),
                x,
                y,
                var,
                atol=3e-5,
            )
    both(lambda nn, a, b: nn.kl_div(a, b, reduction="batchmean"), x, y, atol=1e-5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margins(reduction: str) -> None:
    x, other, far = draw(4, 5), draw(4, 5, seed=1), draw(4, 5, seed=2)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
    kw: dict[str, Any] = {"reduction": reduction}
    both(lambda nn, a, b, t: nn.cosine_embedding_loss(a, b, t, margin=0.1, **kw), x, other, signs, atol=1e-6)
    both(lambda nn, a, b, t: nn.cosine_embedding_loss(a, b, t, **kw), x[0], other[0], signs[0], atol=1e-6)
    both(lambda nn, a, b, t: nn.margin_ranking_loss(a, b, t, margin=0.3, **kw), x[:, 0], other[:, 0], signs)
    both(lambda nn, a, b, t: nn.margin_ranking_loss(a, b, t, **kw), x, other, signs)
    both(lambda nn, a, t: nn.hinge_embedding_loss(a, t, 0.7, **kw), x, signs[:, None].expand(4, 5), atol=1e-6)
    both(lambda nn, a, t: nn.soft_margin_loss(a, t, **kw), x, signs[:, None].expand(4, 5), atol=1e-5)
    for p in (1.0, 2.0):
        for swap in (False, True):
            both(
                lambda nn, a, b, c, p=p, s=swap: nn.triplet_margin_loss(a, b, c, p=p, swap=s, **kw),
                x, other, far, atol=2e-5,
            )  # fmt: skip
    both(lambda nn, a, b, c: nn.triplet_margin_with_distance_loss(a, b, c, **kw), x, other, far, atol=1e-5)
    both(lambda nn, a, b, c: nn.triplet_margin_loss(a, b, c, margin=0.0), x, other, far)
    target = classes(4, count=5)
    for w in (None, draw(5, low=0.2, seed=8)):
        for p in (1, 2, 3):
            both(lambda nn, a, t, w, p=p: nn.multi_margin_loss(a, t, p, 0.8, w, **kw), x, target, w, ulps=8)
    both(lambda nn, a, t: nn.multi_margin_loss(a, t, **kw), x[0], target[0], ulps=8)
    labels = torch.tensor([[3, 0, -1, 1, 1], [-1, 0, 0, 0, 0], [0, 1, 2, 3, 4], [2, -1, 4, 4, 4]])
    both(lambda nn, a, t: nn.multilabel_margin_loss(a, t, **kw), x, labels, ulps=8)
    both(lambda nn, a, t: nn.multilabel_margin_loss(a, t, **kw), x[0], labels[0], ulps=8)
    for w in (None, draw(5, low=0.2)):
        both(
            lambda nn, a, t, w: nn.multilabel_soft_margin_loss(a, t, w, **kw),
            x,
            (labels > 0).float(),
            w,
            atol=1e-5,
        )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kind", ("float32", "float64"))
def test_ctc(kind: str, reduction: str) -> None:
    scores = torch.log_softmax(draw(12, 4, 6, kind=kind), -1)
    targets = classes(4, 5, count=5, seed=3) + 1
    targets[1, :3] = 2  # repeated labels need blanks between
    lengths = (((12,) * 4, (5,) * 4), ((12, 9, 3, 5), (5, 3, 0, 4)), ((4, 4, 2, 1), (5, 4, 2, 1)))
    for given, wanted in lengths:
        for zero in (False, True):

            def run(nn: Any, p: Any, t: Any, a: Any = given, b: Any = wanted, zero: bool = zero) -> Any:
                return nn.ctc_loss(p, t, a, b, reduction=reduction, zero_infinity=zero)

            near = 2e-5 if kind == "float32" else 1e-12
            both(run, scores, targets, atol=near)
            flat = torch.cat([row[:n] for row, n in zip(targets, wanted, strict=True)])
            both(run, scores, flat, atol=near)
    both(
        lambda nn, p, t, a, b: nn.ctc_loss(p, t, a, b, blank=5, reduction=reduction),
        scores, targets - 1, torch.tensor([12, 9, 8, 7]), torch.tensor([5, 4, 3, 2]), atol=2e-5,
    )  # fmt: skip
    both(
        lambda nn, p, t: nn.ctc_loss(p, t, (12,), (5,), reduction=reduction),
        scores[:, 0],
        targets[0],
        atol=2e-5,
    )
    both(lambda nn, p, t: nn.ctc_loss(p, t, (13,) * 4, (5,) * 4), scores, targets)
    both(lambda nn, p, t: nn.ctc_loss(p, t, (12,) * 3, (5,) * 4), scores, targets)
    both(lambda nn, p, t: nn.ctc_loss(p, t, (12,) * 4, (5,) * 4, blank=6), scores, targets)


def test_distances() -> None:
    x, y = draw(4, 5), draw(4, 5, seed=1)
    for p in (1.0, 2.0, 3.0, float("inf")):
        both(lambda nn, a, b, p=p: nn.pairwise_distance(a, b, p), x, y, ulps=8)
        both(lambda nn, a, b, p=p: nn.pairwise_distance(a, b, p, keepdim=True), x, y[:1], ulps=8)
        for rows in (x, x[:1], x[:0], x[[0, 1, 0]], draw(70, 40)):
            both(lambda nn, a, p=p: nn.pdist(a, p), rows, ulps=8)
        both(lambda nn, a, p=p: nn.normalize(a, p, dim=0), x, ulps=8)
    for dim in (0, 1, -1, 2):
        both(lambda nn, a, b, dim=dim: nn.cosine_similarity(a, b, dim), x, y, atol=1e-6)
    both(lambda nn, a, b: nn.cosine_similarity(a, b, -1), x, y[:1], atol=1e-6)


def test_refusals() -> None:
    x, y = draw(3, 4), torch.tensor([0, 9, 1])
    refuses(IndexError, "Target 9 is out of bounds", lambda nn, a, b: nn.cross_entropy(a, b), x, y)
    refuses(
        ValueError, "is not a valid value for reduction", lambda nn, a: nn.mse_loss(a, a, reduction="max"), x
    )
    refuses(ValueError, r"Expected input batch_size \(3\)", lambda nn, a, b: nn.nll_loss(a, b), x, y[:2])
    refuses(RuntimeError, "between 0 and 1", lambda nn, a: nn.binary_cross_entropy(a, a), x)
    refuses(ValueError, "Target size", lambda nn, a: nn.binary_cross_entropy_with_logits(a, a[:1]), x)
    refuses(
        RuntimeError,
        "label_smoothing must be",
        lambda nn, a, b: nn.cross_entropy(a, b, label_smoothing=2.0),
        x,
        y,
    )
    both(lambda nn, a, b: nn.cross_entropy(a, b), x, y.int() % 3)
    both(lambda nn, a, b, w: nn.nll_loss(a, b, w), x, y % 3, draw(3))


INPUTS = {"0d": (), "1d": (4,), "2d": (3, 4), "3d": (3, 4, 2), "4d": (2, 4, 3, 3), "5d": (2, 4, 2, 2, 2)}
TARGETS = [(), (1,), (2,), (3,), (3, 4), (3, 2), (3, 1, 1), (2, 3, 3), (2, 3, 2), (2, 2, 2, 2)]


def said(call: Any) -> str:
    try:
        call()
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}".split("\n")[0]
    return ""


@pytest.mark.parametrize("loss", ("nll_loss", "cross_entropy"))
@pytest.mark.parametrize("shape", INPUTS.values(), ids=INPUTS)
def test_targets_that_do_not_fit_are_refused_in_pytorchs_words(shape: Any, loss: str) -> None:
    """People search for these."""
    refused = 0
    for target in TARGETS:
        for kind in ("int64", "int32", "float32", "bool"):
            if loss == "cross_entropy" and (target == shape or not shape):
                continue  # probabilities
            ours, theirs = (
                said(
                    lambda lib=lib, target=target, kind=kind: getattr(lib.nn.functional, loss)(
                        lib.zeros(shape), lib.zeros(target, dtype=getattr(lib, kind))
                    )
                )
                for lib in (flambeau, torch)
            )
            assert ours == theirs, (target, kind)
            refused += bool(theirs)
    assert refused > 20 or not shape


def test_weights_that_do_not_fit_are_refused_in_pytorchs_words() -> None:
    ours, theirs = (
        said(lambda lib=lib: lib.nn.functional.nll_loss(lib.zeros(3, 4), lib.zeros(3).long(), lib.ones(3)))
        for lib in (flambeau, torch)
    )
    assert ours == theirs != ""


def test_a_target_out_of_range_is_a_late_error_on_a_device() -> None:
    nn = flambeau.nn.functional
    with flambeau.virtual(devices=1):
        x = flambeau.zeros(2, 3, device="cuda")
        loss = nn.nll_loss(x, flambeau.tensor([0, 7], device="cuda"))
        with pytest.raises(RuntimeError):
            loss.item()


@pytest.mark.parametrize("name", ["l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss"])
def test_gradients_of_nan_and_where_pieces_meet(name: str) -> None:
    found = []
    for lib in (flambeau, torch):
        x = lib.tensor([-2.0, -1.0, 0.0, 1.0, math.nan, math.inf], dtype=lib.float64, requires_grad=True)
        y = lib.tensor([0.0, 0.0, 0.0, 0.0, 1.0, math.inf], dtype=lib.float64)
        getattr(lib.nn.functional, name)(x, y, reduction="sum").backward()
        found.append(x.grad.tolist())
    assert found[0] == pytest.approx(found[1], nan_ok=True)
