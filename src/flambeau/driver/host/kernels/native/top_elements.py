"""The largest or smallest elements of rows, as topk selects them."""

from __future__ import annotations

import struct

import numpy as np

from flambeau.core.dtype import from_numpy
from flambeau.core.host_arrays import address_of
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.host.kernels.native.kernel_names import TYPES
from flambeau.ops.cache_blocks import Array

_MOST = 64  # elements of which a row keeps an ordered list; of more, a partition is faster


def top_elements(
    library: KernelLibrary, rows: Array, count: int, largest: bool
) -> tuple[Array, Array] | None:
    """Return the first `count` elements of each row's stable order, and their indices.

    Args:
        rows: A contiguous matrix with at least `count` columns.
        largest: True to order from the largest element on.

    Returns:
        None if the library does not support the dtype or the count.
    """
    c_type = TYPES.get(from_numpy(rows.dtype))
    name = f"{'largest' if largest else 'smallest'}_{c_type}"
    if not 0 < count <= _MOST or not library.find(name):
        return None
    values, places = np.empty((len(rows), count), rows.dtype), np.empty((len(rows), count), np.int64)
    plan = np.array((*rows.shape, count), np.int64)
    words = struct.pack("<3Q", *map(address_of, (values, places, rows)))
    library.runner(name)(address_of(plan), words)
    return values, places
