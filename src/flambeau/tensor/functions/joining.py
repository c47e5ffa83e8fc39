"""Joining, repeating and rearranging: cat, stack, repeat, flip, roll, triangles, diagonals, grids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.callsite import warn_program
from flambeau.core.device import META
from flambeau.core.dtype import dtype
from flambeau.core.layout import plain_dim, wrap_dim
from flambeau.core.meta import Meta
from flambeau.ops import view as records
from flambeau.ops.pointwise.dtype_promotion import result_type
from flambeau.ops.shape import joining as ops
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.arg_errors import IntOrTuple, IntTuple, Number, TensorList
from flambeau.tensor.arguments.integers import as_int
from flambeau.tensor.arguments.options import place, refuse
from flambeau.tensor.arguments.public import alias, both, function, functions, method
from flambeau.tensor.arguments.typing import contiguous_format, layout, strided
from flambeau.tensor.autograd.autograd_meta import run
from flambeau.tensor.call import call, call_into, explain_shortage
from flambeau.tensor.exchange import data
from flambeau.tensor.exchange.transfer import new_filled
from flambeau.tensor.functions.indexing import index_select, without_repeats
from flambeau.tensor.functions.views import diagonal, given_ints, ints, reshape, tensors_of, unsqueeze
from flambeau.tensor.out_argument import require_dtype
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor

# -- cat and stack --------------------------------------------------------------------------------------


def _cat(tensors: TensorList, dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Return the concatenation of the tensors along `dim`, in their common dtype."""
    listed = tensors_of(tensors, "cat")
    if not listed:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    result: Tensor
    if dim.__class__ is not int:
        dim = plain_dim(dim)
    if out is None:
        result = call(ops.cat, listed, (dim,))
        return result
    kind = ops.cat.rule([t.meta for t in listed], (dim,)).outputs[0].dtype
    if not dtypes.can_cast(kind, out.meta.dtype):
        raise TypeError(
            f"torch.cat(): input types can't be cast to the desired output type {out.meta.dtype.torch_name}"
        )
    result = call_into(ops.cat, (out,), listed, (dim,), resize=True)
    return result


for _name in ("cat", "concat", "concatenate"):
    alias(_name, _cat, as_method=False)


@function
def stack(tensors: TensorList, dim: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Return tensors of one shape along a new dimension."""
    listed = tensors_of(tensors, "stack")
    if not listed:
        raise RuntimeError("stack expects a non-empty TensorList")
    d = wrap_dim(dim, listed[0].meta.ndim + 1)
    for i, t in enumerate(listed):
        if t.meta.shape != listed[0].meta.shape:
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(listed[0].meta.shape)} at entry "
                f"0 and {list(t.meta.shape)} at entry {i}"
            )
    if interception.count and out is None and dispatch.is_shown(listed):
        return dispatch.compose("stack", listed, d)
    parts = [unsqueeze(t, d) for t in listed]
    if out is not None or d == listed[0].meta.ndim:
        return _cat(parts, d, out=out)
    result: Tensor = call(ops.cat, parts, (d, "stack"))
    return result


@function
def hstack(tensors: TensorList, *, out: Tensor | None = None) -> Tensor:
    """Join tensors along the columns: dimension 1, or 0 for vectors."""
    listed = [_atleast(t, 1) for t in _some(tensors, "hstack")]
    return _cat(listed, 0 if listed[0].meta.ndim == 1 else 1, out=out)


@function
def vstack(tensors: TensorList, *, out: Tensor | None = None) -> Tensor:
    """Join tensors along the rows; vectors are rows."""
    return _cat([_atleast(t, 2) for t in _some(tensors, "vstack")], 0, out=out)


alias("row_stack", vstack, as_method=False)


@function
def dstack(tensors: TensorList, *, out: Tensor | None = None) -> Tensor:
    """Join tensors along dimension 2."""
    return _cat([_atleast(t, 3) for t in _some(tensors, "dstack")], 2, out=out)


@function
def column_stack(tensors: TensorList, *, out: Tensor | None = None) -> Tensor:
    """Join tensors along the columns; vectors are columns."""
    listed = _some(tensors, "column_stack")
    columns = [reshape(t, (t.meta.numel, 1)) if t.meta.ndim <= 1 else t for t in listed]
    return hstack(columns, out=out)


def _some(tensors: Any, name: str) -> tuple[Tensor, ...]:
    listed = tensors_of(tensors, name)
    if not listed:
        raise RuntimeError(f"{name} expects a non-empty TensorList")
    return listed


def _atleast(t: Tensor, ndim: int) -> Tensor:
    """Return `t` with leading dimensions of size 1 added; for a matrix, the third dimension is added at the end."""
    have, shape = t.meta.ndim, t.meta.shape
    if have >= ndim:
        return t
    if ndim == 3:
        shape = (1, shape[0], 1) if have == 1 else (*shape, *[1] * (3 - have))
    else:
        shape = (*[1] * (ndim - have), *shape)
    return reshape(t, shape)


def _each(tensors: tuple[Any, ...], ndim: int, name: str) -> Any:
    if len(tensors) == 1 and isinstance(tensors[0], Tensor):
        return _atleast(tensors[0], ndim)
    listed = tensors_of(tensors[0] if len(tensors) == 1 else tensors, name)
    return tuple([_atleast(t, ndim) for t in listed])


@function
def atleast_1d(*tensors: Any) -> Any:
    """Return each tensor with at least one dimension."""
    return _each(tensors, 1, "atleast_1d")


@function
def atleast_2d(*tensors: Any) -> Any:
    """Return each tensor with at least two dimensions."""
    return _each(tensors, 2, "atleast_2d")


@function
def atleast_3d(*tensors: Any) -> Any:
    """Return each tensor with at least three dimensions."""
    return _each(tensors, 3, "atleast_3d")


@function
def block_diag(*tensors: Tensor) -> Tensor:
    """Return the tensors as blocks along the diagonal of a matrix of zeros."""
    blocks, given = [], tensors_of(tensors, "block_diag")
    for i, t in enumerate(given):
        if t.meta.ndim > 2:
            raise RuntimeError(
                "torch.block_diag: Input tensors must have 2 or fewer dimensions. "
                f"Input {i} has {t.meta.ndim} dimensions"
            )
        blocks.append(_atleast(t, 2))
    if not blocks:
        empty: Tensor = functions["empty"](1, 0)
        return empty
    kind = result_type(
        [t.meta for t in given], blocks[0].meta.dtype
    )  # not of the blocks: 0-dim tensors weigh less
    rows, columns = (sum(b.meta.shape[d] for b in blocks) for d in (0, 1))
    result = _zeros((rows, columns), kind, blocks[0])
    row = column = 0
    for b in blocks:
        height, width = b.meta.shape
        result[row : row + height, column : column + width] = b
        row, column = row + height, column + width
    return result


def _zeros(shape: tuple[int, ...], kind: dtype, like: Tensor) -> Tensor:
    return new_filled(Meta.contiguous_of(shape, kind, like.meta.device), 0)


# -- repeats --------------------------------------------------------------------------------------------


@method
@signatures("Tensor.repeat(repeats: IntTuple)", shown="Tensor.repeat(*repeats: int)")
def repeat(self: Tensor, *sizes: Any, repeats: Any = None) -> Tensor:
    """Return the tensor repeated the given number of times along each dimension. Extra numbers add leading
    dimensions.
    """
    if not sizes and repeats is None:
        raise TypeError('repeat() missing 1 required positional arguments: "repeats"')
    times = ints(sizes if repeats is None else (repeats,), "repeat", "repeats")
    lead = len(times) - self.meta.ndim
    if lead < 0:
        raise RuntimeError(
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor"
        )
    shape = (*[1] * lead, *self.meta.shape)
    full = tuple([t * n for t, n in zip(times, shape, strict=True)])
    if any(t < 0 for t in times):
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(full)}: {list(full)}")
    if interception.count and dispatch.is_shown((self,)):
        return dispatch.compose("repeat", self, times)
    pairs = tuple(itertools.chain.from_iterable(zip(times, shape, strict=True)))
    spread = reshape(self, tuple(itertools.chain.from_iterable((1, n) for n in shape)))
    return reshape(run(records.expand, spread, pairs).clone(memory_format=contiguous_format), full)


@both
@signatures(
    "tile(input: Tensor, dims: IntTuple)",
    shown="""
tile(input: Tensor, dims: IntTuple)
Tensor.tile(*dims: int)
""",
)
def tile(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """Return `repeat`, with 1 for leading dimensions that `dims` lacks."""
    times = given_ints(args, dims, "tile", "dims")
    return repeat(input, (*[1] * (input.meta.ndim - len(times)), *times))


@signatures("""
repeat_interleave(input: Tensor, repeats: Tensor | int, dim: int | None=, *, output_size: int | None=)
repeat_interleave(repeats: Tensor, *, output_size: int | None=)
Tensor.repeat_interleave(repeats: Tensor | int, dim: int | None=, *, output_size: int | None=)
""")
def _repeat_interleave(
    input: Tensor, repeats: Any = None, dim: int | None = None, *, output_size: int | None = None
) -> Tensor:
    """Return each element, or each slice along `dim`, repeated. With only an argument of repeats, return the indices.

    A tensor of repeats makes the host wait unless `output_size` has their sum.
    """
    if repeats is None:
        return _places(input, output_size)
    if dim is None:
        input, dim = reshape(input, (-1,)), 0
    d = wrap_dim(dim, input.meta.ndim)
    if not isinstance(repeats, Tensor):
        times = as_int(repeats)
        if times < 0:
            raise RuntimeError("Repeats must be non-negative")
        shape = input.meta.shape
        wide = run(records.expand, unsqueeze(input, d + 1), (*shape[: d + 1], times, *shape[d + 1 :]))
        flat = (*shape[:d], shape[d] * times, *shape[d + 1 :])
        return reshape(wide.clone(memory_format=contiguous_format), flat)
    size = input.meta.shape[d]
    if repeats.meta.ndim > 1:
        raise RuntimeError("repeats must be 0-dim or 1-dim tensor")
    if repeats.meta.numel == 1:
        repeats = run(records.expand, reshape(repeats, (1,)), (size,))
    elif repeats.meta.numel != size:
        raise RuntimeError(
            "repeats must have the same size as input along dim, but got repeats.size(0) = "
            f"{repeats.meta.numel} and input.size({d}) = {size}"
        )
    return index_select(input, d, _places(repeats, output_size))


alias("repeat_interleave", _repeat_interleave)


def _places(repeats: Tensor, total: int | None) -> Tensor:
    if repeats.meta.dtype not in (dtypes.int64, dtypes.int32):
        kind = repeats.meta.dtype.torch_name
        raise NotImplementedError(f"\"repeat_interleave_cpu\" not implemented for '{kind}'")
    if repeats.meta.ndim != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if total is None:
        if repeats.meta.device is META:
            raise RuntimeError("cannot repeat_interleave a meta tensor without output_size")
        total = int(call(ops.repeats_total, (repeats,)).item())
    result: Tensor = call(ops.repeat_places, (repeats,), (total,))
    return result


# -- flip and roll --------------------------------------------------------------------------------------


@both
@signatures(
    "flip(input: Tensor, dims: IntTuple)",
    shown="""
flip(input: Tensor, dims: IntTuple)
Tensor.flip(*dims: int)
""",
)
def flip(input: Tensor, *args: Any, dims: Any = None) -> Tensor:
    """Return the order of some dimensions reversed; a copy."""
    result: Tensor = call(ops.flip, (input,), (given_ints(args, dims, "flip", "dims"),))
    return result


@both
def fliplr(input: Tensor) -> Tensor:
    """Return the columns reversed."""
    if input.meta.ndim < 2:
        raise RuntimeError("Input must be >= 2-d.")
    return flip(input, 1)


@both
def flipud(input: Tensor) -> Tensor:
    """Return the rows reversed."""
    if input.meta.ndim < 1:
        raise RuntimeError("Input must be >= 1-d.")
    return flip(input, 0)


@both
def roll(input: Tensor, shifts: IntOrTuple, dims: IntOrTuple | None = ()) -> Tensor:
    """Return elements rotated along dimensions; without dims, along the flattened tensor."""
    params = (ints((shifts,), "roll", "shifts"), ints((dims,), "roll", "dims"))
    result: Tensor = call(ops.roll, (input,), params)
    return result


@both
def rot90(input: Tensor, k: int = 1, dims: IntTuple = (0, 1)) -> Tensor:
    """Return the tensor rotated by `k` quarter turns in the plane of two dims, from the first dim towards the
    second.
    """
    given = ints((dims,), "rot90", "dims")
    if len(given) != 2:
        raise RuntimeError(f"expected total rotation dims == 2, but got dims = {len(given)}")
    if input.meta.ndim < 2:
        raise RuntimeError(f"expected total dims >= 2, but got total dims = {input.meta.ndim}")
    a, b = (wrap_dim(d, input.meta.ndim) for d in given)
    if a == b:
        raise RuntimeError(
            f"expected rotation dims to be different, but got dim0 = {given[0]} and dim1 = {given[1]}"
        )
    turns = as_int(k) % 4
    if turns == 0:
        copied: Tensor = input.clone(memory_format=contiguous_format)
        return copied
    if turns == 2:
        return flip(input, (a, b))
    return run(records.transpose, flip(input, b if turns == 1 else a), a, b)


# -- triangles and diagonals ----------------------------------------------------------------------------


def _triangle(op: Any, input: Tensor, diagonal: int, out: Tensor | None) -> Tensor:
    if out is None:
        result: Tensor = call(op, (input,), (as_int(diagonal),))
    else:
        require_dtype(input.dtype, out)
        result = call_into(op, (out,), (input,), (as_int(diagonal),), resize=True)
    return result


@both
def tril(input: Tensor, diagonal: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Return the elements on and below a diagonal; zero above."""
    return _triangle(ops.tril, input, diagonal, out)


@both
def triu(input: Tensor, diagonal: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Return the elements on and above a diagonal; zero below."""
    return _triangle(ops.triu, input, diagonal, out)


@method
def tril_(self: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle_in_place(ops.tril, self, diagonal)


@method
def triu_(self: Tensor, diagonal: int = 0) -> Tensor:
    return _triangle_in_place(ops.triu, self, diagonal)


def _triangle_in_place(op: Any, self: Tensor, diagonal: int) -> Tensor:
    """Write a triangle in place. Each matrix of a batch is written once, also where the batch is expanded."""
    batch = self.meta.strides[:-2]
    part = without_repeats(self) if 0 in batch and 0 not in self.meta.strides[-2:] else self
    call_into(op, (part,), (part,), (as_int(diagonal),))
    return self


def _indices(row: int, col: int, offset: int, kind: dtype | None, where: Any, lower: bool) -> Tensor:
    row, col, offset = as_int(row), as_int(col), as_int(offset)
    if row < 0 or col < 0:
        name, n = ("row", row) if row < 0 else ("col", col)
        raise RuntimeError(f"{name} must be non-negative, got{n}")
    if lower:
        row = row if col and row + offset > 0 else 0
    else:
        row = max(min(row, col - offset), 0)  # rows below it have no elements
    params = (row, col, offset, kind or dtypes.int64, place(where), lower)
    result: Tensor = call(ops.triangle_indices, (), params)
    return result


@function
def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: dtype | None = None, layout: layout | None = strided,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Return rows and columns (2, count) of the elements on and below a diagonal."""
    refuse(layout)
    found = _indices(row, col, offset, dtype, device, True)
    return (found.pin_memory() if pin_memory else found).requires_grad_(requires_grad)


@function
def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: dtype | None = None, layout: layout | None = strided,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Tensor:  # fmt: skip
    """Return rows and columns (2, count) of the elements on and above a diagonal."""
    refuse(layout)
    found = _indices(row, col, offset, dtype, device, False)
    return (found.pin_memory() if pin_memory else found).requires_grad_(requires_grad)


@both
def diag(input: Tensor, diagonal: int = 0, *, out: Tensor | None = None) -> Tensor:
    """Return a matrix with the vector on a diagonal; of a matrix, a copy of its diagonal."""
    if input.meta.ndim not in (1, 2):
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {input.meta.ndim}D")
    if input.meta.ndim == 2:
        result: Tensor = run(records.diagonal, input, as_int(diagonal), 0, 1).clone(
            memory_format=contiguous_format
        )
    else:
        result = diag_embed(input, diagonal)
    if out is None:
        return result
    require_dtype(input.dtype, out)
    return _cat([result], out=out)


@both
def diagflat(input: Tensor, offset: int = 0) -> Tensor:
    """Return a matrix with the flattened tensor on a diagonal."""
    return diag_embed(reshape(input, (-1,)), offset)


@both
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Return the last dimension as a diagonal of two new dimensions; zero elsewhere."""
    ndim, offset = input.meta.ndim + 1, as_int(offset)
    a, b = wrap_dim(dim1, ndim), wrap_dim(dim2, ndim)
    if a == b:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    side = input.meta.shape[-1] + abs(offset)
    shape = list(input.meta.shape[:-1])
    for d in sorted((a, b)):
        shape.insert(d, side)
    result = _zeros(tuple(shape), input.meta.dtype, input)
    diagonal(result, offset, a, b).copy_(input)
    return result


@method
def fill_diagonal_(self: Tensor, fill_value: Number, wrap: bool = False) -> Tensor:
    """Set the main diagonal; with `wrap` it restarts below in a tall matrix."""
    meta = self.meta
    if meta.ndim < 2:
        raise RuntimeError("dimensions must larger than 1")
    if meta.ndim > 2 and len(set(meta.shape)) > 1:
        raise RuntimeError("all dimensions of input must be of equal length")
    count, step = min(meta.shape), sum(meta.strides)
    run(records.as_strided, self, (count,), (step,), 0).fill_(fill_value)
    rows, columns = meta.shape[0], meta.shape[1]
    if wrap and meta.ndim == 2 and rows > columns + 1:
        below: Any = self.narrow(0, columns + 1, rows - columns - 1)
        for first in range(0, below.meta.shape[0], columns + 1):
            part = below[first : first + columns]
            diagonal(part).fill_(fill_value)
    return self


# -- grids ----------------------------------------------------------------------------------------------


@function
def meshgrid(*tensors: Any, indexing: str | None = None) -> tuple[Tensor, ...]:
    """Return vectors expanded over the grid that they span; `indexing` is "ij" (the default) or "xy"."""
    many = len(tensors) == 1 and not isinstance(tensors[0], Tensor)
    listed = list(tensors_of(tensors[0] if many else tensors, "meshgrid"))
    if indexing is None:
        warn_program(
            "torch.meshgrid: in an upcoming release, it will be required to pass the indexing argument.",
            UserWarning,
        )
    elif indexing not in ("ij", "xy"):
        raise RuntimeError(f'torch.meshgrid: indexing must be one of "xy" or "ij", but received: {indexing}')
    if not listed:
        raise RuntimeError("meshgrid expects a non-empty TensorList")
    for t in listed:
        if t.meta.ndim > 1:
            raise RuntimeError(
                f"torch.meshgrid: Expected 0D or 1D tensor in the tensor list but got: {list(t.meta.shape)}"
            )
        if t.meta.dtype is not listed[0].meta.dtype:
            raise RuntimeError("meshgrid expects all tensors to have the same dtype")
        if t.meta.device is not listed[0].meta.device:
            raise RuntimeError("meshgrid expects all tensors to have the same device")
    swap = indexing == "xy" and len(listed) >= 2
    if swap:
        listed[:2] = listed[1::-1]
    grids = _grids(listed)
    if swap:
        grids[:2] = grids[1::-1]
    return tuple(grids)


def _grids(vectors: Sequence[Tensor]) -> list[Tensor]:
    shape = tuple([v.meta.numel for v in vectors])
    grids = []
    for i, v in enumerate(vectors):
        lying = run(records.view, v, (*[1] * i, -1, *[1] * (len(shape) - i - 1)))
        grids.append(run(records.expand, lying, shape))
    return grids


@function
def cartesian_prod(*tensors: Tensor) -> Tensor:
    """Return every combination of one element of each vector: (product of lengths, number of vectors)."""
    for t in tensors:
        if t.meta.ndim != 1:
            raise RuntimeError(f"Expect a 1D vector, but got shape {list(t.meta.shape)}")
    if len(tensors) == 1:
        return tensors[0]
    return stack([reshape(g, (-1,)) for g in meshgrid(*tensors, indexing="ij")], 1)


@function
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Return every choice of `r` elements of a vector, in order: (choices, r)."""
    if input.meta.ndim != 1:
        raise RuntimeError(f"Expect a 1D vector, but got shape {list(input.meta.shape)}")
    if r < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {r}")
    if r == 0:
        return _zeros((0,), input.meta.dtype, input)
    if r > 1 << 31:
        raise RuntimeError(f"combinations(): r is too large, got {r}")
    if r > input.meta.numel and not (with_replacement and input.meta.numel):
        return _zeros((0, r), input.meta.dtype, input)  # before the grid, which has r dimensions
    try:
        chosen = _choose(input.meta.numel, r, with_replacement)
    except MemoryError as error:
        raise explain_shortage("combinations", error) from error
    places = data.tensor(chosen.reshape(-1)).to(input.meta.device)
    return reshape(index_select(input, 0, places), chosen.shape)


def _choose(numel: int, r: int, with_replacement: bool) -> Any:
    """Return the indices of all combinations, as a tensor of shape (combinations, r)."""
    if numel**r >= 1 << 48:  # NumPy's error of such sizes has another type
        raise MemoryError(f"{numel} ** {r} choices")
    grid = np.indices((numel,) * r).reshape(r, -1).T
    rising = np.diff(grid, axis=1) >= (0 if with_replacement else 1)
    return grid[rising.all(1)]


alias("combinations", combinations, as_function=False)
