"""Sorting, searching and unique values against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, torch
from test_reductions import agree, tensors

import flambeau

KINDS = ("bool", "uint8", "int64", "float16", "bfloat16", "float32", "float64")


@given(tensors(KINDS), st.integers(-3, 2), st.booleans())
def test_sort(x: Any, dim: int, descending: bool) -> None:
    agree(lambda room, t: room.sort(t, dim=dim, descending=descending, stable=True), x)
    agree(lambda room, t: room.argsort(t, dim=dim, descending=descending, stable=True), x)


@given(tensors(KINDS), st.integers(0, 4), st.integers(-2, 1), st.booleans())
def test_topk_and_kthvalue(x: Any, k: int, dim: int, largest: bool) -> None:
    if x.ndim == 0:
        k = max(k, 1)  # PyTorch leaves the result of k = 0 uninitialized
    agree(lambda room, t: room.topk(t, k, dim, largest)[0], x)
    if x.dtype is not torch.bool:
        agree(lambda room, t: room.kthvalue(t, k, dim)[0], x)


@given(tensors(KINDS), st.sampled_from((None, 0, -1)))
def test_unique(x: Any, dim: int | None) -> None:
    if x.dtype.is_floating_point:
        x = torch.nan_to_num(x)

    def run(room: Any, t: Any) -> Any:
        return room.unique(t, return_inverse=True, return_counts=True, dim=dim)

    def consecutive(room: Any, t: Any) -> Any:
        return room.unique_consecutive(t, return_inverse=True, return_counts=True, dim=dim)

    agree(run, x, strides=False)
    agree(consecutive, x, strides=False)


def test_each_nan_is_unique() -> None:
    x = torch.tensor([1.0, float("nan"), float("nan"), 1.0])
    agree(lambda room, t: room.unique(t, return_counts=True), x)


@given(tensors(("int32", "float32", "float64"), least=1, ndim=2), st.booleans(), st.booleans())
def test_searchsorted(x: Any, right: bool, narrow: bool) -> None:
    edges = torch.tensor([-1.5, -0.5, 0.5, 1.0])
    agree(lambda room, t, e: room.bucketize(t, e, right=right, out_int32=narrow), x.float(), edges)
    if x.ndim:
        rows = torch.nan_to_num(x).sort(-1)[0]
        agree(lambda room, s, t: room.searchsorted(s, t, right=right), rows, x.contiguous())


@given(tensors(("int32", "float32"), ndim=2), st.booleans())
def test_isin(x: Any, invert: bool) -> None:
    agree(lambda room, t, s: room.isin(t, s, invert=invert), x, torch.tensor([0.0, 1.0]), strides=False)


def test_refusals() -> None:
    x = flambeau.arange(6.0).reshape(2, 3)
    with pytest.raises(RuntimeError, match="selected index k out of range"):
        x.topk(4)
    with pytest.raises(RuntimeError, match="selected number k out of range for dimension 1"):
        x.kthvalue(0)
    with pytest.raises(RuntimeError, match="side and right can't be set to opposites"):
        flambeau.searchsorted(x[0], 2, right=True, side="left")
    with pytest.raises(RuntimeError, match="Sort does not support complex"):
        from_torch(torch.zeros(2, dtype=torch.complex64)).sort()
