"""Sorting, searching, unique."""

from __future__ import annotations

from typing import Any

from flambeau.core.device import CPU
from flambeau.core.dtype import bool_, int64
from flambeau.ops.copy import wide_scalar
from flambeau.ops.index import sort as ops
from flambeau.ops.linalg.matmul import c_name
from flambeau.ops.reduce import reduction
from flambeau.tensor.arguments import return_types
from flambeau.tensor.arguments.extents import require_data
from flambeau.tensor.arguments.options import integer
from flambeau.tensor.arguments.public import both, function
from flambeau.tensor.call import call
from flambeau.tensor.exchange.data import tensor
from flambeau.tensor.out_argument import deliver, require_dtype, run
from flambeau.tensor.signatures import accepts, signatures
from flambeau.tensor.tensor import Tensor


@both
@signatures("""
sort(input: Tensor, *, stable: bool | None, dim: int=, descending: bool=)
sort(input: Tensor, dim: int=, descending: bool=)
""")
def sort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False, *, out: Any = None
) -> Any:
    """Return (values, indices) in order along `dim`; always stable. NaN is the largest."""
    return return_types.sort.of(run(ops.sort, (input,), (dim, bool(descending)), out), out)


@both
@signatures("""
argsort(input: Tensor, *, stable: bool, dim: int=, descending: bool=)
argsort(input: Tensor, dim: int=, descending: bool=)
""")
def argsort(
    input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False, *, out: Tensor | None = None
) -> Tensor:
    """Return the indices that sort `input` along `dim`."""
    if out is not None:
        require_dtype(int64, out)
    return deliver(call(ops.sort, (input,), (dim, bool(descending)))[1], out)


@both
def msort(input: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return `input` sorted along its first dimension."""
    values: Tensor = deliver(call(ops.sort, (input,), (0, False))[0], out)
    return values


@both
def topk(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True, *, out: Any = None
) -> Any:
    """Return (values, indices) of the k largest (or smallest) along `dim`, in order."""
    return return_types.topk.of(
        run(ops.topk, (input,), (integer(k, "topk", "k", 2), dim, bool(largest)), out), out
    )


@both
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False, *, out: Any = None) -> Any:
    """Return (values, indices) of the k-th smallest along `dim`, counted from 1."""
    params = (integer(dim, "kthvalue", "dim", 3), keepdim, None, integer(k, "kthvalue", "k", 2))
    return return_types.kthvalue.of(run(reduction.kthvalue, (input,), params, out), out)


# -- unique: the number of values is read back, which waits for the device ------------------------------


@both
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> Any:  # fmt: skip
    """Return the distinct elements (or slices along `dim`) in order; if requested, with the inverse and the counts."""
    return _unique(input, dim, False, return_inverse, return_counts)


@both
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    """Return the elements (or slices along `dim`) that differ from the preceding one."""
    return _unique(input, dim, True, return_inverse, return_counts)


def _unique(input: Tensor, dim: int | None, consecutive: bool, with_inverse: bool, with_counts: bool) -> Any:
    require_data(input, "unique_consecutive" if consecutive else "_unique2")
    values, inverse, counts, found = call(
        ops.unique, (input,), (dim, consecutive, bool(with_inverse), bool(with_counts))
    )
    count = found.item()
    values = values.narrow(0 if dim is None else dim, 0, count).clone()
    results = [values]
    if with_inverse:
        results.append(inverse)
    if with_counts:
        results.append(counts.narrow(0, 0, count).clone())
    return values if len(results) == 1 else tuple(results)


# -- searching ------------------------------------------------------------------------------------------


@function
@signatures("""
searchsorted(sorted_sequence: Tensor, input: Tensor, *, out_int32: bool=, right: bool=, side: str | None=,
    sorter: Tensor | None=)
searchsorted(sorted_sequence: Tensor, self: Number, *, out_int32: bool=, right: bool=, side: str | None=,
    sorter: Tensor | None=)
""")
def searchsorted(
    sorted_sequence: Tensor, input: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: Tensor | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the indices at which to insert the values `input` into the last dimension of `sorted_sequence`."""
    if side not in (None, "left", "right"):
        raise RuntimeError(f"torch.searchsorted(): side can only be 'left' or 'right' but got {side}")
    if side == "left" and right:
        raise RuntimeError(
            "torch.searchsorted(): side and right can't be set to opposites, got side of left while "
            "right was True"
        )
    if sorter is not None and sorter.meta.shape != sorted_sequence.meta.shape:
        raise RuntimeError(
            "torch.searchsorted(): boundary and sorter must have the same size, but got boundary tensor "
            f"{list(sorted_sequence.meta.shape)} and got sorter tensor {list(sorter.meta.shape)}"
        )
    if not isinstance(input, Tensor):
        input = tensor(wide_scalar(input), device=sorted_sequence.device)
    for x in (sorted_sequence, input):
        if x.dtype.is_complex or x.dtype is bool_:
            where = "cpu" if x.device is CPU else "cuda"
            raise NotImplementedError(f"\"searchsorted_out_{where}\" not implemented for '{c_name(x.dtype)}'")
    args = (sorted_sequence, input) if sorter is None else (sorted_sequence, input, sorter)
    return run(ops.searchsorted, args, (bool(right) or side == "right", bool(out_int32)), out)


@function
@signatures("""
bucketize(input: Tensor, boundaries: Tensor, *, out_int32: bool=, right: bool=)
bucketize(self: Number, boundaries: Tensor, *, out_int32: bool=, right: bool=)
""")
def bucketize(
    input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False, out: Tensor | None = None
) -> Tensor:
    """Return the index of the bucket of each value, between sorted one-dimensional `boundaries`."""
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    return searchsorted(boundaries, input, out_int32=out_int32, right=right, out=out)


@function
@signatures("""
isin(element: Number, test_elements: Tensor, *, assume_unique: bool=, invert: bool=)
isin(elements: Tensor, test_element: Number, *, assume_unique: bool=, invert: bool=)
isin(elements: Tensor, test_elements: Tensor, *, assume_unique: bool=, invert: bool=)
""")
@accepts("isin", element="elements", test_element="test_elements")
def isin(
    elements: Any, test_elements: Any, *, assume_unique: bool = False, invert: bool = False, out: Any = None
) -> Tensor:
    """Return True if each of `elements` is among `test_elements`. One of the two may be a number."""
    if not isinstance(elements, Tensor):
        elements = tensor(wide_scalar(elements), device=test_elements.device)
    if not isinstance(test_elements, Tensor):
        test_elements = tensor(wide_scalar(test_elements), device=elements.device)
    for x in (elements, test_elements):
        if x.dtype is bool_ or x.dtype.is_complex:
            raise RuntimeError(f"Unsupported input type encountered for isin(): {x.dtype.torch_name}")
    found: Tensor = run(ops.isin, (elements, test_elements), (bool(invert),), out)
    return found
