"""Integers of more than 63 bits as numbers, sizes, indices and values: accepted or refused as by PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

pytest.importorskip("torch", reason="oracle PyTorch is not installed")
from support import same, torch

import flambeau

NUMBERS = (1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63) - 1, 1 << 70, -(1 << 70))
CALLS = """
x.fill_(n)
x.long().fill_(n)
t.zeros(2, dtype=t.bool).fill_(n)
t.zeros(2, dtype=t.complex64).fill_(n)
t.zeros(2, dtype=t.uint64).fill_(n)
t.full((2,), n)
t.full((2,), n, dtype=t.float32)
t.full_like(x, n)
x.new_full((2,), n)
t.scalar_tensor(n)
t.tensor([1.0, n])
x.masked_fill(x > 1, n)
x.index_fill(0, i, n)
x.scatter(0, t.zeros(2, 3, dtype=t.int64), n)
x + n
x == n
n / x
x.clamp(0, n)
x.add(1, alpha=n)
t.where(x > 1, x, n)
t.isin(x, n)
t.bucketize(n, x.flatten())
t.searchsorted(x.flatten(), n)
t.linspace(0, n, 3)
t.logspace(n, 0, 3)
t.arange(n, 0)
t.arange(0, 3, n)
t.histc(x, 4, n, 0)
t.norm(x, n)
x.norm(n)
t.renorm(x, n, 0, 1)
t.dist(x, x, n)
t.linalg.norm(x, n)
t.linalg.vector_norm(x, n)
t.linalg.matrix_norm(x, n)
t.linalg.cond(t.eye(2), n)
F.normalize(x, n)
F.pairwise_distance(x, x, n)
F.threshold(x, n, 0.0)
F.hardtanh(x, 0, n)
F.cosine_similarity(x, x, eps=n)
F.pad(x, (1, 1), value=n)
t.constant_pad_nd(x, (1, 1), n)
t.ones(n)
t.empty(2, n)
t.randn(n)
x.new_zeros(n)
x.expand(n, 3)
x.triu(n)
x.triu_(n)
x[n]
x[0, n]
x[:n]
x[n:]
x[..., :n]
x.__setitem__(0, n)
x.__setitem__(i, n)
x.__setitem__(x > 1, n)
x.__setitem__(n, 0)
(x > 1).__setitem__(0, n)
""".strip().splitlines()


def outcome(module: Any, call: str, number: int) -> Any:
    names = {
        "t": module,
        "F": module.nn.functional,
        "x": module.arange(6.0).reshape(2, 3),
        "i": module.tensor([0, 1]),
    }
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of some bounds of slices
            return eval(call, names | {"n": number})
    except Exception as error:
        return error


@pytest.mark.parametrize("call", CALLS)
def test_wide_integers_are_as_in_pytorch(call: str) -> None:
    for number in NUMBERS:
        theirs, ours = (outcome(module, call, number) for module in (torch, flambeau))
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            assert type(ours).__name__ == type(theirs).__name__, (number, theirs, ours)
        elif theirs is not None:
            same(ours, theirs, strides=False)
