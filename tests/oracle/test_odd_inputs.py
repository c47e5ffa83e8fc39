"""Calls with odd inputs, each of which a search of random calls once found to differ: the result or the refusal."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from support import same, torch

import flambeau

CALLS = {
    "abs_ of complex": lambda m: m.ones(2, dtype=m.complex64).abs_(),
    "absolute_ of complex": lambda m: m.ones(2, dtype=m.complex64).absolute_(),
    "clamp_max without": lambda m: m.clamp_max(m.ones(2)),
    "clamp_min_ without": lambda m: m.ones(2).clamp_min_(),
    "conj_physical_ of expanded": lambda m: m.ones(1).expand(3).conj_physical_(),
    "nan_to_num_ of expanded": lambda m: m.tensor([2]).expand(3).nan_to_num_(),
    "flip without": lambda m: m.ones(2).flip(),
    "tile without": lambda m: m.tile(m.ones(2)),
    "sum_to_size without": lambda m: m.ones(2).sum_to_size(),
    "sum_to_size by name": lambda m: m.ones(2, 3).sum_to_size(size=(1, 3)),
    "resize_ by name": lambda m: m.ones(4).resize_(size=(2, 2)),
    "squeeze of several": lambda m: m.ones(1, 2, 1).squeeze(0, 2),
    "squeeze of none": lambda m: m.ones(1, 2, 1).squeeze(),
    "squeeze by name": lambda m: m.ones(1, 2, 1).squeeze(dim=(0, 2)),
    "squeeze by NumPy's name": lambda m: m.ones(1, 2, 1).squeeze(axis=0),
    "squeeze_ of several": lambda m: m.ones(1, 2, 1).squeeze_(0, 2),
    "count_nonzero of several": lambda m: m.ones(3, 2, 1).count_nonzero(0, 2),
    "count_nonzero by name": lambda m: m.ones(3, 2, 1).count_nonzero(dim=(0, 1)),
    "broadcast_to numbers": lambda m: m.ones(2).broadcast_to(3, 2),
    "broadcast_to by name": lambda m: m.ones(2).broadcast_to(size=(3, 2)),
    "hsplit at several": lambda m: m.ones(2, 4).hsplit(1, 3),
    "vsplit at several": lambda m: m.ones(4, 2).vsplit(1, 3),
    "dsplit in two": lambda m: m.ones(1, 2, 4).dsplit(2),
    "cumsum_ of booleans": lambda m: m.tensor([True]).cumsum_(0),
    "float_power_ of floats": lambda m: m.ones(2).float_power_(2),
    "float_power_ of doubles": lambda m: m.ones(2, dtype=m.float64).float_power_(2),
    "float_power_ of complex": lambda m: m.ones(2, dtype=m.float64).float_power_(m.ones(2, dtype=m.complex64)),
    "threshold into": lambda m: m.threshold(m.tensor([1.0, 3.0]), 2, 7, out=m.empty(0)),
    "hardshrink into": lambda m: m.hardshrink(m.tensor([0.2, 3.0]), out=m.empty(2)),
    "slice_scatter into": lambda m: m.slice_scatter(m.zeros(3), m.ones(1), 0, 1, 2, out=m.empty(0)),
    "max into doubles": lambda m: m.max(m.tensor([1.0, 3.0]), out=m.empty((), dtype=m.float64)),
    "std into halves": lambda m: m.std(m.tensor([1.0, 3.0]), 0, out=m.empty((), dtype=m.float16)),
    "var into integers": lambda m: m.var(m.tensor([1.0, 3.0]), 0, out=m.empty((), dtype=m.int64)),
    "logsumexp into complex": lambda m: m.logsumexp(m.ones(2), 0, out=m.empty((), dtype=m.complex64)),
    "argmax into a list": lambda m: m.argmax(m.ones(2), out=[m.empty((), dtype=m.int64)]),
    "logit with a tensor": lambda m: m.logit(m.full((2,), 0.9), m.ones(2)),
    "logit with a number in a tensor": lambda m: m.logit(m.full((2,), 0.9), m.tensor(0.25)),
    "nan_to_num with a tensor": lambda m: m.nan_to_num(m.full((2,), float("nan")), m.ones(2)),
    "searchsorted of numbers": lambda m: m.searchsorted(m.ones(()), m.ones(())),
    "searchsorted of a number": lambda m: m.searchsorted(m.ones(()), m.ones(3)),
    "searchsorted in rows": lambda m: m.searchsorted(m.ones(2, 3), 1.0),
    "assigning too many": lambda m: m.ones(3).__setitem__(slice(0, 2), m.ones(3)),
    "assigning too many dimensions": lambda m: m.ones(3, 3).__setitem__(0, m.ones(2, 3)),
    "expand to fewer": lambda m: m.ones(2, 3, dtype=m.float64).expand(3),
    "a mask of bytes": lambda m: m.ones(2).masked_fill(m.ones(2, dtype=m.uint8), 0),
    "bernoulli of more than 1": lambda m: m.bernoulli(m.tensor([2.0])),
    "bernoulli_ of nan": lambda m: m.ones(1).bernoulli_(m.tensor([float("nan")])),
    "gradient of bytes": lambda m: m.gradient(m.tensor([1, 2], dtype=m.uint8)),
    "lgamma": lambda m: m.lgamma(m.tensor([float("-inf"), float("inf"), float("nan"), -1.0, 0.0, 0.5, 1e30])),
    "lgamma of halves": lambda m: m.lgamma(m.tensor([float("-inf"), 2.5], dtype=m.float16)),
    "quantile of less than 0": lambda m: m.quantile(m.ones(3), m.tensor(-1.0)),
    "quantile of nan": lambda m: m.quantile(m.ones(3), m.tensor([0.5, float("nan")])),
    "isin of booleans": lambda m: m.isin(m.tensor([1]), m.tensor([True])),
    "mvlgamma of booleans": lambda m: m.mvlgamma(m.tensor([True]), 1),
    "nanmean of complex": lambda m: m.nanmean(m.ones(2, dtype=m.complex64)),
    "kl_div of integers": lambda m: m.nn.functional.kl_div(m.tensor([1]), m.tensor([1.0])),
    "lu_unpack of a number": lambda m: m.lu_unpack(m.ones(()), m.ones((), dtype=m.int32)),
    "cholesky of bytes": lambda m: m.cholesky(m.ones(2, 2, dtype=m.uint8)),
    "cholesky of nothing": lambda m: m.cholesky(m.empty(2, 0)),
    "cholesky_inverse of zeros": lambda m: m.cholesky_inverse(m.zeros(2, 2)),
    "cholesky_inverse of a batch": lambda m: m.cholesky_inverse(m.eye(2) * m.tensor([1.0, 0.0])[:, None, None]),
    "matrix_norm of nothing": lambda m: m.linalg.matrix_norm(m.empty(2, 0, 3), 2),
    "matrix_norm of no columns": lambda m: m.linalg.matrix_norm(m.empty(3, 0), 1),
    "matrix_power into": lambda m: m.linalg.matrix_power(m.eye(2), 3, out=m.empty(0, dtype=m.float64)),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    outcomes: list[Any] = []
    for room in (torch, flambeau):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                outcomes.append(CALLS[name](room))
            except Exception as error:
                outcomes.append(error)
    want, found = outcomes
    if isinstance(want, Exception):
        assert type(found).__name__.lstrip("_") == type(want).__name__.lstrip("_"), (found, want)
        assert "received an invalid" in str(want) or str(found) == str(want)
    else:
        same(found, want, 4)


def test_a_real_tensor_is_its_own_conjugate() -> None:
    for room in (torch, flambeau):
        x = room.ones(2)
        assert room.conj_physical(x).data_ptr() == x.data_ptr() == x.conj().data_ptr()
