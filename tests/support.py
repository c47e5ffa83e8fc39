"""What oracle tests share: PyTorch's CPU build, and tensors carried to it and back with their strides."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import pytest

import flambeau
from flambeau.core.dtype import DTYPES
from flambeau.core.host_arrays import array_at
from flambeau.core.meta import Meta
from flambeau.tensor.call import empty
from flambeau.tensor.tensor import Tensor, make

if os.environ.get("CI"):
    import torch  # CI has the oracle: there its absence is a failure
else:
    torch = pytest.importorskip("torch", reason="oracle PyTorch is not installed")

INTEGER_PRODUCTS: tuple[str, ...] = ("int32", "int64", "uint8")
"""The integers whose matrices both libraries multiply here."""

_ONEDNN = torch.ops.mkldnn
HALVES: tuple[str, ...] = ("float16",) * _ONEDNN._is_mkldnn_fp16_supported()
HALVES += ("bfloat16",) * _ONEDNN._is_mkldnn_bf16_supported()
"""The 16-bit dtypes that PyTorch's library for this processor computes convolutions and recurrent layers in. What PyTorch
does without it refuses empty results and lies otherwise, or fails."""


def to_torch(ours: Tensor) -> Any:
    """A PyTorch tensor with the bytes, dtype, shape and strides of ours."""
    if ours.device.type != "cpu":
        ours = ours.cpu()
    meta = ours.meta
    kind = getattr(torch, meta.dtype.name)
    theirs = torch.empty_strided(meta.shape, meta.strides, dtype=kind, device="cpu")
    if meta.span:
        ctypes.memmove(theirs.data_ptr(), ours.ptr, meta.span)
    return theirs


def from_torch(theirs: Any) -> Tensor:
    """Our CPU tensor with the bytes, dtype, shape and strides of PyTorch's."""
    where, kind = flambeau.device("cpu"), our_dtype(theirs.dtype)
    meta = Meta.of(tuple(theirs.shape), tuple(theirs.stride()), kind, where)
    memory = empty(Meta.contiguous_of((meta.span // kind.itemsize,), kind, where))
    if meta.span:
        ctypes.memmove(memory.ptr, theirs.data_ptr(), meta.span)
    return make(meta, memory.memory, memory.ptr)


def our_dtype(theirs: Any) -> Any:
    """Our dtype of the same name as PyTorch's."""
    return next(d for d in DTYPES if repr(d) == repr(theirs))


def values(ours: Tensor) -> np.ndarray[Any, Any]:
    """A copy of a CPU tensor's elements as a NumPy array."""
    return array_at(ours.ptr, ours.meta.shape, ours.meta.dtype.numpy, ours.meta.byte_strides).copy()


def same(ours: Any, theirs: Any, ulps: float = 0, *, strides: bool = True) -> None:
    """Assert that ours equals PyTorch's result: type, dtype, shape, strides, and each value.

    `ulps` is how many units in the last place of the dtype floating values may differ by; at 0 the sign of
    zero counts too. NaN equals NaN. Tuples and lists are compared member by member.
    """
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other, ulps, strides=strides)
        return
    if not isinstance(theirs, torch.Tensor):
        assert type(ours) is type(theirs), (ours, theirs)
        assert ours == theirs or (ours != ours and theirs != theirs), (ours, theirs)
        return
    assert repr(ours.dtype) == repr(theirs.dtype), f"{ours.dtype} is not {theirs.dtype}"
    assert ours.meta.shape == tuple(theirs.shape), f"{ours.meta.shape} is not {tuple(theirs.shape)}"
    if strides:
        assert ours.meta.strides == theirs.stride(), f"strides {ours.meta.strides}, not {theirs.stride()}"
    same_values(to_torch(ours), theirs, ulps)


def same_values(ours: Any, theirs: Any, ulps: float = 0) -> None:
    """Assert that two PyTorch tensors of one dtype and shape hold the same values, to `ulps`."""
    kind = theirs.dtype
    if kind.is_complex:
        wide = torch.complex64 if kind is torch.complex32 else kind
        ours, theirs = (torch.view_as_real(t.to(wide).resolve_conj().contiguous()) for t in (ours, theirs))
    elif not kind.is_floating_point:
        good = ours == theirs
        assert bool(good.all()), f"\n{ours}\nis not\n{theirs}"
        return
    a, b = (t.to(torch.float64).numpy() for t in (ours, theirs))
    with np.errstate(all="ignore"):
        good = (a == b) | (np.isnan(a) & np.isnan(b))
        if ulps:
            info = torch.finfo(kind)
            scale = 2.0 ** np.floor(np.log2(np.maximum(np.abs(b), float(info.tiny))))
            good |= np.abs(a - b) <= ulps * scale * float(info.eps)
        else:
            good &= np.isnan(a) | (np.signbit(a) == np.signbit(b))
    assert good.all(), f"\n{a[~good][:8]}\nis not\n{b[~good][:8]}\n({kind}, {ulps} ulps)"
