"""Sums of rows at places of another tensor, as index_add and the gradient of an embedding compute them."""

from __future__ import annotations

import math
import struct

import numpy as np

from flambeau.core.host_arrays import address_of
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.ops.cache_blocks import Array

_KERNELS = {np.dtype(np.float32): "add_rows_float", np.dtype(np.float64): "add_rows_double"}


def add_rows(library: KernelLibrary, out: Array, dim: int, places: Array, source: Array) -> bool:
    """Add slices of `source` along a dim to those of `out` at these places, in the order and the bits of `np.add.at`.

    Args:
        places: Indices that are in range, in one dimension.
        source: An array in the shape of `out`, with `len(places)` slices along the dim.

    Returns:
        False if nothing was done, because the library does not support the operands.
    """
    name = _KERNELS.get(out.dtype)
    if (
        name is None
        or source.dtype != out.dtype
        or not out.flags.c_contiguous
        or np.may_share_memory(out, source)
    ):
        return False
    places, source = np.ascontiguousarray(places, np.int64), np.ascontiguousarray(source)
    sizes = math.prod(out.shape[:dim]), out.shape[dim], places.size, math.prod(out.shape[dim + 1 :])
    plan = np.array(sizes, np.int64)
    words = struct.pack("<3Q", *map(address_of, (out, places, source)))
    library.runner(name)(address_of(plan), words)
    return True
