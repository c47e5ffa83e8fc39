"""`SparseMeta`: everything about a sparse tensor except its indices and values. Interned, like `Meta`.

# Note [Sparse tensors]
A sparse tensor is a `Tensor` whose storage holds tensors: indices and values. Its meta is a `SparseMeta`, for which
plans of calls never exist. A call with a sparse operand therefore misses the plan cache, and the slow path uses the
tables of `tensor/layout_functions.py`; an operator without an entry raises. Dense calls pay nothing, and no kernel
reads a sparse tensor's memory, because a sparse tensor has neither an address nor strides.
"""

from __future__ import annotations

from typing import ClassVar, NoReturn
from weakref import WeakValueDictionary

from flambeau.core.layout import numel
from flambeau.core.meta import Device, DType, Meta

_interned: WeakValueDictionary[tuple[object, ...], SparseMeta] = WeakValueDictionary()

# layout -> its name in messages and in `Tensor.type()`
LAYOUT_NAMES = {"sparse_coo": "Sparse", "sparse_csr": "SparseCsr", "sparse_csc": "SparseCsc"}


class SparseMeta(Meta):
    """Shape, layout, dtype and device of a sparse tensor. Use `SparseMeta.sparse_of` to create one.

    Attributes:
        layout: The layout's name: "sparse_coo", "sparse_csr" or "sparse_csc".
        sparse_dim: Number of dimensions that the indices cover, followed by `dense_dim` dimensions of the values.
        dense_dim: Number of dimensions of each value.
        batch_dim: Number of dimensions of a compressed tensor before the sparse ones.
    """

    __slots__ = ("batch_dim", "dense_dim", "layout", "sparse_dim")

    sparse: ClassVar[bool] = True
    layout: str
    sparse_dim: int
    dense_dim: int
    batch_dim: int

    @staticmethod
    def sparse_of(
        layout: str, shape: tuple[int, ...], sparse_dim: int, dense_dim: int, dtype: DType, device: Device
    ) -> SparseMeta:
        key = (layout, shape, sparse_dim, dense_dim, dtype, device)
        found = _interned.get(key)
        return _interned.setdefault(key, _make(*key)) if found is None else found

    def with_(
        self,
        shape: tuple[int, ...] | None = None,
        strides: tuple[int, ...] | None = None,
        dtype: DType | None = None,
        device: Device | None = None,
    ) -> SparseMeta:
        if strides is not None:
            self.refuse_strides()
        return SparseMeta.sparse_of(
            self.layout,
            self.shape if shape is None else shape,
            self.sparse_dim,
            self.dense_dim,
            self.dtype if dtype is None else dtype,
            self.device if device is None else device,
        )

    def refuse_strides(self) -> NoReturn:
        raise RuntimeError(
            f"{self.layout} tensors do not have strides: the elements lie in the tensors of indices and values. Use "
            "to_dense() first."
        )

    @property
    def strides(self) -> NoReturn:  # type: ignore[override]
        self.refuse_strides()

    @property
    def byte_strides(self) -> NoReturn:  # type: ignore[override]
        self.refuse_strides()

    @property
    def span(self) -> NoReturn:
        self.refuse_strides()

    @property
    def nbytes(self) -> NoReturn:
        raise RuntimeError(
            "nbytes is not defined for sparse tensors.  If you want the size of the constituent tensors, add the "
            "nbytes of the indices and values.  If you want the size of the  equivalent dense tensor, multiply numel() "
            "by element_size()"
        )

    def __repr__(self) -> str:
        return f"SparseMeta({self.layout}, {self.shape}, {self.sparse_dim}, {self.dtype}, {self.device})"


def _make(
    layout: str, shape: tuple[int, ...], sparse_dim: int, dense_dim: int, dtype: DType, device: Device
) -> SparseMeta:
    meta: SparseMeta = object.__new__(SparseMeta)
    meta.layout, meta.sparse_dim, meta.dense_dim = layout, sparse_dim, dense_dim
    meta.batch_dim = len(shape) - sparse_dim - dense_dim
    meta.shape, meta.dtype, meta.device = shape, dtype, device
    meta.ndim, meta.numel, meta.itemsize = len(shape), numel(shape), dtype.itemsize
    if meta.numel > 2**63 - 1:
        raise RuntimeError("numel: integer multiplication overflow")
    meta.plain = True  # a copy has the strides of a new tensor of the layout
    meta.contiguous = meta.channels_last = False
    return meta
