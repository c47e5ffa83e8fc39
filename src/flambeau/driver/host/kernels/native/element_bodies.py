"""Bodies of `Expression` forms: a kernel of elements, with conversions of its operands and their layouts."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from flambeau.core.dtype import BOOL, INTEGRAL, dtype, float64, int64, uint64
from flambeau.core.layout import Dims, merge_dims
from flambeau.core.meta import Meta
from flambeau.driver.host.kernels.native import transposes
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.host.kernels.native.kernel_names import (
    COMPUTED,
    EXTREMES,
    FLOAT_CALLS,
    TYPES,
    ElementKernel,
    constant_types,
    conversion_symbol,
    converts,
    expression_text,
)
from flambeau.driver.protocol import Expression, Launch, NativeBody

_DIMS, _OPERANDS, _STEPS, _CONSTANTS = 8, 9, 4, 8  # as in include/elements.h
_SHORT = 8  # a line of fewer elements takes longer than NumPy's loop over another dimension
_CHECKED = ("binary_cross_entropy",)  # kernels whose reference implementation raises for some values
Chain = tuple[dtype, ...]
"""The dtypes that an element has one after the other."""


class _OperandLayout(ctypes.Structure):
    _fields_ = (
        ("stride", ctypes.c_int64 * _DIMS),
        ("itemsize", ctypes.c_int64),
        ("scalar", ctypes.c_int64),
        ("uniform", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("step", ctypes.c_void_p * _STEPS),
    )


class _ElementPlan(ctypes.Structure):
    _fields_ = (
        ("dims", ctypes.c_int64),
        ("size", ctypes.c_int64 * _DIMS),
        ("inputs", ctypes.c_int64),
        ("kernel", ctypes.c_void_p),
        ("operand", _OperandLayout * _OPERANDS),
        ("constants", ctypes.c_int64 * _CONSTANTS),
    )


def kernel_of(launch: Launch, form: Expression, uniform: Sequence[bool]) -> ElementKernel | None:
    """Return the kernel that computes a launch's elements; None if the library cannot have one."""
    inputs, output = chains(launch, form)
    constants = form.constants(launch)
    supported = all(x in COMPUTED for x in (*[chain[-1] for chain in inputs], output[0]))
    if (
        not supported
        or form.indexed
        or form.header
        or launch.kernel.name in _CHECKED
        or len(constants) > _CONSTANTS
        or len(inputs) >= _OPERANDS
    ):
        return None
    every = (*inputs, output)
    if any(len(chain) > _STEPS or not all(converts(a, b) for a, b in pairwise(chain)) for chain in every):
        return None
    text = expression_text(launch, form)
    kinds = tuple([chain[-1] for chain in inputs])
    return ElementKernel(text, form.functions, kinds, output[0], constant_types(constants), tuple(uniform))


def chains(launch: Launch, form: Expression) -> tuple[list[Chain], Chain]:
    """Return the dtypes through which each input is converted, and those from the kernel's result to the output."""
    steps, after = form.kinds(launch)
    inputs = [
        _without_repetition((_call_dtype(x), *chain)) for x, chain in zip(launch.inputs, steps, strict=True)
    ]
    return inputs, _without_repetition((*after, launch.outputs[0].dtype))


def _call_dtype(x: Meta | dtype | type[object]) -> dtype:
    """Return the dtype of an input as a call passes it."""
    if isinstance(x, Meta):
        return x.dtype
    assert isinstance(x, dtype)
    return int64 if x.category in (BOOL, INTEGRAL) else float64


def _without_repetition(chain: Sequence[dtype]) -> Chain:
    return tuple([x for i, x in enumerate(chain) if not i or x is not chain[i - 1]])


def _native(library: KernelLibrary, launch: Launch, plan: _ElementPlan) -> NativeBody:
    run, address, pack = library.run_elements, ctypes.addressof(plan), struct.Struct(_words(launch)).pack

    def run_at(ptrs: Sequence[int], scalars: Sequence[Any], kept: _ElementPlan = plan) -> None:
        run(address, pack(*ptrs, *scalars))

    return NativeBody(launch, run_at)


def body(library: KernelLibrary, launch: Launch, form: Expression) -> NativeBody | None:
    """Return the native body of a launch, or None if the library has none."""
    metas = [x for x in launch.inputs if isinstance(x, Meta)]
    if not metas or not _is_supported(launch):
        return None
    out = launch.outputs[0]
    dims = merge_dims(out.shape, [out.strides, *[x.strides for x in metas]]) or [(1, (0,) * (1 + len(metas)))]
    if len(dims) <= _DIMS and form.text == "a" and len(metas) == len(launch.inputs) == 1:
        transposed = transposes.body(library, launch, dims)
        if transposed is not None:
            return transposed
    if len(dims) > _DIMS or (len(dims) > 1 and dims[-1][0] < _SHORT) or _crosses(dims):
        return None
    places = _places(launch)
    if form.text == "a" and len(metas) == 1 and launch.inputs[0] is metas[0]:
        return _conversion(library, launch, form, dims, places)
    uniform = [place is None or dims[-1][1][place] == 0 for place in places]
    for mask in (uniform, [False] * len(uniform)):
        kernel = kernel_of(launch, form, mask)
        function = 0 if kernel is None else library.find(kernel.symbol)
        if function:
            operands = _PlanBuilder(library, dims, places, mask, *chains(launch, form))
            return _native(library, launch, operands.plan(function, form.constants(launch)))
    return None


def has_numpys_bits(launch: Launch, form: Expression) -> bool:
    """Return True if a kernel and the reference implementation of a formula compute the same bits."""
    words = re.findall(r"\w+", expression_text(launch, form) + form.functions)
    return not set(words) & {*FLOAT_CALLS, *EXTREMES, "sqrt_"}


def _places(launch: Launch) -> list[int | None]:
    """Return the position of each input's strides in merged dimensions, in which the output's are the first."""
    places = iter(range(1, 1 + len(launch.inputs)))
    return [next(places) if isinstance(x, Meta) else None for x in launch.inputs]


def _conversion(
    library: KernelLibrary, launch: Launch, form: Expression, dims: Dims, places: Sequence[int | None]
) -> NativeBody | None:
    """Return the body of a copy to another dtype, which needs no kernel; None for other copies."""
    (before,), after = chains(launch, form)
    chain = _without_repetition((*before, *after))
    if len(chain) == 1 or len(chain) > _STEPS or not all(converts(a, b) for a, b in pairwise(chain)):
        return None
    operands = _PlanBuilder(library, dims, places, [False], [chain[:1]], chain)
    return _native(library, launch, operands.plan(0, ()))


def _is_supported(launch: Launch) -> bool:
    kinds = [x.dtype if isinstance(x, Meta) else x for x in (*launch.outputs, *launch.inputs)]
    return len(launch.outputs) == 1 and all(kind in TYPES for kind in kinds) and launch.outputs[0].numel > 0


def _crosses(dims: Dims) -> bool:
    """Return True if an operand is read in large steps while another dimension has small ones."""
    if len(dims) < 2:
        return False
    return any(abs(steps[k]) > 16 for _, steps in dims[-1:] for k in range(len(steps)))


class _PlanBuilder(NamedTuple):
    """A builder of plans: the dtypes of each operand's elements, and its place in merged dimensions."""

    library: KernelLibrary
    dims: Dims
    places: Sequence[int | None]
    uniform: Sequence[bool]
    inputs: Sequence[Chain]
    output: Chain

    def plan(self, function: int, constants: Sequence[float]) -> _ElementPlan:
        """Return the plan of a kernel; with `function` 0, of the conversions alone."""
        plan = _ElementPlan(dims=len(self.dims), inputs=len(self.inputs), kernel=function)
        for d, (size, _) in enumerate(self.dims):
            plan.size[d] = size
        for k, value in enumerate(constants):
            word = struct.pack("<d" if isinstance(value, float) else "<q", value)
            plan.constants[k] = int.from_bytes(word, "little", signed=True)
        self._describe(plan.operand[0], self.output, self.output[-1], 0)
        for k, (chain, place) in enumerate(zip(self.inputs, self.places, strict=True)):
            operand = plan.operand[k + 1]
            operand.scalar, operand.uniform = place is None, self.uniform[k]
            self._describe(operand, chain, chain[0], place)
        return plan

    def _describe(self, operand: _OperandLayout, chain: Chain, kind: dtype, place: int | None) -> None:
        operand.itemsize, operand.steps = kind.itemsize, len(chain) - 1
        for s, (source, target) in enumerate(pairwise(chain)):
            operand.step[s] = self.library.find(conversion_symbol(source, target))
        if place is not None:
            for d, (_, steps) in enumerate(self.dims):
                operand.stride[d] = steps[place] * kind.itemsize


def _words(launch: Launch) -> str:
    """Return the struct format of a call: addresses of tensors, then the values of scalars."""
    scalars = [x for x in launch.inputs if not isinstance(x, Meta)]
    formats = ["d" if _call_dtype(x) is float64 else "Q" if x is uint64 else "q" for x in scalars]
    return f"<{len(launch.operands)}Q{''.join(formats)}"
