"""Dropout of CUDA tensors: one kernel, whose choice follows seed, offset and the grid's rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.core.random import philox
from flambeau.nn.functional import dropout

SIZES = (1, 7, 1024, 300_001, 2_000_003)
THREADS = 132 * 2048  # of an H100


@pytest.fixture(autouse=True)
def h100() -> Iterator[None]:
    with torch.virtual(devices=1, profile="h100"):
        yield


def chosen(seed: int, offset: int, size: int, p: float) -> Any:
    """PyTorch's rule in a loop: element 4 t + j of a turn is word j of thread t's draw."""
    threads = min(THREADS, -(-size // 256) * 256)
    kept = np.empty(0, bool)
    while kept.size < size:
        words = philox(seed, offset // 4, threads).T.reshape(-1)
        numbers = words.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
        kept = np.concatenate([kept, numbers < np.float32(1 - p)])
        offset += 4
    return kept[:size]


@pytest.mark.parametrize("size", SIZES)
def test_the_elements_that_stay(size: int) -> None:
    torch.cuda.manual_seed(5)
    dropout(torch.ones(3, device="cuda"), 0.5)
    x = torch.arange(1.0, size + 1, device="cuda")
    kept = chosen(5, 4, size, 0.25)
    want = np.where(kept, np.arange(1, size + 1, dtype=np.float32) * np.float32(1 / np.float32(0.75)), 0)
    np.testing.assert_array_equal(dropout(x, 0.25).cpu().numpy(), want)
    turns = -(-size // (4 * min(THREADS, -(-size // 256) * 256)))
    after = int.from_bytes(bytes(torch.cuda.get_rng_state().tolist()[8:]), "little")
    assert after == 4 + 4 * turns


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_dtype_drops_the_same(kind: Any) -> None:
    torch.cuda.manual_seed(9)
    y = dropout(torch.ones(1001, dtype=kind, device="cuda"), 0.3)
    assert y.dtype is kind
    np.testing.assert_array_equal((y != 0).cpu().numpy(), chosen(9, 0, 1001, 0.3))


def test_gradients_pass_what_stayed() -> None:
    x = torch.randn(50, 20, device="cuda").t().requires_grad_()
    y = dropout(x, 0.4)
    assert y.stride() == x.stride()
    (first,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    kept = (y.detach() != 0).cpu().numpy()
    np.testing.assert_allclose(first.detach().cpu().numpy(), kept / 0.6, rtol=1e-6)
    np.testing.assert_allclose(y.detach().cpu().numpy(), x.detach().cpu().numpy() * kept / 0.6, rtol=1e-6)


def test_gaps_in_memory_and_infinities() -> None:
    x = torch.full((40, 10), float("inf"), device="cuda")[::2, ::3]
    y = dropout(x, 0.5)
    assert y.shape == x.shape
    assert bool((y.isinf() | y.isnan()).all())  # infinity times zero is no number, as in PyTorch
