"""Names of sparse tensors in the `torch` namespace and among tensors' methods. The code behind them is imported later.

Most programs have no sparse tensor, so `tensor/sparse` is imported when a program makes the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from flambeau.tensor.arguments.public import both, function, method

_METHODS = {
    "coalesce": "Return a COO tensor with sorted, distinct indices: itself if it is so. Values at one place add up.",
    "is_coalesced": "Return True if the indices of a COO tensor are known to be sorted and distinct.",
    "_coalesced_": "Say whether the indices of a COO tensor are sorted and distinct; nothing is checked.",
    "indices": "Return the indices (sparse_dim, nnz) of a coalesced COO tensor.",
    "values": "Return the values of a coalesced COO tensor or of a compressed one.",
    "_indices": "Return a part of a sparse tensor as it is stored.",
    "_values": "Return a part of a sparse tensor as it is stored.",
    "_nnz": "Return a part of a sparse tensor as it is stored.",
    "sparse_dim": "Return the number of dimensions that the indices count; 0 of a strided tensor.",
    "dense_dim": "Return the number of dimensions of each value; all dimensions of a strided tensor.",
    "_dimI": "Return a part of a sparse tensor as it is stored.",
    "_dimV": "Return a part of a sparse tensor as it is stored.",
    "crow_indices": "Return where each row of a CSR tensor begins among its values, and the end.",
    "col_indices": "Return the column of each value of a CSR tensor.",
    "ccol_indices": "Return where each column of a CSC tensor begins among its values, and the end.",
    "row_indices": "Return the row of each value of a CSC tensor.",
    "to_dense": "Return a strided tensor of the same elements: itself if it is strided.",
    "to_sparse": "Return a sparse tensor of the same elements: COO unless `layout` says otherwise; itself if it is so.",
    "to_sparse_coo": "Return a COO tensor of the same elements.",
    "to_sparse_csr": "Return a CSR tensor of the same elements.",
    "to_sparse_csc": "Return a CSC tensor of the same elements.",
    "to_sparse_bsr": "Raise NotSupportedError: Flambeau has no layouts of blocks.",
    "to_sparse_bsc": "Raise NotSupportedError: Flambeau has no layouts of blocks.",
    "sparse_mask": "Return the elements of this tensor at the places of a sparse tensor, in its layout.",
    "sparse_resize_": "Give a COO tensor another size; with values, its sizes may only grow.",
    "sparse_resize_and_clear_": "Give a COO tensor another size and no values.",
}
_FUNCTIONS = {
    "hspmm": "Return the product of a COO and a strided matrix as a COO tensor of its rows that are not empty.",
    "sparse_coo_tensor": "Return a tensor in COO layout of indices (sparse_dim, nnz) and values (nnz, *dense sizes).",
    "sparse_csr_tensor": "Return a tensor in CSR layout: crow_indices says where each row begins among the values.",
    "sparse_csc_tensor": "Return a tensor in CSC layout: ccol_indices says where each column begins among the values.",
    "sparse_compressed_tensor": "Return a tensor in the layout that `layout` names: sparse_csr or sparse_csc.",
    "sparse_bsr_tensor": "Raise NotSupportedError: Flambeau has no layouts of blocks.",
    "sparse_bsc_tensor": "Raise NotSupportedError: Flambeau has no layouts of blocks.",
}
_BOTH = {
    "smm": "Return the product of a COO and a strided matrix, in COO layout.",
    "sspaddmm": "Return beta * input + alpha * (mat1 @ mat2) in COO layout: only `mat2` is strided.",
}


def _bind(module: str, summaries: dict[str, str], bind: Callable[[Any], Any]) -> None:
    """Bind public names that import the code behind them when they are called."""
    for name, summary in summaries.items():
        bind(_forward(module, name, summary))


def _forward(module: str, name: str, summary: str) -> Any:
    def forward(*args: Any, **given: Any) -> Any:
        return getattr(import_module(module), name)(*args, **given)

    forward.__name__ = forward.__qualname__ = name
    forward.__doc__ = summary
    return forward


_METHODS_MODULE, _CONSTRUCTION = "flambeau.tensor.sparse.methods", "flambeau.tensor.sparse.construction"
_bind(_METHODS_MODULE, _METHODS, method)
_bind(_METHODS_MODULE, _BOTH, both)
_bind(_METHODS_MODULE, {"hspmm": _FUNCTIONS.pop("hspmm")}, function)
_bind(_CONSTRUCTION, _FUNCTIONS, function)
