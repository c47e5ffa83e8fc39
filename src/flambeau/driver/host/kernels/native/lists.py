"""Bodies of `Lists` forms, such as the steps of optimizers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import float32
from flambeau.core.meta import Meta, alike
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.host.kernels.native.kernel_names import ListKernel
from flambeau.driver.protocol import Launch, Lists, NativeBody

_MOST = 16  # lists, as in include/lists.h


class _ListsPlan(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("lists", ctypes.c_int64),
        ("numel", ctypes.c_void_p),
    )


def kernel_of(launch: Launch, form: Lists) -> ListKernel | None:
    """Return the kernel of a formula; None if the library cannot have one.

    Flags and dtypes other than float32 are not supported.
    """
    count = form.count(launch)
    if form.flag or any(x.dtype is not float32 for x in launch.operands):
        return None
    statements, results = form.text(launch)
    tensors = [x for x in launch.inputs if isinstance(x, Meta)]
    return ListKernel(statements, results, float32, len(tensors) // count, len(launch.inputs) - len(tensors))


def body(library: KernelLibrary, launch: Launch, form: Lists) -> NativeBody | None:
    """Return the native body of a launch, or None if the library has none."""
    kernel, count = kernel_of(launch, form), form.count(launch)
    function = 0 if kernel is None else library.find(kernel.symbol)
    operands = launch.operands
    if (
        not function
        or len(operands) > _MOST * count
        or not all(_is_flat(operands[m::count]) for m in range(count))
    ):
        return None
    numel = (ctypes.c_int64 * count)(*[x.numel for x in operands[:count]])
    plan = _ListsPlan(function, count, len(operands) // count, ctypes.addressof(numel))
    run, address = library.run_lists, ctypes.addressof(plan)
    pack = struct.Struct(f"<{len(operands)}Q{len(launch.inputs) - len(operands) + len(launch.outputs)}d").pack

    def run_at(ptrs: Sequence[int], scalars: Sequence[Any], kept: Any = (plan, numel)) -> None:
        run(address, pack(*ptrs, *scalars))

    return NativeBody(launch, run_at)


def _is_flat(metas: Sequence[Meta]) -> bool:
    """Return True if all tensors are dense in the same order, so that their memory can be read from end to end."""
    return all(x.numel == metas[0].numel and (x.numel == 1 or alike(x, metas[0])) for x in metas)
