"""Bodies of `Scan` forms, along the last dim of contiguous tensors.

NumPy's implementation accumulates floats in double precision, one after the other, and so do these: in its bits.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import float32, float64
from flambeau.core.meta import Meta
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.host.kernels.native.kernel_names import ScanKernel
from flambeau.driver.protocol import Launch, NativeBody, Scan


def kernel_of(launch: Launch, form: Scan) -> ScanKernel | None:
    """Return the kernel of a running reduction; None if the library cannot have one.

    Only arithmetic is supported, of floats of 32 and 64 bits without conversion.
    """
    (source, *more), out = launch.inputs, launch.outputs[0]
    arithmetic = re.fullmatch(r"(add|mul)\(a, b\)", form.join)
    if not arithmetic or more or len(launch.outputs) != 1 or not isinstance(source, Meta):
        return None
    same = source.dtype is out.dtype and out.dtype in (float32, float64)
    return ScanKernel(form.join, out.dtype) if same else None


def body(library: KernelLibrary, launch: Launch, form: Scan) -> NativeBody | None:
    """Return the native body of a launch, or None if the library has none."""
    kernel, out = kernel_of(launch, form), launch.outputs[0]
    dense = all(x.contiguous for x in launch.operands)
    if kernel is None or not dense or not out.numel or not out.ndim or form.dim(launch) != out.ndim - 1:
        return None
    if not library.find(kernel.symbol):
        return None
    sizes = (ctypes.c_int64 * 2)(out.numel // out.shape[-1], out.shape[-1])
    run, address, pack = library.runner(kernel.symbol), ctypes.addressof(sizes), struct.Struct("<2Q").pack

    def run_at(ptrs: Sequence[int], scalars: Sequence[Any], kept: Any = sizes) -> None:
        run(address, pack(*ptrs))

    return NativeBody(launch, run_at)
