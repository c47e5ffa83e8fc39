"""Operators of strided tensors whose gradients are sparse: `Embedding(sparse=True)`, `gather(sparse_grad=True)`."""

from __future__ import annotations

from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.layout import contiguous_strides, wrap_dim
from flambeau.ops.index.embedding import embedding
from flambeau.ops.index.scattering import gather
from flambeau.ops.op import Derivative
from flambeau.tape.mode import recording
from flambeau.tensor import layout_functions
from flambeau.tensor.arguments.public import functions as torch
from flambeau.tensor.sparse.primitives import build


def _rows_named(grad: Any, b: Any, metas: Any, params: Any) -> Any:
    """Return the gradients of the rows that an index selected, each with its index: one sparse dimension."""
    padding, by_frequency = params
    if by_frequency:
        raise RuntimeError("embedding_backward: scale_grad_by_freq not supported with sparse gradients")
    b = b.to(dtypes.int64)
    if padding is not None:
        kept = (b != padding).nonzero().view(-1)
        b, grad = b.index_select(0, kept), grad.index_select(0, kept)
    return build(b.view(1, -1), grad, metas[0].shape)


def _elements_named(grad: Any, b: Any, metas: Any, params: Any) -> Any:
    """Return the gradients of the elements that were gathered, each with its indices."""
    shape = b.meta.shape
    if not metas[0].ndim:
        return grad
    dim = wrap_dim(params[0], metas[0].ndim)
    with recording(False):
        places = torch["arange"](b.numel(), device=b.meta.device)
        rows = [places // step % size for size, step in zip(shape, contiguous_strides(shape), strict=True)]
        rows[dim] = b.reshape(-1).to(dtypes.int64)
        indices = torch["stack"](rows)
    return build(indices, grad.reshape(-1), metas[0].shape)


layout_functions.functions["sparse_embedding"] = embedding.with_(derivative=Derivative(_rows_named))
layout_functions.functions["sparse_gather"] = gather.with_(derivative=Derivative(_elements_named))
