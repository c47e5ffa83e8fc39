"""flex_attention beside PyTorch's eager result, and its gradients beside attention that is written out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch as oracle
import torch.nn.attention.flex_attention as oracle_flex

import flambeau as torch
import flambeau.nn.attention.flex_attention as flex


@pytest.fixture(scope="module", autouse=True)
def _unpatched_oracle() -> Iterator[None]:
    """Keep PyTorch's compiler from changing PyTorch in this process: validation of distributions, tracing, optimizers."""
    with patch("torch._dynamo.eval_frame.TorchPatcher.patch", lambda: None):
        yield


MASKS = {
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i - j).abs() < 3,
    "nothing for some": lambda b, h, i, j: (i > 4) & (j < 3),
    "by head": lambda b, h, i, j: h + i >= j,
}
SCORES = ("bias", "distance", "cap", "reduction")


def inputs(library: Any, shared: bool) -> list[Any]:
    draw, heads = np.random.default_rng(5), 2 if shared else 4
    shapes = ((2, 4, 9, 8), (2, heads, 11, 8), (2, heads, 11, 5))
    return [library.from_numpy(draw.standard_normal(shape)) for shape in shapes]


def score_mod(library: Any, name: str) -> Any:
    bias = library.from_numpy(np.random.default_rng(6).standard_normal((4, 9, 11)))
    return {
        "bias": lambda s, b, h, i, j: s + bias[h, i, j],
        "distance": lambda s, b, h, i, j: s + (i - j),
        "cap": lambda s, b, h, i, j: 3 * library.tanh(s / 3),
        "reduction": lambda s, b, h, i, j: s * bias[h].sum(),
    }.get(name)


def attend(library: Any, module: Any, case: str, values: list[Any], **options: Any) -> Any:
    mask = MASKS.get(case)
    if mask is not None:
        options["block_mask"] = module.create_block_mask(mask, None, 4, 9, 11, device="cpu", BLOCK_SIZE=4)
    return module.flex_attention(
        *values, score_mod=score_mod(library, case), enable_gqa=values[1].shape[1] != 4, **options
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("case", ["plain", *SCORES, *MASKS])
def test_results_are_pytorchs(case: str, shared: bool) -> None:
    theirs = attend(oracle, oracle_flex, case, inputs(oracle, shared))
    ours = attend(torch, flex, case, inputs(torch, shared))
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", ["plain", "bias", "cap", "causal", "by head"])
def test_gradients_are_those_of_attention_written_out(case: str) -> None:
    results = []
    for library, module in ((oracle, None), (torch, flex)):
        q, k, v = (x.requires_grad_() for x in inputs(library, shared=False))
        if module is not None:
            out, lse = attend(library, module, case, [q, k, v], return_lse=True)
        else:
            scores = q @ k.transpose(-2, -1) / 8**0.5
            places = [
                library.arange(n).view([-1 if d == a else 1 for d in range(4)])
                for a, n in enumerate(scores.shape)
            ]
            mod, mask = score_mod(library, case), MASKS.get(case)
            scores = scores if mod is None else mod(scores, *places)
            scores = scores if mask is None else scores.masked_fill(~mask(*places), -library.inf)
            out, lse = scores.softmax(-1) @ v, scores.logsumexp(-1)
        grads = library.autograd.grad((out * out).sum() + lse.sin().sum(), [q, k, v])
        results.append([x.detach().numpy() for x in (out, lse, *grads)])
    for theirs, ours in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("case", list(MASKS))
def test_block_masks_are_pytorchs(case: str) -> None:
    found = []
    for module in (oracle_flex, flex):
        mask = module.create_block_mask(MASKS[case], 2, 4, 9, 11, device="cpu", BLOCK_SIZE=(4, 3))
        tensors = (
            mask.kv_num_blocks,
            mask.kv_indices,
            mask.full_kv_num_blocks,
            mask.full_kv_indices,
            mask.to_dense(),
        )
        found.append(
            [*[t.tolist() for t in tensors], round(mask.sparsity(), 9), tuple(mask.shape), mask.numel()]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "shapes", [((2, 4, 5, 8), (2, 2, 5, 8)), ((4, 5, 8), (4, 5, 8)), ((2, 3, 5, 8), (1, 3, 5, 8))]
)
def test_wrong_shapes_raise_pytorchs_errors(shapes: Any) -> None:
    with pytest.raises((ValueError, NotImplementedError)) as theirs:
        q, k = (oracle.ones(shape) for shape in shapes)
        oracle_flex.flex_attention(q, k, k)
    with pytest.raises(theirs.type):
        q, k = (torch.ones(shape) for shape in shapes)
        flex.flex_attention(q, k, k)
