"""The product of a sparse matrix in CSR format and a strided tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import complex64, complex128, dtype, int32, int64
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.op import NOT_DIFFERENTIABLE, Make, Op, Operand, Sample, Signature, define, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import NUMBERS

Array = np.ndarray[Any, Any]


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the result. Operands: row starts (rows + 1), columns and values of the elements (nnz), a strided matrix."""
    starts, columns, values, dense = operands
    assert isinstance(starts, Meta) and isinstance(columns, Meta)
    assert isinstance(values, Meta) and isinstance(dense, Meta)
    where = one_device(operands)
    if starts.dtype is not columns.dtype or starts.dtype not in (int32, int64):
        raise RuntimeError(
            f"_sparse_csr_mm(): expected indices of one dtype, int32 or int64, but got {starts.dtype} and "
            f"{columns.dtype}"
        )
    if values.dtype is not dense.dtype:
        raise RuntimeError(f"_sparse_csr_mm(): expected one dtype, but got {values.dtype} and {dense.dtype}")
    shape = (starts.numel - 1, dense.shape[1])
    return Signature((Meta.contiguous_of(shape, values.dtype, where),), (starts, columns, values, dense), ())


def _require_inside(starts: Array, columns: Array, width: int) -> None:
    """Raise IndexError if a row start or column index of a sparse matrix is out of range."""
    steps = np.diff(starts)
    if starts[0] != 0 or starts[-1] != columns.size or (steps.size and steps.min() < 0):
        raise IndexError("crow_indices must begin with 0, never fall, and end with the number of values")
    if columns.size and not (columns.min() >= 0 and columns.max() < width):
        bad = columns[(columns < 0) | (columns >= width)][0]
        raise IndexError(f"column index {bad} is out of bounds for a matrix with {width} columns")


def _host(launch: Launch) -> Body:
    out, (*_, dense) = launch.outputs[0], launch.operands
    kind = out.dtype
    widen = to_computing(kind, kind)
    shape = (out.shape[0], dense.shape[0])

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        from scipy.sparse import csr_array  # imported here because it is slow to import

        starts, columns, values, matrix = inputs
        _require_inside(starts, columns, shape[1])
        rows = csr_array((widen(values), columns, starts), shape=shape, copy=False)
        np.copyto(outputs[0], rows @ widen(matrix), casting="unsafe")

    return body


def _flops(launch: Launch) -> int:
    return 2 * launch.operands[-2].numel * launch.outputs[0].shape[1]


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    starts, columns = np.array([0, 2, 2, 5, 6]), np.array([3, 0, 1, 1, 4, 2])
    yield (starts, columns, make(6), make(5, 3)), ()
    yield (starts.astype(np.int32), columns.astype(np.int32), make(6), make(5, 40)), ()
    yield (np.zeros(3, np.int64), np.zeros(0, np.int64), make(0), make(5, 3)), ()


csr_product = define(
    Op(
        "_sparse_csr_mm",
        _rule,
        Kernel("sparse_csr_mm", _host, _flops, cuda=Routine("linalg.sparse_matrices:csr_product")),
        (*NUMBERS, complex64, complex128),
        _samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)
