"""Functions that handlers see as other overloads than Flambeau's operators would be.

Each function here replaces a public one while it is shown. It calls overloads with autograd, or shows one overload and
records it as one node (`_record`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flambeau._aten.overloads import find_overload
from flambeau.core.dtype import uint8
from flambeau.ops.op import Derivative
from flambeau.tape.mode import recording
from flambeau.tensor import dispatch
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.arguments.typing import strided
from flambeau.tensor.autograd.autograd_meta import run
from flambeau.tensor.autograd.composites import Composite
from flambeau.tensor.autograd.grad_validation import fit_gradient
from flambeau.tensor.autograd.recording import record_result
from flambeau.tensor.tensor import Tensor


def _compose(define: Callable[..., Any]) -> Callable[..., Any]:
    """Let `dispatch.compose` find a function by its name."""
    dispatch.composed[define.__name__] = define
    return define


def _aten(name: str, *args: Any, **kwargs: Any) -> Any:
    return find_overload(name)(*args, **kwargs)


def _record(
    node: Composite, inputs: Sequence[Any], params: tuple[Any, ...], name: str, *args: Any, **kwargs: Any
) -> tuple[Any, ...]:
    """Show one overload, and record its results as outputs of a node that belongs to `inputs`."""
    with recording(False):
        result = _aten(name, *args, **kwargs)
    outputs = tuple(result) if isinstance(result, tuple | list) else (result,)
    record_result(node, params, inputs, outputs)
    return outputs


# -- products -------------------------------------------------------------------------------------------------------


@_compose
def matmul(a: Tensor, b: Tensor) -> Any:
    dims = (a.dim(), b.dim())
    if dims in ((1, 1), (2, 1), (2, 2)):
        return functions[{(1, 1): "dot", (2, 1): "mv", (2, 2): "mm"}[dims]](a, b)
    if dims == (1, 2):
        return functions["mm"](a.unsqueeze(0), b).squeeze(0)
    if min(dims) == 0:
        raise RuntimeError(
            f"both arguments to matmul need to be at least 1D, but they are {dims[0]}D and {dims[1]}D"
        )
    if dims[1] <= 2 and _folds(a, b):
        return _fold(a, b)
    if dims[0] <= 2 and _folds(b.mT if dims[1] > 1 else b, a, comes_first=True):
        found = _fold(b.mT, a if dims[0] == 1 else a.t())
        return found.mT if dims[0] == 2 else found
    batch = functions["broadcast_shapes"](a.shape[:-2], b.shape[:-2])
    rows = a.unsqueeze(0) if dims[0] == 1 else a
    columns = b.unsqueeze(-1) if dims[1] == 1 else b
    count = math.prod(batch)
    left = rows.expand(*batch, *rows.shape[-2:]).reshape(count, *rows.shape[-2:])
    right = columns.expand(*batch, *columns.shape[-2:]).reshape(count, *columns.shape[-2:])
    shape = (*batch, *rows.shape[-2:-1][: dims[0] > 1], *columns.shape[-1:][: dims[1] > 1])
    return _aten("_unsafe_view", functions["bmm"](left, right), list(shape))


def _folds(wide: Tensor, narrow: Tensor, comes_first: bool = False) -> bool:
    """Return True if PyTorch computes a batched product as that of one tall matrix.

    With `comes_first`, `narrow`, the operand without a batch, is the first factor.
    """
    if wide.dim() < 3 or narrow.dim() > 2:
        return False
    if narrow.requires_grad:
        return True
    if comes_first and narrow.dim() == 2:
        return False
    if wide.numel() == 0:
        return True
    strides, shape = wide.stride(), wide.shape
    return all(strides[i] == strides[i + 1] * shape[i + 1] for i in range(wide.dim() - 2))


def _fold(wide: Tensor, narrow: Tensor) -> Any:
    flat = wide.reshape(math.prod(wide.shape[:-1]), wide.shape[-1])
    if narrow.dim() == 1:
        return _aten("_unsafe_view", functions["mv"](flat, narrow), list(wide.shape[:-1]))
    return _aten("_unsafe_view", functions["mm"](flat, narrow), [*wide.shape[:-1], narrow.shape[1]])


# -- normalization --------------------------------------------------------------------------------------------------


def _batch_norm_back(
    grad: Any, a: Any, b: Any, d: Any, e: Any, out1: Any, out2: Any, params: Any, needs: Any
) -> Any:
    training, eps = params
    mask = [bool(n) for n in needs[:3]]
    by_x, by_weight, by_bias = _aten(
        "native_batch_norm_backward", grad, a, b, d, e, out1, out2, training, eps, mask
    )
    return [by_x, by_weight, by_bias, None, None]


_BATCH_NORM = Composite("native_batch_norm", Derivative(whole=_batch_norm_back, outputs=1))


@_compose
def batch_norm(
    x: Tensor, mean: Any, variance: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> Any:
    with recording(False):
        _aten("empty.memory_format", [0], dtype=uint8, layout=strided, device=x.device)
    inputs = (x, weight, bias, mean, variance)
    more = (training, momentum, eps)
    return _record(_BATCH_NORM, inputs, (training, eps), "native_batch_norm", *inputs, *more)[0]


# -- views ----------------------------------------------------------------------------------------------------------

_BACKWARD_OF_PARTS = {"select": "select_backward", "slice": "slice_backward", "diagonal": "diagonal_backward"}


@_compose
def view_backward(view: Any, grad: Any, meta: Any, params: tuple[Any, ...]) -> Any:
    """Return the gradient of a view's base, which one overload computes for views of a part."""
    if view.name in _BACKWARD_OF_PARTS:
        return _aten(_BACKWARD_OF_PARTS[view.name], grad, list(meta.shape), *params)
    return fit_gradient(view.derivative(grad, meta, run, *params), meta)


# -- losses ---------------------------------------------------------------------------------------------------------

_REDUCTIONS = ("none", "mean", "sum")


def _loss_node(name: str) -> Composite:
    def back(grad: Any, a: Any, b: Any, params: Any, needs: Any) -> Any:
        by_a = _aten(f"{name}_backward", grad, a, b, *params) if needs[0] else None
        by_b = _aten(f"{name}_backward", grad, b, a, *params) if len(needs) > 1 and needs[1] else None
        return [by_a, by_b]

    return Composite(name, Derivative(whole=back))


_LOSSES = {name: _loss_node(name) for name in ("mse_loss", "smooth_l1_loss", "huber_loss")}


@_compose
def loss(name: str, args: Sequence[Any], mode: str) -> Any:
    x, target, *more = args
    how = _REDUCTIONS.index(mode)
    if name in _LOSSES:
        if name == "smooth_l1_loss" or name == "huber_loss":
            more = [float(m) for m in more]
        return _record(_LOSSES[name], (x, target), (how, *more), name, x, target, how, *more)[0]
    node = _CROSS_ENTROPIES[name]
    return _record(node, (x, target), (how,), name, x, target, None, *_between(name), how)[0]


def _between(name: str) -> tuple[None, ...]:
    return (None,) if name.endswith("logits") else ()


def _probabilities_back(grad: Any, a: Any, b: Any, params: Any) -> Any:
    return [_aten("binary_cross_entropy_backward", grad, a, b, None, params[0]), None]


def _logits_back(grad: Any, a: Any, b: Any, params: Any, needs: Any) -> Any:
    how, count = params[0], a.numel()
    by_a = (a.sigmoid() - b) * grad if needs[0] else None
    by_b = -grad * a if len(needs) > 1 and needs[1] else None
    return [
        g if g is None or how != 1 else g.div_(count) if not g.requires_grad else g / count
        for g in (by_a, by_b)
    ]


_CROSS_ENTROPIES = {
    "binary_cross_entropy": Composite("binary_cross_entropy", Derivative(whole=_probabilities_back)),
    "binary_cross_entropy_with_logits": Composite(
        "binary_cross_entropy_with_logits", Derivative(whole=_logits_back)
    ),
}


# -- embedding, joining ---------------------------------------------------------------------------------------------


def _embedding_back(grad: Any, b: Any, metas: Any, params: Any) -> Any:
    return [_aten("embedding_dense_backward", grad, b, metas[0].shape[0], *params), None]


_EMBEDDING = Composite("embedding", Derivative(whole=_embedding_back))


@_compose
def embedding(weight: Tensor, indices: Tensor, padding: Any, scale: bool) -> Any:
    at = -1 if padding is None else padding
    return _record(_EMBEDDING, (weight, indices), (at, scale), "embedding", weight, indices, at, scale)[0]


def _stack_back(grad: Any, params: Any, metas: Any) -> Any:
    return [grad.select(params[0], i) for i in range(len(metas))]


_STACK = Composite("stack", Derivative(whole=_stack_back))


@_compose
def stack(tensors: Sequence[Tensor], dim: int) -> Any:
    return _record(_STACK, tuple(tensors), (dim,), "stack", list(tensors), dim)[0]


def _repeat_back(grad: Any, params: Any, metas: Any) -> Any:
    shape, repeats = metas[0].shape, params[0]
    lead = len(repeats) - len(shape)
    sizes: list[int] = [n for n in repeats[:lead] if n != 1]
    dims = list(range(len(sizes)))
    for n, size in zip(repeats[lead:], shape, strict=True):
        if n != 1:
            dims.append(len(sizes))
            sizes.append(n)
        sizes.append(size)
    if 0 in repeats:
        return [grad.new_zeros(shape)]
    return [grad.reshape(sizes).sum(dims) if dims else grad.reshape(shape)]


_REPEAT = Composite("repeat", Derivative(whole=_repeat_back))


@_compose
def repeat(x: Tensor, times: Sequence[int]) -> Any:
    return _record(_REPEAT, (x,), (tuple(times),), "repeat", x, list(times))[0]


# -- results of a size that depends on data -------------------------------------------------------------------------


def _index_back(grad: Any, a: Any, b: Any) -> Any:
    zeros = _aten("new_zeros", grad, list(a.shape), dtype=a.dtype, layout=strided, device=a.device)
    return [_aten("index_put", zeros, [b], grad, True), None]


_INDEX = Composite("index", Derivative(whole=_index_back))


@_compose
def index_by_mask(x: Tensor, mask: Tensor) -> Any:
    return _record(_INDEX, (x, mask), (), "index.Tensor", x, [mask])[0]


def _masked_select_back(grad: Any, b: Any, metas: Any) -> Any:
    zeros = _aten("new_zeros", grad, list(metas[0].shape))
    return [_aten("masked_scatter", zeros, b, grad), None]


_MASKED_SELECT = Composite("masked_select", Derivative(whole=_masked_select_back))


@_compose
def masked_select(x: Tensor, mask: Tensor) -> Any:
    return _record(_MASKED_SELECT, (x, mask), (), "masked_select", x, mask)[0]
