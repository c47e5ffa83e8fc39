"""torch.nn.attention.bias against PyTorch's on the CPU."""

from __future__ import annotations

import random
import warnings
from importlib import import_module

import pytest
from support import from_torch, to_torch, torch

import flambeau

KINDS = ("causal_upper_left", "causal_lower_right")


def bias(package, kind, *size):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of rows without keys
        return getattr(import_module(f"{package}.nn.attention.bias"), kind)(*size)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", KINDS)
def test_attention_with_a_causal_bias_is_pytorchs(kind, seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    queries, keys, heads = rng.randint(1, 9), rng.randint(1, 9), rng.choice((1, 2))
    scale = rng.choice((None, 0.3))
    drawn = [
        torch.randn(
            2, 2 if n == queries and at == 0 else heads, n, 4, generator=generator, dtype=torch.float64
        )
        for at, n in enumerate((queries, keys, keys))
    ]
    results = []
    for package, inputs in (
        (torch, [t.clone() for t in drawn]),
        (flambeau, [from_torch(t) for t in drawn]),
    ):
        inputs = [t.requires_grad_() for t in inputs]
        mask = bias(package.__name__, kind, queries, keys)
        out = package.nn.functional.scaled_dot_product_attention(*inputs, mask, scale=scale, enable_gqa=True)
        out.nan_to_num().sum().backward()
        results.append([out.detach(), *[t.grad for t in inputs]])
    for theirs, ours in zip(*results, strict=True):
        torch.testing.assert_close(to_torch(ours), theirs, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
def test_biases_show_the_mask_of_pytorch(kind):
    for size in ((3, 4), (4, 3), (2, 2)):
        ours, theirs = bias("flambeau", kind, *size), bias("torch", kind, *size)
        assert repr(ours) == repr(theirs)
        assert (int(ours.variant), ours.seq_len_q, ours.seq_len_kv) == (int(theirs.variant), *size)


def test_biases_refuse_what_pytorch_refuses():
    for package in (torch, flambeau):
        q = package.ones(1, 2, 3)
        with pytest.raises(ValueError, match="should not be used with causal=True"):
            mask = bias(package.__name__, "causal_upper_left", 2, 2)
            package.nn.functional.scaled_dot_product_attention(q, q, q, mask, is_causal=True)
        with pytest.raises(AssertionError, match="only supports 2D"):
            bias(package.__name__, "causal_lower_right", 2)
        with pytest.raises(AssertionError, match="variant must be a CausalVariant, got int"):
            import_module(f"{package.__name__}.nn.attention.bias").CausalBias(1, 2, 2)
        with pytest.warns(UserWarning, match="will produce NaNs"):
            import_module(f"{package.__name__}.nn.attention.bias").causal_lower_right(3, 2)
