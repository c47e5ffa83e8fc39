"""Bodies of softmax, layer_norm, rms_norm and their gradients, along the last dims of contiguous tensors.

Their CUDA forms are whole kernels, so include/rows.h has them for CPUs. Each is compared with its reference
implementation.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flambeau.core.dtype import bfloat16, float16, float32
from flambeau.core.meta import Meta
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.host.kernels.native.kernel_names import TYPES
from flambeau.driver.protocol import Launch, NativeBody, Routine


class _RowsPlan(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("n", ctypes.c_int64),
        ("given", ctypes.c_int64),
        ("eps", ctypes.c_double),
    )


class _Normalized(NamedTuple):
    """The params of a kernel: the number of trailing dims of a row, eps, and whether weight and bias exist."""

    ndim: int
    eps: float = 0.0
    given: tuple[bool, ...] = ()


def _along_dim(launch: Launch) -> _Normalized | None:
    dim = launch.params[0]
    return _Normalized(1) if dim == launch.outputs[0].ndim - 1 else None


def _forward(launch: Launch) -> _Normalized:
    return _Normalized(*launch.params)


def _backward(launch: Launch) -> _Normalized:
    seen, eps, given = launch.params
    return _Normalized(len(seen.dims), eps, given)


_KERNELS: tuple[tuple[str, Callable[[Launch], _Normalized | None]], ...] = (
    ("nn.softmax:softmax", _along_dim),
    ("nn.softmax:log_softmax", _along_dim),
    ("nn.softmax:softmax_backward", _along_dim),
    ("nn.softmax:log_softmax_backward", _along_dim),
    ("nn.normalizing:layer_norm", _forward),
    ("nn.normalizing:rms_norm", _forward),
    ("nn.normalizing_gradients:layer_norm_backward", _backward),
    ("nn.normalizing_gradients:rms_norm_backward", _backward),
)


def body(library: KernelLibrary, launch: Launch, form: Routine) -> NativeBody | None:
    """Return the native body of a launch, or None if the library has none."""
    read = dict(_KERNELS).get(form.builder)
    given = None if read is None else read(launch)
    out = launch.outputs[0]
    if given is None or not out.numel or not _is_supported(launch):
        return None
    name = form.builder.partition(":")[2]
    length = math.prod(out.shape[out.ndim - given.ndim :])
    whole = 2 if name.endswith("_backward") else 1  # inputs of all rows; others have the elements of one
    sizes = [x.numel for x in launch.inputs if isinstance(x, Meta)]
    if sizes[:whole] != [out.numel] * whole or any(size != length for size in sizes[whole:]):
        return None
    function = library.rows(f"rows_{name}_{TYPES[out.dtype]}")
    has = sum([1 << k for k, present in enumerate(given.given) if present])
    plan = _RowsPlan(out.numel // length, length, has, given.eps)
    address, pack = ctypes.addressof(plan), struct.Struct(f"<{len(launch.operands)}Q").pack

    def run_at(ptrs: Sequence[int], scalars: Sequence[Any], kept: Any = plan) -> None:
        if function(address, pack(*ptrs)):
            raise MemoryError

    return NativeBody(launch, run_at)


def _is_supported(launch: Launch) -> bool:
    """Return True if all operands are contiguous and of one dtype. A dtype to convert to is not supported."""
    kind = launch.outputs[0].dtype
    if kind not in (float32, float16, bfloat16) or not launch.outputs[0].ndim:
        return False
    return all(
        isinstance(x, Meta) and x.contiguous and x.dtype is kind for x in (*launch.outputs, *launch.inputs)
    )
