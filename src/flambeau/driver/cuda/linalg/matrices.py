"""Helpers of linear algebra: column-major copies, batches, tables of addresses, status values.

The libraries expect column-major matrices and work in place. Each input is therefore first copied to temporary memory
and transposed, and each result is copied out. Results of a matrix without a solution become NaN. A batch is one call if
the library has a batched routine for small matrices; otherwise one call for each matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from flambeau.core.dtype import bool_, dtype, int32, int64
from flambeau.core.layout import contiguous_strides, is_contiguous
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_steps import Array, KernelSteps, Places, device_only
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.protocol import Expression, Fold, Kernel, Launch

SMALL = 512  # number of rows up to which the library's batched routines are faster


def _constants(launch: Launch) -> tuple[float, ...]:
    return launch.params


def expression(name: str, text: str, indexed: bool = False) -> Kernel:
    """Return a kernel that evaluates one expression, whose constants are the launch's params."""
    return Kernel(name, device_only, cuda=Expression(text, constants=_constants, indexed=indexed))


# Row-major index i is row i / k0 % k1 and column i % k0 of matrices with k1 rows and k0 columns.
LOWER_PART = expression("lower_part", "i % k0 <= i / k0 % k1 ? a : T{}", indexed=True)
UPPER_PART = expression("upper_part", "i % k0 >= i / k0 % k1 ? a : T{}", indexed=True)
IDENTITY = expression("identity", "i % k0 == i / k0 % k1", indexed=True)
CONJUGATE = expression("conjugate", "conjugate(a)")
FILL = expression("fill", "k0")
OR_NAN = expression("or_nan", "b != 0 ? to<T>((float)NAN) : a")
_FINITE_PART = expression("finite_part", "b ? a : T{}")
_FINITE_INFO = expression("finite_info", "b ? a : -1")
_ADDRESSES = expression("addresses", "a + i * k0", indexed=True)
_ALL_FINITE = Kernel(
    "all_finite",
    device_only,
    cuda=Fold(
        lambda launch: (launch.inputs[0].ndim - 2, launch.inputs[0].ndim - 1),  # type: ignore[union-attr]
        lambda launch: (),
        "bool", "true", "is_finite(x)", "a && b", ("s",),
    ),
)  # fmt: skip


# -- layouts -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Matrices:
    """A batch of adjacent column-major matrices in temporary memory."""

    array: Array
    rows: int
    columns: int

    @property
    def count(self) -> int:
        return prod(self.array.meta.shape[:-2])

    @property
    def kind(self) -> dtype:
        return self.array.meta.dtype

    @property
    def step(self) -> int:
        """Return the distance in bytes from one matrix to the next."""
        return self.rows * self.columns * self.kind.itemsize

    def part(self, rows: int, columns: int) -> Array:
        """Return the first rows and columns of each matrix."""
        meta = self.array.meta
        return replace(self.array, meta=meta.with_((*meta.shape[:-2], rows, columns), meta.strides))

    def transpose_array(self) -> Array:
        return replace(self.array, meta=transpose_meta(self.array.meta))


def transpose_meta(x: Meta) -> Meta:
    """Return the layout of the transposed matrices."""
    shape, strides = x.shape, x.strides
    return x.with_((*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2]))


def columns(steps: KernelSteps, x: Meta, rows: int, cols: int, kind: dtype | None = None) -> Matrices:
    """Return temporary memory for a column-major matrix of this size for each matrix in the batch of x."""
    batch = x.shape[:-2]
    strides = tuple([rows * cols * s for s in contiguous_strides(batch)])
    meta = Meta.of((*batch, rows, cols), (*strides, 1, rows), kind or x.dtype, x.device)
    return Matrices(steps.temp(meta), rows, cols)


def copy_to_columns(steps: KernelSteps, x: Array) -> Matrices:
    """Return a column-major copy."""
    rows, cols = x.meta.shape[-2:]
    found = columns(steps, x.meta, rows, cols)
    steps.copy(found.array, x)
    return found


def numbers(steps: KernelSteps, like: Meta, size: int, kind: dtype) -> Array:
    """Return temporary memory for `size` elements for each matrix of the batch."""
    return steps.dense((*like.shape[:-2], size), kind)


def landing(steps: KernelSteps, out: Array) -> Array:
    """Return the output itself if it is contiguous, otherwise memory from which `copy_to_output` copies to it."""
    if is_contiguous(out.meta.shape, out.meta.strides):
        return out
    return steps.dense(out.meta.shape, out.meta.dtype)


def copy_to_output(steps: KernelSteps, out: Array, found: Array) -> None:
    if found.place != out.place:
        steps.copy(out, found)


# -- infos ---------------------------------------------------------------------------------------------------


def along(x: Array, like: Meta) -> Array:
    """Return an array of one number per matrix, expanded over the matrix's elements."""
    missing = like.ndim - x.meta.ndim
    strides = (*x.meta.strides, *[0] * missing)
    return replace(x, meta=x.meta.with_(like.shape, strides))


def store(steps: KernelSteps, out: Array, found: Array, info: Array) -> None:
    """Copy results to the output, with NaN for matrices without an answer."""
    steps.run(OR_NAN, out, found, along(info, out.meta))


def finite(steps: KernelSteps, x: Array, info: Array) -> tuple[Array, Callable[[], None]]:
    """Replace matrices with non-finite elements by zeros, because the library might iterate over them forever.

    Returns:
        The memory for the library's status values.
    """
    flags = steps.dense(x.meta.shape[:-2], bool_)
    steps.run(_ALL_FINITE, flags, x)
    steps.run(_FINITE_PART, x, x, along(flags, x.meta))
    raw = steps.dense(x.meta.shape[:-2], int32)
    return raw, lambda: steps.run(_FINITE_INFO, info, raw, flags)


# -- batches -------------------------------------------------------------------------------------------------


def each(steps: KernelSteps, count: int, call: Callable[[Places, Any, int], None]) -> None:
    """Add a library call for each matrix of a batch: `call(places, native stream, number)`."""

    def step(places: Places, native: Any, stream: int) -> None:
        for at in range(count):
            call(places, native, at)

    steps.call(step)


def addresses(steps: KernelSteps, array: Array, step: int, count: int) -> int:
    """Return a table in device memory of `count` addresses, `step` bytes apart."""
    out = steps.dense((count,), int64)
    launch = Launch(_ADDRESSES, (out.meta,), (int64,), (step,))
    exe, driver = steps.driver.load(launch, steps.device.index), steps.driver
    steps.call(
        lambda places, native, stream: driver.launch(
            exe, (places[out.place],), (places[array.place],), stream
        )
    )
    return out.place


def identity(steps: KernelSteps, out: Array) -> None:
    """Add a kernel that fills `out` with identity matrices."""
    rows, cols = out.meta.shape[-2:]
    steps.run(IDENTITY, out, params=(cols, rows))


def fill(steps: KernelSteps, out: Array, value: float) -> None:
    steps.run(FILL, out, params=(value,))


# -- routines ------------------------------------------------------------------------------------------------


def routine(
    add: Callable[[KernelSteps], None], values: tuple[float, ...] = (0,), square: bool = False
) -> Callable[[Launch, CudaDevice, Any], KernelSteps]:
    """Return the builder of a library routine. For an empty first input, the outputs are filled with `values`."""

    def build(launch: Launch, device: CudaDevice, driver: Any) -> KernelSteps:
        steps = KernelSteps(launch, device, driver)
        if steps.inputs[0].meta.numel:
            add(steps)
            return steps
        for at, out in enumerate(steps.outputs):
            if square and out.meta.ndim > 1 and out.meta.shape[-1] == out.meta.shape[-2]:
                identity(steps, out)
            else:
                fill(steps, out, values[min(at, len(values) - 1)])
        return steps

    return build
