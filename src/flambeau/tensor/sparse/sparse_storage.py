"""Storages of sparse tensors, which hold tensors of indices and values, and the creation of sparse tensors from
them.
"""

from __future__ import annotations

from typing import Any, NoReturn

from flambeau.core.sparse_meta import SparseMeta
from flambeau.tape.mode import shared_mode
from flambeau.tensor.storage import first_version
from flambeau.tensor.tensor import Tensor, make, new_tensor


class SparseStorage:
    """The parts of a sparse tensor. It allocates no memory; its parts are tensors.

    Attributes:
        values: The values, (nnz, *dense sizes), after the batch dimensions of a compressed tensor.
        version: The version counter, as in `Storage`.
    """

    __slots__ = ("__weakref__", "values", "version")

    values: Tensor
    version: int

    def parts(self) -> tuple[Tensor, ...]:
        """Return the tensors that hold the data."""
        raise NotImplementedError

    def copy(self) -> SparseStorage:
        """Return another storage of the same parts."""
        raise NotImplementedError

    @property
    def context(self) -> Any:
        """Return the context of the parts' device."""
        return self.values.memory.context

    @property
    def device(self) -> Any:
        return self.values.meta.device

    def share(self) -> None:
        """Let other streams use the memory of the parts."""
        for part in self.parts():
            part.memory.share()

    def expose(self) -> NoReturn:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")

    def __getattr__(self, name: str) -> NoReturn:
        raise NotImplementedError(
            f"Cannot access storage of SparseTensorImpl: a sparse tensor has no '{name}', but its tensors of indices "
            "and values have"
        )


class CooStorage(SparseStorage):
    """Indices (sparse_dim, nnz) and values of a COO tensor.

    Attributes:
        indices: int64; each column is the place of one value.
        coalesced: True if the columns are sorted and distinct.
    """

    __slots__ = ("coalesced", "indices")

    def __init__(self, indices: Tensor, values: Tensor, coalesced: bool) -> None:
        self.indices, self.values = indices, values
        self.coalesced = coalesced
        self.version = 0 if not shared_mode.inference_blocks else first_version()

    def parts(self) -> tuple[Tensor, ...]:
        return self.indices, self.values

    def copy(self) -> CooStorage:
        return CooStorage(self.indices, self.values, self.coalesced)


class CompressedStorage(SparseStorage):
    """Indices and values of a CSR or CSC tensor.

    Attributes:
        compressed: Where each row (CSC: column) begins in `plain`, and the end: (*batch sizes, rows + 1).
        plain: The column (CSC: row) of each value: (*batch sizes, nnz).
    """

    __slots__ = ("compressed", "plain")

    def __init__(self, compressed: Tensor, plain: Tensor, values: Tensor) -> None:
        self.compressed, self.plain, self.values = compressed, plain, values
        self.version = 0 if not shared_mode.inference_blocks else first_version()

    def parts(self) -> tuple[Tensor, ...]:
        return self.compressed, self.plain, self.values

    def copy(self) -> CompressedStorage:
        return CompressedStorage(self.compressed, self.plain, self.values)


def make_sparse(meta: SparseMeta, memory: Any) -> Tensor:
    """Return a new sparse tensor over a storage. Every creation of one ends here."""
    t = new_tensor(Tensor)
    t.meta, t.memory, t.counter, t.history = meta, memory, memory, None
    t.ptr = None  # type: ignore[assignment]  # whatever computes with it raises
    return t


def make_coo(indices: Tensor, values: Tensor, shape: tuple[int, ...], coalesced: bool = False) -> Tensor:
    """Return a COO tensor over indices (sparse_dim, nnz) and values, without copying or recording them."""
    sparse_dim, nnz = indices.meta.shape
    kind = values.meta
    meta = SparseMeta.sparse_of(
        "sparse_coo", shape, sparse_dim, len(shape) - sparse_dim, kind.dtype, kind.device
    )
    return make_sparse(meta, CooStorage(detach_alias(indices), detach_alias(values), coalesced or nnz < 2))


def make_compressed(
    layout: str, compressed: Tensor, plain: Tensor, values: Tensor, shape: tuple[int, ...]
) -> Tensor:
    """Return a CSR or CSC tensor over its parts, which it does not copy, without recording."""
    kind = values.meta
    dense_dim = kind.ndim - plain.meta.ndim
    meta = SparseMeta.sparse_of(layout, shape, 2, dense_dim, kind.dtype, kind.device)
    return make_sparse(
        meta, CompressedStorage(detach_alias(compressed), detach_alias(plain), detach_alias(values))
    )


def detach_alias(t: Tensor) -> Tensor:
    """Return a tensor over the same memory without autograd history. It shares the version counter."""
    alias = make(t.meta, t.memory, t.ptr)
    alias.counter = t.counter
    return alias


def storage_of(t: Tensor) -> Any:
    """Return the `SparseStorage` of a sparse tensor."""
    return t.memory


def meta_of(t: Tensor) -> SparseMeta:
    """Return the meta of a sparse tensor."""
    meta = t.meta
    assert isinstance(meta, SparseMeta)
    return meta


def is_coo(t: Any) -> bool:
    """Return True for a COO tensor."""
    return isinstance(t, Tensor) and isinstance(t.meta, SparseMeta) and t.meta.layout == "sparse_coo"


def is_compressed(t: Any) -> bool:
    """Return True for a CSR or CSC tensor."""
    return isinstance(t, Tensor) and isinstance(t.meta, SparseMeta) and t.meta.layout != "sparse_coo"


def nnz_of(t: Tensor) -> int:
    """Return the number of stored values."""
    values = storage_of(t).values
    nnz: int = values.meta.shape[meta_of(t).batch_dim]
    return nnz
