"""Host addresses as NumPy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

# Note [Host addresses as arrays]
# A CPU tensor, like a CUDA tensor, is an int address and a meta; its storage keeps the memory alive. NumPy
# makes arrays over buffers, so one buffer stands for the whole user address space (47 bits on x86-64 and
# aarch64, less its first page) and an array is a window of it: 0.5 us, where building a ctypes type and a
# buffer per array takes 2. Such an array does not keep its memory alive: the caller must hold the storage for as long
# as the array.
_FIRST = 4096
_WINDOW: Any = (ctypes.c_char * ((1 << 47) - _FIRST)).from_address(_FIRST)
_EVERYTHING = np.frombuffer(_WINDOW, np.uint8)


def array_at(
    ptr: int, shape: tuple[int, ...], numpy_dtype: Any, byte_strides: tuple[int, ...] | None = None
) -> np.ndarray[Any, Any]:
    """Return the memory at host address `ptr` as an array. The caller keeps the memory alive."""
    if ptr < _FIRST:  # an empty tensor has no memory: 0, and an offset in a view
        return np.empty(shape, numpy_dtype)
    return np.ndarray(shape, numpy_dtype, _EVERYTHING, ptr - _FIRST, byte_strides)


def bytes_at(ptr: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Return `nbytes` bytes at host address `ptr`. The caller keeps the memory alive."""
    return array_at(ptr, (nbytes,), np.uint8)


def address_of(array: np.ndarray[Any, Any]) -> int:
    """Return the address of an array's first element."""
    return int(array.__array_interface__["data"][0])


def compact_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy of an array that keeps strides of 0, so repeated elements are stored once."""
    if not array.ndim or 0 not in array.strides:
        return array.copy()
    narrow = array[tuple([slice(None if step else 1) for step in array.strides])]
    return np.broadcast_to(narrow.copy(), array.shape)
