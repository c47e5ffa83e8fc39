"""Operators on arrays of the computing dtypes, as the statements of an expression run them."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from flambeau.core.host_arrays import address_of
from flambeau.core.meta import Meta
from flambeau.driver.host.kernels.native.element_bodies import chains, kernel_of
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.protocol import Expression, Launch
from flambeau.ops.cache_blocks import Array

_Kernel = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class NativeStep:
    """The native code of an operator for arrays of any size."""

    __slots__ = ("_form", "_functions", "_kind", "_launch", "_library", "_pack")

    def __init__(self, library: KernelLibrary, launch: Launch, form: Expression, plain: int) -> None:
        self._library, self._launch, self._form = library, launch, form
        self._kind = launch.outputs[0].dtype.numpy
        self._pack = struct.Struct(f"<{len(launch.inputs)}Q").pack
        # which inputs are numbers -> kernel
        self._functions: dict[tuple[bool, ...], Any] = {(False,) * len(launch.inputs): _Kernel(plain)}

    def __call__(self, *inputs: Any) -> Array:
        """Return the result of the operator on arrays of one shape and on numbers, in a new array."""
        shape = np.broadcast_shapes(*map(np.shape, inputs))
        function = self._function(tuple([not np.ndim(x) for x in inputs]))
        numbers = function is not None  # which the kernel takes as one value each
        if not numbers:
            function = self._function((False,) * len(inputs))
        arrays = [
            np.asarray(x if numbers and not np.ndim(x) else np.broadcast_to(x, shape), order="C")
            for x in inputs
        ]
        out = np.empty(shape, self._kind)
        function(out.size, address_of(out), self._pack(*map(address_of, arrays)), None)
        return out

    def _function(self, uniform: tuple[bool, ...]) -> Any:
        if uniform not in self._functions:
            kernel = kernel_of(self._launch, self._form, uniform)
            found = 0 if kernel is None else self._library.find(kernel.symbol)
            self._functions[uniform] = _Kernel(found) if found else None
        return self._functions[uniform]


def step(library: KernelLibrary, launch: Launch, form: Expression) -> NativeStep | None:
    """Return the native code of a launch that converts nothing and has no constants; None if there is none."""
    inputs, output = chains(launch, form)
    kernel = kernel_of(launch, form, [False] * len(inputs))
    function = 0 if kernel is None else library.find(kernel.symbol)
    tensors = [chain for x, chain in zip(launch.inputs, inputs, strict=True) if isinstance(x, Meta)]
    if not function or form.constants(launch) or any(len(chain) > 1 for chain in (*tensors, output)):
        return None
    return NativeStep(library, launch, form, function)
