"""Bodies of copies whose source is contiguous along another dimension than the target."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from flambeau.core.layout import Dims
from flambeau.core.meta import Meta
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.protocol import Launch, NativeBody

_DIMS = 8  # as in include/elements.h
_SHORT = 8  # shorter dimensions gain nothing


class _TransposePlan(ctypes.Structure):
    _fields_ = (
        ("dims", ctypes.c_int64),
        *[(name, ctypes.c_int64 * _DIMS) for name in ("size", "source", "target")],
        ("row", ctypes.c_int64),
        ("itemsize", ctypes.c_int64),
    )


def body(library: KernelLibrary, launch: Launch, dims: Dims) -> NativeBody | None:
    """Return the native body of a copy without conversion; None if it transposes nothing.

    Args:
        dims: The merged dimensions, with the strides of the output and of the input.
    """
    out, source = launch.outputs[0], launch.inputs[0]
    assert isinstance(source, Meta)
    row = next((d for d, (size, steps) in enumerate(dims[:-1]) if steps[1] == 1 and size >= _SHORT), None)
    size, steps = dims[-1]
    if row is None or source.dtype is not out.dtype or steps[0] != 1 or steps[1] == 1 or size < _SHORT:
        return None
    plan = _TransposePlan(dims=len(dims), row=row, itemsize=out.itemsize)
    for d, (size, steps) in enumerate(dims):
        plan.size[d], plan.target[d], plan.source[d] = size, steps[0] * out.itemsize, steps[1] * out.itemsize
    run, address, pack = library.run_transpose, ctypes.addressof(plan), struct.Struct("<2Q").pack

    def run_at(ptrs: Sequence[int], scalars: Sequence[Any], kept: Any = plan) -> None:
        run(address, pack(*ptrs))

    return NativeBody(launch, run_at)
