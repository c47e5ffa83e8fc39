"""Sparse tensors from indices and values, the checks of their invariants, and conversions between layouts.

The signatures in tensor/functions/sparse_names.py have the docstrings of public functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.dtype import INTEGRAL
from flambeau.core.errors import NotSupportedError, argument_type, type_name
from flambeau.core.flags import flags
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.options import checked_shape, default_device, kind_of, new_leaf, place
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.arguments.typing import layout as layout_type
from flambeau.tensor.sparse.primitives import (
    build,
    build_compressed,
    flatten,
    to_compressed,
    to_coo,
    to_dense,
    to_sparse_coo,
)
from flambeau.tensor.sparse.sparse_storage import make_coo, meta_of
from flambeau.tensor.tensor import Tensor

BLOCKED = ("sparse_bsr", "sparse_bsc")


class Invariants:
    """The switch that enables checks of new sparse tensors, for all threads."""

    enabled = False


def refuse_blocks(name: str) -> NotSupportedError:
    """Return the error of the layouts that store blocks."""
    return NotSupportedError(
        f"{name}: Flambeau has the sparse layouts COO, CSR and CSC, but not those of blocks (BSR, BSC). Use "
        "torch.sparse_csr with the elements of the blocks."
    )


# -- arguments --------------------------------------------------------------------------------------------------


def _tensor_of(data: Any, name: str, position: int, argument: str, **wanted: Any) -> Tensor:
    """Return an argument as a tensor: itself, or one of its numbers."""
    if isinstance(data, Tensor):
        return data.to(**wanted) if wanted else data
    if data is None or isinstance(data, str):
        raise TypeError(argument_type(name, argument, position, "Tensor", data))
    return torch["tensor"](data, **wanted)


def _values_of_call(values: Any, function: str, position: int, dtype: Any, device: Any) -> Tensor:
    wanted: dict[str, Any] = {}
    if dtype is not None:
        wanted["dtype"] = kind_of(dtype, function)
    if device is not None:
        wanted["device"] = place(device)
    return _tensor_of(values, function, position, "values", **wanted)


def _indices_of_call(indices: Any, function: str, position: int, name: str, values: Tensor) -> Tensor:
    made = _tensor_of(indices, function, position, name)
    with recording(False):
        return made.detach().to(device=values.meta.device)


# -- COO --------------------------------------------------------------------------------------------------------


def sparse_coo_tensor(
    indices: Any, values: Any = None, size: Any = None, *, dtype: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False, check_invariants: bool | None = None,
    is_coalesced: bool | None = None, layout: Any = None,
) -> Tensor:  # fmt: skip
    if layout is not None and layout is not torch["sparse_coo"]:
        raise TypeError(f"sparse_coo_tensor(): argument 'layout' must be torch.sparse_coo, not {layout}")
    if pin_memory:
        raise NotSupportedError("sparse_coo_tensor: pin_memory: Flambeau does not pin sparse tensors")
    if values is None:
        sizes = checked_shape(size if indices is None else indices, "sparse_coo_tensor")
        kind = flags.default_dtype if dtype is None else kind_of(dtype, "sparse_coo_tensor")
        where = default_device() if device is None else place(device)
        return new_leaf(empty_coo(sizes, kind, where), requires_grad)
    held = _values_of_call(values, "sparse_coo_tensor", 2, dtype, device)
    places = _indices_of_call(indices, "sparse_coo_tensor", 1, "indices", held)
    if places.meta.sparse or held.meta.sparse:
        raise RuntimeError("expected indices and values to be dense, but got a sparse tensor")
    if not held.meta.ndim:
        held = held.view(1)
    if places.meta.ndim == 1 and not places.meta.numel:
        places = places.view(0, 0) if size is None else places.view(0, held.meta.shape[0])
    if places.meta.ndim != 2:
        raise RuntimeError(f"indices must be sparse_dim x nnz, but got: {list(places.meta.shape)}")
    if places.meta.dtype is not dtypes.int64:
        places = places.to(dtypes.int64)
    sparse_dim, nnz = places.meta.shape
    if held.meta.shape[0] != nnz:
        raise RuntimeError(
            f"indices and values must have same nnz, but got nnz from indices: {nnz}, nnz from values: "
            f"{held.meta.shape[0]}"
        )
    if size is None:
        sizes = (*_sizes_of(places), *held.meta.shape[1:])
    else:
        sizes = checked_shape(tuple(size), "sparse_coo_tensor")
        _require_dims(sizes, sparse_dim, held)
    checked = Invariants.enabled if check_invariants is None else check_invariants
    if checked:
        _check_coo(places, sizes, bool(is_coalesced))
    made = build(places, held, sizes, coalesced=bool(is_coalesced))
    return new_leaf(made, requires_grad)


def empty_coo(sizes: tuple[int, ...], kind: Any, where: Any) -> Tensor:
    """Return a COO tensor without values, all of whose dimensions are sparse."""
    indices = torch["empty"]((len(sizes), 0), dtype=dtypes.int64, device=where)
    return make_coo(indices, torch["empty"]((0,), dtype=kind, device=where), sizes, coalesced=True)


def _sizes_of(places: Tensor) -> tuple[int, ...]:
    """Return the smallest sizes that contain all indices. Raises RuntimeError for a negative index."""
    sparse_dim, nnz = places.meta.shape
    if not sparse_dim:
        return ()
    if not nnz:
        return (0,) * sparse_dim
    for dim, least in enumerate(places.amin(1).tolist()):
        if least < 0:
            raise RuntimeError(f"found negative index {least} for dim {dim}")
    return tuple([most + 1 for most in places.amax(1).tolist()])


def _require_dims(sizes: tuple[int, ...], sparse_dim: int, values: Tensor) -> None:
    dense_dim = values.meta.ndim - 1
    if len(sizes) != sparse_dim + dense_dim:
        raise RuntimeError(
            f"number of dimensions must be sparse_dim ({sparse_dim}) + dense_dim ({dense_dim}), but got {len(sizes)}"
        )
    expected = sizes[sparse_dim:]
    if values.meta.shape[1:] != expected:
        raise RuntimeError(
            f"values has incorrect size, expected {[values.meta.shape[0], *expected]}, got {list(values.meta.shape)}"
        )


def _check_coo(places: Any, sizes: tuple[int, ...], is_coalesced: bool) -> None:
    if not places.meta.numel:
        return
    pairs = zip(places.amin(1).tolist(), places.amax(1).tolist(), strict=True)
    for dim, (least, most) in enumerate(pairs):
        if least < 0:
            raise RuntimeError(f"found negative index {least} for dim {dim}")
        if most >= sizes[dim]:
            raise RuntimeError(
                f"size is inconsistent with indices: for dim {dim}, size is {sizes[dim]} but found index {most}"
            )
    if is_coalesced:
        flat = flatten(places, sizes[: places.meta.shape[0]])
        if not bool((flat[1:] > flat[:-1]).all()):
            raise RuntimeError(
                "cannot set is_coalesced to true if indices correspond to uncoalesced COO tensor"
            )


# -- CSR and CSC --------------------------------------------------------------------------------------------------

_NAMES = {"sparse_csr": ("crow_indices", "col_indices"), "sparse_csc": ("ccol_indices", "row_indices")}


def _build_parts(
    name: str, layout: str, compressed: Any, plain: Any, values: Any, size: Any, dtype: Any, device: Any,
    pin_memory: bool, requires_grad: bool, check_invariants: bool | None,
) -> Tensor:  # fmt: skip
    if pin_memory:
        raise NotSupportedError(f"{name}: pin_memory: Flambeau does not pin sparse tensors")
    held = _values_of_call(values, name, 3, dtype, device)
    starts = _indices_of_call(compressed, name, 1, _NAMES[layout][0], held)
    places = _indices_of_call(plain, name, 2, _NAMES[layout][1], held)
    _require_parts(layout, starts, places, held)
    if size is None:
        lines = starts.meta.shape[-1] - 1
        across = int(places.max()) + 1 if places.meta.numel else 0
        matrix = (lines, across) if layout == "sparse_csr" else (across, lines)
        sizes = (*starts.meta.shape[:-1], *matrix, *held.meta.shape[places.meta.ndim :])
    else:
        sizes = checked_shape(tuple(size), name)
    checked = Invariants.enabled if check_invariants is None else check_invariants
    if checked:
        _check_compressed(layout, starts, places, held, sizes)
    made = build_compressed(layout, starts, places, held, sizes)
    return new_leaf(made, requires_grad)


def _require_parts(layout: str, starts: Tensor, places: Tensor, values: Tensor) -> None:
    first, second = _NAMES[layout]
    for name, each in ((first, starts), (second, places)):
        if each.meta.ndim < 1:
            raise RuntimeError(f"{name} must have dimensionality >= 1 but got {each.meta.ndim}")
        if each.meta.dtype not in (dtypes.int32, dtypes.int64):
            raise RuntimeError(
                f"{first} and {second} must be an int32 or int64 type, but got {each.meta.dtype}"
            )
    if starts.meta.dtype is not places.meta.dtype:
        raise RuntimeError(
            f"{first} and {second} must have the same dtype, bot got {starts.meta.dtype.torch_name} and "
            f"{places.meta.dtype.torch_name}, respectively"
        )
    if starts.meta.ndim != places.meta.ndim:
        raise RuntimeError(
            f"number of dimensions of {first} and {second} must be the same but got {starts.meta.ndim} and "
            f"{places.meta.ndim}, respectively"
        )
    if values.meta.ndim < places.meta.ndim or values.meta.shape[: places.meta.ndim] != places.meta.shape:
        raise RuntimeError(
            f"{second} and values must have the same number of elements, but got {second}.numel(): "
            f"{places.meta.numel}, values.numel(): {values.meta.numel}"
        )


def _check_compressed(layout: str, starts: Any, places: Any, values: Tensor, sizes: tuple[int, ...]) -> None:
    """Raise RuntimeError where an invariant of compressed tensors does not hold."""
    first, second = _NAMES[layout]
    batch = starts.meta.ndim - 1
    rows, columns = sizes[batch : batch + 2] if layout == "sparse_csr" else sizes[batch : batch + 2][::-1]
    nnz = places.meta.shape[-1]
    if starts.meta.shape[-1] != rows + 1:
        raise RuntimeError(f"{first}.shape[-1] must be equal to {rows + 1}, but got {starts.meta.shape[-1]}")
    if not bool((starts[..., 0] == 0).all()):
        raise RuntimeError(f"`{first}[..., 0] == 0` is not satisfied.")
    if not bool((starts[..., -1] == nnz).all()):
        raise RuntimeError(f"`{first}[..., -1] == nnz` is not satisfied.")
    steps = starts[..., 1:] - starts[..., :-1]
    if steps.meta.numel and not bool(((steps >= 0) & (steps <= columns)).all()):
        raise RuntimeError(f"`0 <= {first}[..., 1:] - {first}[..., :-1] <= {columns}` is not satisfied.")
    if places.meta.numel and not bool(((places >= 0) & (places < columns)).all()):
        raise RuntimeError(f"`0 <= {second} < {columns}` is not satisfied.")


def sparse_csr_tensor(
    crow_indices: Any, col_indices: Any, values: Any, size: Any = None, *, dtype: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False, check_invariants: bool | None = None, layout: Any = None,
) -> Tensor:  # fmt: skip
    return _build_parts(
        "sparse_csr_tensor", "sparse_csr", crow_indices, col_indices, values, size, dtype, device, pin_memory,
        requires_grad, check_invariants,
    )  # fmt: skip


def sparse_csc_tensor(
    ccol_indices: Any, row_indices: Any, values: Any, size: Any = None, *, dtype: Any = None, device: Any = None,
    pin_memory: bool = False, requires_grad: bool = False, check_invariants: bool | None = None, layout: Any = None,
) -> Tensor:  # fmt: skip
    return _build_parts(
        "sparse_csc_tensor", "sparse_csc", ccol_indices, row_indices, values, size, dtype, device, pin_memory,
        requires_grad, check_invariants,
    )  # fmt: skip


def sparse_compressed_tensor(
    compressed_indices: Any, plain_indices: Any, values: Any, size: Any = None, *, dtype: Any = None,
    layout: Any = None, device: Any = None, pin_memory: bool = False, requires_grad: bool = False,
    check_invariants: bool | None = None,
) -> Tensor:  # fmt: skip
    name = getattr(layout, "name", "")
    if name in BLOCKED:
        raise refuse_blocks(f"sparse_compressed_tensor(layout=torch.{name})")
    if name not in _NAMES:
        raise RuntimeError(f"expected sparse compressed layout but got {layout}")
    return _build_parts(
        "sparse_compressed_tensor", name, compressed_indices, plain_indices, values, size, dtype, device, pin_memory,
        requires_grad, check_invariants,
    )  # fmt: skip


def sparse_bsr_tensor(*args: Any, **given: Any) -> Tensor:
    raise refuse_blocks("sparse_bsr_tensor")


def sparse_bsc_tensor(*args: Any, **given: Any) -> Tensor:
    raise refuse_blocks("sparse_bsc_tensor")


class check_sparse_tensor_invariants:
    """A context manager and decorator under which new sparse tensors are checked, or, with `enable=False`, not.

    Args:
        enable: True if they are checked.

    Example:
        >>> with torch.sparse.check_sparse_tensor_invariants():
        ...     torch.sparse_coo_tensor([[5]], [1.0], (2,))  # raises RuntimeError
    """

    @staticmethod
    def is_enabled() -> bool:
        """Return True if new sparse tensors are checked."""
        return Invariants.enabled

    @staticmethod
    def enable() -> None:
        """Check new sparse tensors from now on."""
        Invariants.enabled = True

    @staticmethod
    def disable() -> None:
        """Stop checking new sparse tensors, unless a call asks for it."""
        Invariants.enabled = False

    def __init__(self, enable: bool = True) -> None:
        self.state = enable
        self.saved_state: bool | None = None

    def __enter__(self) -> None:
        if self.saved_state is not None:
            raise RuntimeError(
                "This context manager instance is already activated. Use a different context manager instance for "
                "context nesting."
            )
        self.saved_state = Invariants.enabled
        Invariants.enabled = self.state

    def __exit__(self, *_: object) -> None:
        assert self.saved_state is not None
        Invariants.enabled, self.saved_state = self.saved_state, None

    def __call__(self, mth: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(mth)
        def call_checked(*args: Any, **kwargs: Any) -> Any:
            with type(self)(self.state):
                return mth(*args, **kwargs)

        return call_checked


# -- conversions --------------------------------------------------------------------------------------------------


def convert(t: Tensor, layout: str, sparse_dim: int | None = None) -> Tensor:
    """Return a tensor in another layout, recorded: itself if it has that layout already."""
    if layout in BLOCKED:
        raise refuse_blocks(f"to_sparse(layout=torch.{layout})")
    if t.meta.sparse and meta_of(t).layout == layout:
        return t
    if layout == "strided":
        return to_dense(t) if t.meta.sparse else t
    if layout == "sparse_coo":
        return (
            to_coo(t)
            if t.meta.sparse
            else to_sparse_coo(t, t.meta.ndim if sparse_dim is None else sparse_dim)
        )
    if t.meta.ndim > 2 and sparse_dim is None and not t.meta.sparse:
        raise NotSupportedError(
            f"to_sparse(layout=torch.{layout}): Flambeau converts matrices; a strided tensor of sizes "
            f"{list(t.meta.shape)} would be a batch of them. Give dense_dim for matrices of vectors."
        )
    coo = to_coo(t) if t.meta.sparse else to_sparse_coo(t, 2 if sparse_dim is None else sparse_dim)
    if coo.meta.ndim < 2 or meta_of(coo).sparse_dim != 2:
        raise RuntimeError(
            f"Conversion to torch.{layout} takes 2D tensors with two sparse dimensions, but got a tensor of sizes "
            f"{list(t.meta.shape)}"
        )
    return to_compressed(coo, layout)


def layout_name(layout: Any) -> str:
    """Return the name of a layout argument.

    Raises:
        TypeError: If it is not a layout.
    """
    if not isinstance(layout, layout_type):
        raise TypeError(f"to_sparse(): argument 'layout' must be torch.layout, not {type_name(layout)}")
    return layout.name


def spdiags(diagonals: Tensor, offsets: Tensor, shape: Sequence[int], layout: Any = None) -> Tensor:
    """Return a sparse matrix with these rows as its diagonals at these offsets."""
    diagonals = diagonals.unsqueeze(0) if diagonals.meta.ndim == 1 else diagonals
    offsets = offsets.view(1) if offsets.meta.ndim == 0 else offsets
    _check_diagonals(diagonals, offsets, shape)
    rows, columns = int(shape[0]), int(shape[1])
    wide = diagonals.meta.shape[1]
    with recording(False):
        column = torch["arange"](wide, device=diagonals.meta.device).expand(diagonals.meta.shape)
        row = column - offsets.to(dtypes.int64).unsqueeze(1)
        kept = ((row >= 0) & (row < rows) & (column < columns)).reshape(-1).nonzero().view(-1)
        indices = torch["stack"]([row.reshape(-1), column.reshape(-1)]).index_select(1, kept)
    made = build(indices, diagonals.reshape(-1).index_select(0, kept), (rows, columns))
    if layout is None or layout is torch["sparse_coo"]:
        return made
    return convert(made, layout_name(layout))


def _check_diagonals(diagonals: Tensor, offsets: Tensor, shape: Sequence[int]) -> None:
    if diagonals.meta.ndim != 2:
        raise RuntimeError("Diagonals must be vector or matrix")
    if len(shape) != 2:
        raise RuntimeError("Output shape must be 2d")
    if offsets.meta.ndim != 1:
        raise RuntimeError("Offsets must be scalar or vector")
    if offsets.meta.dtype.category != INTEGRAL:
        raise RuntimeError(f"Offset Tensor must have dtype Long but got {offsets.meta.dtype.torch_name}")
    if offsets.meta.shape[0] != diagonals.meta.shape[0]:
        raise RuntimeError(
            f"Number of diagonals ({diagonals.meta.shape[0]}) does not match the number of offsets "
            f"({offsets.meta.shape[0]})"
        )
    if len(set(offsets.tolist())) != offsets.meta.shape[0]:
        raise RuntimeError("Offset tensor contains duplicate values")
