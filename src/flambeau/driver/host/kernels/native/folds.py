"""Bodies of `Fold` forms: reductions of a contiguous tensor over dims that lie next to each other."""

from __future__ import annotations

import ctypes
import math
import re
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.host.kernels.native.kernel_names import (
    COMPUTED,
    TYPES,
    FoldKernel,
    conversion_symbol,
    converts,
)
from flambeau.driver.protocol import Fold, Launch, NativeBody

_STEPS = 4  # as in include/elements.h
_NARROW = 16  # columns of fewer elements are left to NumPy


class _FoldPlan(ctypes.Structure):
    _fields_ = (
        *[(name, ctypes.c_int64) for name in ("outer", "middle", "inner")],
        *[(name, ctypes.c_int64) for name in ("itemsize", "out_itemsize", "steps", "out_steps", "state")],
        ("step", ctypes.c_void_p * _STEPS),
        ("out_step", ctypes.c_void_p * _STEPS),
        *[(name, ctypes.c_void_p) for name in ("start", "lift", "join", "lower")],
    )


def kernel_of(launch: Launch, form: Fold) -> FoldKernel | None:
    """Return the functions of a reduction, if the library can have them.

    The state must be one number. Neither constants nor the position of an element are supported.
    """
    (x, *more), outputs = launch.inputs, launch.outputs
    texts = (form.start, form.lift, form.join, *form.lower)
    if more or len(outputs) != 1 or not isinstance(x, Meta) or form.state != "T" or form.first:
        return None
    kind = ([x.dtype, *form.steps(launch)])[-1]
    if kind not in COMPUTED or any(re.search(r"\b(i|k\d)\b", text) for text in texts):
        return None
    return FoldKernel(form.state, form.start, form.lift, form.join, form.lower[0], kind, kind)


def body(library: KernelLibrary, launch: Launch, form: Fold) -> NativeBody | None:
    """Return the native body of a launch, or None if the library has none."""
    kernel = kernel_of(launch, form)
    source, out = launch.inputs[0], launch.outputs[0]
    assert isinstance(source, Meta)
    if kernel is None or not library.find(f"{kernel.symbol}_lift") or not source.numel or not out.contiguous:
        return None
    axes = _axes(source, form.dims(launch))
    before, after = [source.dtype, *form.steps(launch)], [kernel.output, out.dtype]
    every = [(a, b) for a, b in [*pairwise(before), *pairwise(after)] if a is not b]
    if axes is None or source.dtype not in TYPES or not all(converts(a, b) for a, b in every):
        return None
    plan = _plan(library, kernel, axes, before, after)
    run, address, pack = library.run_fold, ctypes.addressof(plan), struct.Struct("<2Q").pack

    def run_at(ptrs: Sequence[int], scalars: Sequence[Any], kept: Any = plan) -> None:
        run(address, pack(*ptrs))

    return NativeBody(launch, run_at)


def _axes(source: Meta, dims: Sequence[int]) -> tuple[int, int, int] | None:
    """Return the three axes that result from merging dims, with the reduced ones in the middle; None if they do not."""
    kept = [d for d in range(source.ndim) if d not in dims and source.shape[d] != 1]
    reduced = [d for d in dims if source.shape[d] != 1]
    if not source.contiguous or (reduced and any(reduced[0] < d < reduced[-1] for d in kept)):
        return None
    if not reduced:
        return None
    shape = source.shape
    outer = math.prod([shape[d] for d in kept if d < reduced[0]])
    inner = math.prod([shape[d] for d in kept if d > reduced[-1]])
    return (outer, math.prod([shape[d] for d in reduced]), inner) if inner == 1 or inner >= _NARROW else None


def _plan(
    library: KernelLibrary,
    kernel: FoldKernel,
    axes: tuple[int, int, int],
    before: Sequence[dtype],
    after: Sequence[dtype],
) -> _FoldPlan:
    plan = _FoldPlan(*axes)
    plan.itemsize, plan.out_itemsize, plan.state = (
        before[0].itemsize,
        after[-1].itemsize,
        kernel.kind.itemsize,
    )
    for name, chain in (("step", before), ("out_step", after)):
        pairs = [(a, b) for a, b in pairwise(chain) if a is not b]
        setattr(plan, "steps" if name == "step" else "out_steps", len(pairs))
        for s, (a, b) in enumerate(pairs):
            getattr(plan, name)[s] = library.find(conversion_symbol(a, b))
    for name in ("start", "lift", "join", "lower"):
        setattr(plan, name, library.find(f"{kernel.symbol}_{name}"))
    return plan
