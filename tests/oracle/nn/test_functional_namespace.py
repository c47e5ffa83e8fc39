"""What the torch namespace has beside torch.nn.functional, under its names or with arguments of its own."""

from __future__ import annotations

from typing import Any

import pytest
from functional import classes, close, draw
from support import from_torch, torch

import flambeau

X, Y, Z = draw(4, 3, 5), draw(4, 3, 5, seed=1), draw(4, 3, 5, seed=2)
W, B = draw(3, low=0.5, seed=3), draw(3, seed=4)
SIGNS = torch.tensor([1.0, -1.0, 1.0, -1.0])
CALLS: dict[str, tuple[Any, ...]] = {
    "batch_norm": (X, W, B, B.clone(), W.clone(), False, 0.1, 1e-5, True),
    "instance_norm": (X, W, B, None, None, True, 0.1, 1e-5, True),
    "group_norm": (X, 3, W, B), "layer_norm": (X, (5,)), "rms_norm": (X, (5,)),
    "embedding": (draw(7, 4), classes(2, 3, count=7)), "adaptive_max_pool1d": (X, 2), "avg_pool1d": (X, 2),
    "adaptive_avg_pool1d": (X, 2), "max_pool2d": (X, 2), "max_pool1d_with_indices": (X, 2),
    "conv1d": (X, draw(2, 3, 2)), "conv_transpose1d": (X, draw(3, 2, 2)), "bilinear": (X, Y, draw(2, 5, 5)),
    "pixel_shuffle": (draw(1, 4, 2, 2), 2), "native_channel_shuffle": (X, 3), "channel_shuffle": (X, 3),
    "softmax": (X, 1), "log_softmax": (X, 1), "selu": (X,), "celu": (X, 2.0), "threshold": (X, 0.1, 3.0),
    "hardshrink": (X, 1.0), "prelu": (X, W), "rrelu": (X,), "cosine_similarity": (X, Y), "pdist": (X[0],),
    "pairwise_distance": (X, Y), "constant_pad_nd": (X, (1, 2), 3.0), "kl_div": (X, Y.abs()),
    "binary_cross_entropy_with_logits": (X, Y.sigmoid(), None, None), "hinge_embedding_loss": (X, Y.sign()),
    "margin_ranking_loss": (X[:, 0, 0], Y[:, 0, 0], SIGNS), "cosine_embedding_loss": (X[:, 0], Y[:, 0], SIGNS),
    "poisson_nll_loss": (X, Y.abs(), True, True, 1e-8, 1), "triplet_margin_loss": (X, Y, Z),
    "ctc_loss": (torch.log_softmax(draw(6, 2, 5), -1), classes(2, 3, count=4) + 1, (6, 5), (3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_functions_of_the_torch_namespace(name: str) -> None:
    args = CALLS[name]
    theirs = getattr(torch, name)(*args)
    ours = getattr(flambeau, name)(*[from_torch(a) if isinstance(a, torch.Tensor) else a for a in args])
    pairs = zip(ours, theirs, strict=True) if isinstance(theirs, tuple) else [(ours, theirs)]
    for a, b in pairs:
        close(a, b, 4, 2e-5 if b.is_floating_point() else 0)


@pytest.mark.parametrize("reduction", (0, 1, 2))
def test_losses_take_a_number_for_the_reduction(reduction: int) -> None:
    losses = (
        "kl_div",
        "hinge_embedding_loss",
        "triplet_margin_loss",
        "binary_cross_entropy_with_logits",
        "ctc_loss",
    )
    for name in losses:
        args = CALLS[name]
        ours = [from_torch(a) if isinstance(a, torch.Tensor) else a for a in args]
        wanted = getattr(torch, name)(*args, reduction=reduction)
        close(getattr(flambeau, name)(*ours, reduction=reduction), wanted, 4, 1e-4)
