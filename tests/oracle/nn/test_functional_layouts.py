"""torch.nn.functional over tensors of every layout: 0-dim, empty, transposed, stepped, expanded; errors of the same types."""

from __future__ import annotations

from typing import Any

import pytest
from functional import close
from hypothesis import given
from hypothesis import strategies as st
from layouts import of_torch, outcome, twins
from support import torch

import flambeau

CALLS = {
    "relu": lambda nn, x: nn.relu(x), "gelu": lambda nn, x: nn.gelu(x), "gelu tanh": lambda nn, x: nn.gelu(x, approximate="tanh"),
    "silu": lambda nn, x: nn.silu(x), "elu": lambda nn, x: nn.elu(x, 0.7), "leaky_relu": lambda nn, x: nn.leaky_relu(x, 0.2),
    "softplus": lambda nn, x: nn.softplus(x), "hardtanh": lambda nn, x: nn.hardtanh(x), "mish": lambda nn, x: nn.mish(x),
    "logsigmoid": lambda nn, x: nn.logsigmoid(x), "glu": lambda nn, x: nn.glu(x, -1), "threshold": lambda nn, x: nn.threshold(x, 0.5, 2),
    "softmax": lambda nn, x: nn.softmax(x, -1), "softmax of the first": lambda nn, x: nn.softmax(x, 0), "softmin": lambda nn, x: nn.softmin(x, 0),
    "log_softmax": lambda nn, x: nn.log_softmax(x, 0), "normalize": lambda nn, x: nn.normalize(x, dim=-1),
    "layer_norm": lambda nn, x: nn.layer_norm(x, x.shape[-1:]), "rms_norm": lambda nn, x: nn.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda nn, x: nn.group_norm(x, 1), "instance_norm": lambda nn, x: nn.instance_norm(x),
    "batch_norm": lambda nn, x: nn.batch_norm(x, None, None, training=True),
    "mse_loss": lambda nn, x: nn.mse_loss(x, x + 1), "l1_loss": lambda nn, x: nn.l1_loss(x, x * 2, reduction="sum"),
    "smooth_l1_loss": lambda nn, x: nn.smooth_l1_loss(x, x + 0.5, reduction="none"), "huber_loss": lambda nn, x: nn.huber_loss(x, x * 3),
    "bce with logits": lambda nn, x: nn.binary_cross_entropy_with_logits(x, x.sigmoid()),
    "kl_div": lambda nn, x: nn.kl_div(x, x.sigmoid(), reduction="sum"), "soft_margin": lambda nn, x: nn.soft_margin_loss(x, x.sign()),
    "cosine_similarity": lambda nn, x: nn.cosine_similarity(x, x + 1, dim=-1), "dropout": lambda nn, x: nn.dropout(x, 0.5, training=False),
    "pairwise_distance": lambda nn, x: nn.pairwise_distance(x, x * 2), "linear": lambda nn, x: nn.linear(x, x),
    "pad": lambda nn, x: nn.pad(x, (1, 2)), "pad reflect": lambda nn, x: nn.pad(x, (1, 1), mode="reflect"),
    "pad replicate": lambda nn, x: nn.pad(x, (1, 1), mode="replicate"), "pad circular": lambda nn, x: nn.pad(x, (1, 1), mode="circular"),
    "avg_pool1d": lambda nn, x: nn.avg_pool1d(x, 2), "max_pool1d": lambda nn, x: nn.max_pool1d(x, 2),
    "avg_pool2d": lambda nn, x: nn.avg_pool2d(x, 2), "max_pool2d": lambda nn, x: nn.max_pool2d(x, 2),
    "adaptive_avg_pool1d": lambda nn, x: nn.adaptive_avg_pool1d(x, 2), "interpolate": lambda nn, x: nn.interpolate(x, scale_factor=2),
    "bilinear": lambda nn, x: nn.interpolate(x, size=(3, 3), mode="bilinear"), "conv1d": lambda nn, x: nn.conv1d(x, x),
    "conv2d": lambda nn, x: nn.conv2d(x, x), "pixel_shuffle": lambda nn, x: nn.pixel_shuffle(x, 2), "lp_pool1d": lambda nn, x: nn.lp_pool1d(x, 2, 2),
    "attention": lambda nn, x: nn.scaled_dot_product_attention(x, x, x), "unfold": lambda nn, x: nn.unfold(x, 2),
    "local_response_norm": lambda nn, x: nn.local_response_norm(x, 2), "hardshrink": lambda nn, x: nn.hardshrink(x),
}  # fmt: skip


# fewest dimensions, and elements at all, under which PyTorch itself is of several minds
WINDOWS = {
    "conv1d": 2,
    "conv2d": 3,
    "avg_pool2d": 3,
    "adaptive_avg_pool1d": 2,
    "unfold": 3,
    "batch_norm": 2,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
@given(data=st.data())
def test_every_layout(name: str, data: Any) -> None:
    _, x = data.draw(twins(kind="float32"))
    x = (x * 0.37).sin() if data.draw(st.booleans()) else x
    if name in WINDOWS and (x.ndim < WINDOWS[name] or not x.numel()):
        return
    mine = of_torch(x)
    wanted = outcome(lambda: CALLS[name](torch.nn.functional, x))
    found = outcome(lambda: CALLS[name](flambeau.nn.functional, mine))
    if isinstance(wanted, Exception):
        assert type(found) is type(wanted), f"{found!r} where PyTorch raises {wanted!r}: {tuple(x.shape)}"
        return
    if isinstance(found, Exception):
        raise AssertionError(f"PyTorch gives {wanted!r} of {tuple(x.shape)}") from found
    # Normalizations multiply by up to 1 / sqrt(eps) = 316 before they subtract.
    close(found, wanted, 8, 2e-4 if name.endswith("_norm") else 2e-5)
