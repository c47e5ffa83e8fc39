"""Scans and counts against PyTorch."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support import torch
from test_reductions import agree, tensors

SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


@given(
    tensors(("bool", "uint8", "int64", "float16", "float32", "float64", "bfloat16")),
    st.sampled_from(SCANS),
    st.integers(-3, 2),
)
def test_scans(x: Any, name: str, dim: int) -> None:
    narrow = name == "logcumsumexp" and x.dtype in (torch.float16, torch.bfloat16)
    agree(lambda room, t: getattr(room, name)(t, dim), x, ulps=16 if narrow else 4)


@given(tensors(("bool", "int64", "float32")), st.integers(0, 3), st.integers(-2, 1))
def test_diff(x: Any, n: int, dim: int) -> None:
    agree(lambda room, t: room.diff(t, n, dim), x, strides=False)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 12), st.booleans())
def test_bincount(numbers: list[int], least: int, weighted: bool) -> None:
    x, weights = torch.tensor(numbers, dtype=torch.int64), torch.arange(len(numbers), dtype=torch.float32)
    if weighted:
        agree(lambda room, t, w: room.bincount(t, w, least), x, weights)
    else:
        agree(lambda room, t: room.bincount(t, minlength=least), x)


@given(tensors(("float32", "float64"), least=1), st.integers(1, 6))
def test_histc(x: Any, bins: int) -> None:
    x = torch.nan_to_num(x)
    agree(lambda room, t: room.histc(t, bins), x)
    agree(lambda room, t: room.histc(t, bins, -1, 1), x)


@given(tensors(("int32", "float32", "complex64"), least=1))
def test_trace(x: Any) -> None:
    agree(lambda room, t: room.trace(t), x)
