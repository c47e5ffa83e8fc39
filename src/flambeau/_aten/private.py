"""Operators of torch.ops.aten that have no public function of their name: their kernels are composed here.

A kernel takes the arguments of its schema in their order. Kernels named `..._backward` compute the gradient of the
public function with autograd, unless an operator definition computes it directly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from flambeau import linalg
from flambeau.autograd import grad as grad_of
from flambeau.core.dtype import FLOATING, complex64, complex128, dtype, float32, float64, int64
from flambeau.core.errors import LinAlgError
from flambeau.nn import functional as F
from flambeau.nn.functional import sampling
from flambeau.ops import view as views
from flambeau.ops.linalg import fft as transforms
from flambeau.ops.nn.convolution import Geometry
from flambeau.ops.nn.interpolation import Resampling
from flambeau.ops.op import table
from flambeau.ops.random.dropout import masked_scale
from flambeau.tape.mode import recording
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.autograd.autograd_meta import run
from flambeau.tensor.autograd.grad_validation import forget_base
from flambeau.tensor.call import call
from flambeau.tensor.tensor import Tensor

Given = Tensor | None
KERNELS: dict[str, Callable[..., Any]] = {}
_REDUCTIONS = ("none", "mean", "sum")


def _kernel(define: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function the kernel of the operator of its name."""
    KERNELS[define.__name__] = define
    return define


def gradients_of(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    grads: Sequence[Any],
    mask: Sequence[bool] | None = None,
) -> tuple[Any, ...]:
    """Return the gradients of `function(*inputs)`, given those of its results; None where `mask` is False.

    Args:
        function: A function of tensors.
        inputs: Tensors and other values.
        grads: A gradient, or None, for each result.
        mask: The inputs whose gradients are computed; by default all floating-point tensors.
    """
    with recording(True):
        chosen = [
            isinstance(x, Tensor) and x.meta.dtype.category >= FLOATING and (mask is None or mask[i])
            for i, x in enumerate(inputs)
        ]
        leaves = [x.detach().requires_grad_() if c else x for x, c in zip(inputs, chosen, strict=True)]
        results = function(*leaves)
    pairs = [
        (r, g)
        for r, g in zip(results if isinstance(results, tuple) else (results,), grads, strict=False)
        if g is not None and r.requires_grad
    ]
    wanted = [x for x, c in zip(leaves, chosen, strict=True) if c]
    computed = iter(
        grad_of(
            [r for r, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True, materialize_grads=True
        )
        if pairs and wanted
        else [functions["zeros_like"](x) for x in wanted]
    )
    return tuple([next(computed) if c else None for c in chosen])


def _gradient(function: Callable[..., Any], grad: Tensor, x: Tensor, *more: Any) -> Any:
    return gradients_of(lambda a: function(a, *more), (x,), (grad,))[0]


# -- copies and views -----------------------------------------------------------------------------------------------


@_kernel
def alias(x: Tensor) -> Tensor:
    return run(views.alias, x)


@_kernel
def _unsafe_view(x: Tensor, size: Sequence[int]) -> Tensor:
    if not x.is_contiguous():
        return x.reshape(size)
    return forget_base(run(views._unsafe_view, x, views.infer_shape(size, x.numel())))


@_kernel
def _reshape_alias(x: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
    return x.as_strided(size, stride)


@_kernel
def _to_copy(
    x: Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None,
    non_blocking: bool = False, memory_format: Any = None,
) -> Tensor:  # fmt: skip
    formats = {} if memory_format is None else {"memory_format": memory_format}
    place = x.device if device is None else device
    return x.to(place, dtype or x.dtype, non_blocking=non_blocking, copy=True, **formats)


@_kernel
def lift_fresh(x: Tensor) -> Tensor:
    return x


@_kernel
def lift(x: Tensor) -> Tensor:
    return x


@_kernel
def lift_fresh_copy(x: Tensor) -> Tensor:
    return x.clone()


@_kernel
def copy(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return functions["empty_like"](x).copy_(source, non_blocking)


@_kernel
def fill(x: Tensor, value: Any) -> Tensor:
    return x.clone().fill_(value)


@_kernel
def zero(x: Tensor) -> Tensor:
    return functions["zeros_like"](x)


@_kernel
def _local_scalar_dense(x: Tensor) -> Any:
    return x.item()


def _slice(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    last = x.meta.shape[dim] if x.meta.ndim else 0
    return run(views.slice_, x, dim, 0 if start is None else start, last if end is None else end, step)


def _index(x: Tensor, indices: Sequence[Given]) -> Tensor:
    return x[tuple([slice(None) if i is None else i for i in indices])]


KERNELS |= {"slice.Tensor": _slice, "index.Tensor": _index, "_unsafe_index.Tensor": _index}


@_kernel
def index_put(x: Tensor, indices: Sequence[Given], values: Tensor, accumulate: bool = False) -> Tensor:
    return index_put_(x.clone(), indices, values, accumulate)


@_kernel
def index_put_(x: Tensor, indices: Sequence[Given], values: Tensor, accumulate: bool = False) -> Tensor:
    if all(i is not None for i in indices):
        return Tensor.index_put_(x, tuple(indices), values, accumulate)
    place = tuple([slice(None) if i is None else i for i in indices])
    x[place] = x[place] + values if accumulate else values
    return x


KERNELS["_unsafe_index_put"] = index_put


@_kernel
def _index_put_impl_(
    x: Tensor, indices: Sequence[Given], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    return index_put_(x, indices, values, accumulate)


def _gradient_of_part(view: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return the gradient of a view of some of the elements: zeros, with the gradient where these were."""

    def backward(grad: Tensor, sizes: Sequence[int], *where: Any) -> Tensor:
        whole = grad.new_zeros(sizes)
        view(whole, *where).copy_(grad)
        return whole

    return backward


KERNELS["select_backward"] = _gradient_of_part(lambda x, dim, at: x.select(dim, at))
KERNELS["slice_backward"] = _gradient_of_part(_slice)
KERNELS["diagonal_backward"] = _gradient_of_part(lambda x, *where: x.diagonal(*where))


@_kernel
def unfold_backward(grad: Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> Tensor:
    return _gradient(Tensor.unfold, grad, grad.new_zeros(sizes), dim, size, step)


@_kernel
def is_same_size(x: Tensor, other: Tensor) -> bool:
    return x.shape == other.shape


KERNELS["sym_numel"] = Tensor.numel
KERNELS["sym_storage_offset"] = Tensor.storage_offset
KERNELS["sym_size"] = lambda x, dim=None: tuple(x.shape) if dim is None else x.size(dim)
KERNELS["sym_stride"] = lambda x, dim=None: x.stride() if dim is None else x.stride(dim)
KERNELS["sym_is_contiguous"] = lambda x, form: x.is_contiguous()
KERNELS["is_non_overlapping_and_dense"] = lambda x: functions["empty_like"](x).stride() == x.stride()


# -- creation -------------------------------------------------------------------------------------------------------


def _without_pinning(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, pin_memory=None, **options: make(*args, **options)


for _name in ("tril_indices", "triu_indices"):
    KERNELS[_name] = _without_pinning(functions[_name])
KERNELS["randint.low"] = lambda low, high, size, **options: functions["randint"](
    low, high, tuple(size), **options
)
KERNELS["randint"] = lambda high, size, **options: functions["randint"](0, high, tuple(size), **options)


# -- products -------------------------------------------------------------------------------------------------------


@_kernel
def convolution(
    x: Tensor, weight: Tensor, bias: Given, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    ndim = weight.dim() - 2
    how = Geometry(
        *[_each(values, ndim) for values in (stride, padding, dilation)],
        transposed=transposed,
        output_padding=_each(output_padding, ndim) if transposed else (),
        groups=groups,
    )
    batch = x if x.dim() == ndim + 2 else x.unsqueeze(0)
    out = call(table["convolution"], (batch, weight) if bias is None else (batch, weight, bias), (how,))
    return out if x.dim() == ndim + 2 else out.squeeze(0)


def _each(values: Sequence[int], ndim: int) -> tuple[int, ...]:
    return tuple(values) * ndim if len(values) == 1 else tuple(values)


@_kernel
def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Sequence[int] | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
    output_mask: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    how = (stride, padding, dilation, transposed, output_padding, groups)
    by_x, by_weight = gradients_of(
        lambda a, b: convolution(a, b, None, *how), (x, weight), (grad,), output_mask[:2]
    )
    dims = [d for d in range(grad.dim()) if d != 1]
    return by_x, by_weight, grad.sum(dims) if output_mask[2] else None


@_kernel
def _convolution(x: Tensor, weight: Tensor, bias: Given, *how: Any) -> Tensor:
    return convolution(x, weight, bias, *how[:6])


# -- sparse tensors -------------------------------------------------------------------------------------------------


@_kernel
def _pin_memory(x: Tensor, device: Any = None) -> Tensor:
    return x.pin_memory()


@_kernel
def _sparse_addmm(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return import_module("flambeau.sparse").addmm(x, a, b, beta=beta, alpha=alpha)


@_kernel
def _sparse_mm_reduce_impl(x: Tensor, other: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    if reduce not in ("sum", "mean"):
        raise NotImplementedError(
            f"torch.ops.aten._sparse_mm_reduce_impl: reduce={reduce!r} would return places, too, which Flambeau does "
            "not compute here; use torch.sparse.mm(..., reduce)"
        )
    return import_module("flambeau.sparse").mm(x, other, reduce), other.new_empty(0, dtype=int64)


# -- softmax --------------------------------------------------------------------------------------------------------


@_kernel
def _softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return functions["softmax"](x, dim, dtype=float32 if half_to_float else None)


@_kernel
def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    return functions["log_softmax"](x, dim, dtype=float32 if half_to_float else None)


@_kernel
def _safe_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return functions["softmax"](x, dim, dtype=dtype).masked_fill((x == -math.inf).all(dim, True), 0)


@_kernel
def _softmax_backward_data(grad: Tensor, out: Tensor, dim: int, kind: dtype) -> Tensor:
    return call(table["softmax_backward"], (grad, out), (dim,)).to(kind)


@_kernel
def _log_softmax_backward_data(grad: Tensor, out: Tensor, dim: int, kind: dtype) -> Tensor:
    return call(table["log_softmax_backward"], (grad, out), (dim,)).to(kind)


# -- activations ----------------------------------------------------------------------------------------------------


@_kernel
def _prelu_kernel(x: Tensor, weight: Tensor) -> Tensor:
    return x.where(x > 0, weight * x)


@_kernel
def _prelu_kernel_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Any, ...]:
    return grad.where(x > 0, weight * grad), (x * grad).masked_fill(x > 0, 0)


@_kernel
def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.logsigmoid(x), (-x.abs()).exp()


@_kernel
def log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return _gradient(F.logsigmoid, grad, x)


@_kernel
def threshold_backward(grad: Tensor, x: Tensor, threshold: Any) -> Tensor:
    return grad.masked_fill(x <= threshold, 0)


@_kernel
def elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, x: Tensor
) -> Tensor:
    if is_result:
        below = grad * input_scale * (x + alpha * scale)
    else:
        below = grad * input_scale * alpha * scale * (x * input_scale).exp()
    return (grad * scale).where(x > 0, below)


@_kernel
def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    if scale == input_scale == 1:
        return F.elu(x, alpha)
    return scale * x.where(x > 0, alpha * ((x * input_scale).exp() - 1))


@_kernel
def softplus_backward(grad: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    return _gradient(F.softplus, grad, x, beta, threshold)


KERNELS |= {
    "leaky_relu_backward": lambda grad, x, slope, is_result: grad.where(x > 0, grad * slope),
    "hardtanh_backward": lambda grad, x, low, high: grad.masked_fill((x <= low) | (x >= high), 0),
    "hardsigmoid_backward": lambda grad, x: _gradient(F.hardsigmoid, grad, x),
    "hardswish_backward": lambda grad, x: _gradient(F.hardswish, grad, x),
    "hardshrink_backward": lambda grad, x, lambd: _gradient(F.hardshrink, grad, x, lambd),
    "softshrink_backward": lambda grad, x, lambd: _gradient(F.softshrink, grad, x, lambd),
    "mish_backward": lambda grad, x: _gradient(F.mish, grad, x),
    "glu_backward": lambda grad, x, dim: _gradient(F.glu, grad, x, dim),
    "logit_backward": lambda grad, x, eps=None: _gradient(functions["logit"], grad, x, eps),
    "gelu_": lambda x, approximate="none": x.copy_(F.gelu(x, approximate)),
    "hardsigmoid_": lambda x: x.copy_(F.hardsigmoid(x)),
    "hardswish_": lambda x: x.copy_(F.hardswish(x)),
    "mish_": lambda x: x.copy_(F.mish(x)),
    "relu6_": lambda x: F.relu6(x, inplace=True),
    "silu_": lambda x: F.silu(x, inplace=True),
    "log_sigmoid": F.logsigmoid,
}


# -- normalization --------------------------------------------------------------------------------------------------


def _moments(x: Tensor, dims: Sequence[int], eps: float, keepdim: bool = True) -> tuple[Tensor, Tensor]:
    """Return the mean and the inverse of the standard deviation, in float32 for narrower types."""
    wide = x.float() if x.meta.itemsize < 4 else x
    variance, mean = functions["var_mean"](wide, list(dims), correction=0, keepdim=keepdim)
    return mean, (variance + eps).rsqrt()


@_kernel
def native_layer_norm(
    x: Tensor, shape: Sequence[int], weight: Given, bias: Given, eps: float
) -> tuple[Tensor, ...]:
    mean, scale = _moments(x, range(x.dim() - len(shape), x.dim()), eps)
    return F.layer_norm(x, shape, weight, bias, eps), mean, scale


@_kernel
def native_layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, scale: Tensor, weight: Given, bias: Given,
    output_mask: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    def forward(a: Tensor, w: Given, b: Given) -> Tensor:
        dims = list(range(a.dim() - len(shape), a.dim()))
        wide = a.float() if a.meta.itemsize < 4 else a
        variance, middle = functions["var_mean"](wide, dims, correction=0, keepdim=True)
        eps = scale**-2 - variance.detach()  # below 0 if the call had a negative eps
        out = (wide - middle) * (variance + eps).rsqrt()
        out = out if w is None else out * w
        return (out if b is None else out + b).to(a.dtype)

    return gradients_of(forward, (x, weight, bias), (grad,), output_mask)


@_kernel
def native_group_norm(
    x: Tensor, weight: Given, bias: Given, n: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Tensor, ...]:
    mean, scale = _moments(x.reshape(n, groups, channels * size // groups), (2,), eps, keepdim=False)
    return F.group_norm(x, groups, weight, bias, eps), mean.to(x.dtype), scale.to(x.dtype)


@_kernel
def native_group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Given, n: int, channels: int, size: int,
    groups: int, output_mask: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    column = (n, groups, 1)
    rows_shape = (n, groups, channels * size // groups)
    variance = functions["var"](x.reshape(rows_shape), 2, correction=0)
    eps = (scale**-2 - variance).reshape(column)
    per_channel = (1, channels, *(1,) * (x.dim() - 2))

    def forward(a: Tensor, w: Given, b: Given) -> Tensor:
        rows = a.reshape(rows_shape)
        spread, middle = functions["var_mean"](rows, 2, correction=0, keepdim=True)
        out = ((rows - middle) * (spread + eps).rsqrt()).reshape(a.shape)
        out = out if w is None else out * w.reshape(per_channel)
        return out if b is None else out + b.reshape(per_channel)

    bias = x.new_zeros((channels,)) if output_mask[2] else None
    return gradients_of(forward, (x, weight, bias), (grad,), output_mask)


@_kernel
def native_batch_norm(
    x: Tensor, weight: Given, bias: Given, running_mean: Given, running_var: Given, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    out = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training:
        return out, x.new_empty((0,)), x.new_empty((0,))
    mean, scale = _moments(x, [d for d in range(x.dim()) if d != 1], eps, keepdim=False)
    return out, mean, scale


@_kernel
def _native_batch_norm_legit_no_training(
    x: Tensor,
    weight: Given,
    bias: Given,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    return native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)


@_kernel
def _native_batch_norm_legit(
    x: Tensor, weight: Given, bias: Given, running_mean: Tensor, running_var: Tensor, training: bool,
    momentum: float, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    return native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)


KERNELS["_native_batch_norm_legit.no_stats"] = lambda x, weight, bias, training, momentum, eps: (
    native_batch_norm(x, weight, bias, None, None, True, momentum, eps)
)


@_kernel
def native_batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Given, running_mean: Given, running_var: Given, mean: Given, scale: Given,
    training: bool, eps: float, output_mask: Sequence[bool],
) -> tuple[Any, ...]:  # fmt: skip
    bias = x.new_zeros((x.shape[1],)) if output_mask[2] else None

    def forward(a: Tensor, w: Given, b: Given) -> Tensor:
        means, variances = (None, None) if training else (running_mean, running_var)
        return F.batch_norm(a, means, variances, w, b, training, 0.0, eps)

    return gradients_of(forward, (x, weight, bias), (grad,), output_mask)


@_kernel
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return call(masked_scale, (grad, mask, scale))


# -- attention ------------------------------------------------------------------------------------------------------


def _attention_scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _refuse_dropout(name: str, p: float) -> None:
    if p:
        raise NotImplementedError(
            f"torch.ops.aten.{name}: dropout_p={p} is not implemented; apply dropout yourself"
        )


@_kernel
def _scaled_dot_product_flash_attention_for_cpu(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Given = None, scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    _refuse_dropout("_scaled_dot_product_flash_attention_for_cpu", dropout_p)
    masks = () if attn_mask is None else (attn_mask,)
    params = (is_causal, _attention_scale(query, scale))
    found: tuple[Tensor, ...] = call(
        table["scaled_dot_product_attention"], (query, key, value, *masks), params
    )
    return found


@_kernel
def _scaled_dot_product_flash_attention_for_cpu_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, dropout_p: float,
    is_causal: bool, *, attn_mask: Given = None, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    masks = () if attn_mask is None else (attn_mask,)
    params = (is_causal, _attention_scale(query, scale), False)
    inputs = (grad, query, key, value, out, logsumexp, *masks)
    found: tuple[Any, ...] = call(table["scaled_dot_product_attention_backward"], inputs, params)
    return found[:3]


@_kernel
def _scaled_dot_product_efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_bias: Given, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    _refuse_dropout("_scaled_dot_product_efficient_attention", dropout_p)
    found = _scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_bias, scale=scale
    )
    seed = query.new_zeros((), dtype=int64)
    return (*found, seed, seed.clone())


@_kernel
def _scaled_dot_product_efficient_attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, attn_bias: Given, out: Tensor, logsumexp: Tensor,
    philox_seed: Tensor, philox_offset: Tensor, dropout_p: float, mask: Sequence[bool], is_causal: bool = False, *,
    scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    masks = () if attn_bias is None else (attn_bias,)
    params = (is_causal, _attention_scale(query, scale), attn_bias is not None and mask[3])
    inputs = (grad, query, key, value, out, logsumexp, *masks)
    found = (*call(table["scaled_dot_product_attention_backward"], inputs, params), None)[:4]
    return tuple([g if wanted else None for g, wanted in zip(found, mask, strict=True)])


# -- losses ---------------------------------------------------------------------------------------------------------


def _loss_backward(loss: Callable[..., Any], *names: str) -> Callable[..., Tensor]:
    """Return the gradient of a loss by its input; `names` are the loss's arguments after the target."""

    def backward(grad: Tensor, x: Tensor, target: Tensor, *more: Any) -> Tensor:
        options = dict(zip(names, more, strict=False))
        options["reduction"] = _REDUCTIONS[options.pop("reduction", 1)]
        return _gradient(lambda a: loss(a, target, **options), grad, x)

    return backward


KERNELS |= {
    "mse_loss_backward": _loss_backward(F.mse_loss, "reduction"),
    "smooth_l1_loss_backward": _loss_backward(F.smooth_l1_loss, "reduction", "beta"),
    "huber_loss_backward": _loss_backward(F.huber_loss, "reduction", "delta"),
    "soft_margin_loss_backward": _loss_backward(F.soft_margin_loss, "reduction"),
    "binary_cross_entropy_backward": _loss_backward(F.binary_cross_entropy, "weight", "reduction"),
    "multi_margin_loss_backward": _loss_backward(F.multi_margin_loss, "p", "margin", "weight", "reduction"),
}


@_kernel
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Given, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    loss = F.nll_loss(x, target, weight, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction])
    if reduction == 0:
        return loss, x.new_zeros(())
    counted = target != ignore_index
    chosen = counted.to(x.dtype) if weight is None else weight[target.masked_fill(~counted, 0)] * counted
    return loss, chosen.sum()


@_kernel
def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Given, reduction: int, ignore_index: int, total: Tensor
) -> Tensor:
    def loss(a: Tensor) -> Tensor:
        return F.nll_loss(a, target, weight, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction])

    return _gradient(loss, grad, x)


KERNELS["nll_loss2d_forward"] = nll_loss_forward
KERNELS["nll_loss2d_backward"] = nll_loss_backward


# -- embeddings, images ---------------------------------------------------------------------------------------------


@_kernel
def embedding_dense_backward(
    grad: Tensor, indices: Tensor, count: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    weight = grad.new_zeros((count, grad.shape[-1]))

    def look_up(w: Tensor) -> Tensor:
        padding = padding_idx if padding_idx >= 0 else None
        return F.embedding(indices, w, padding, scale_grad_by_freq=scale_grad_by_freq)

    return _gradient(look_up, grad, weight)


for _ndim in (1, 2, 3):
    for _mode in ("reflect", "replicate"):
        _name = f"{'reflection' if _mode == 'reflect' else 'replication'}_pad{_ndim}d"
        KERNELS[_name] = lambda x, padding, _mode=_mode: F.pad(x, tuple(padding), _mode)
        KERNELS[f"{_name}_backward"] = lambda grad, x, padding, _mode=_mode: _gradient(
            lambda a: F.pad(a, tuple(padding), _mode), grad, x
        )


@_kernel
def im2col(x: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    return F.unfold(x, kernel, dilation, padding, stride)


@_kernel
def col2im(x: Tensor, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    return F.fold(x, size, kernel, dilation, padding, stride)


@_kernel
def _adaptive_avg_pool2d(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.adaptive_avg_pool2d(x, tuple(size))


@_kernel
def _adaptive_avg_pool3d(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.adaptive_avg_pool3d(x, tuple(size))


def _pool_backward(pool: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda grad, x, *how: _gradient(lambda a: pool(a, *how), grad, x)


def _window_backward(pool: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return the gradient of a maximum over windows; the positions, its last result, are computed again."""
    return lambda grad, x, *how: _gradient(lambda a: pool(a, *how[:-1]), grad, x)


KERNELS |= {
    "_adaptive_avg_pool2d_backward": lambda g, x: _gradient(F.adaptive_avg_pool2d, g, x, tuple(g.shape[-2:])),
    "_adaptive_avg_pool3d_backward": lambda g, x: _gradient(F.adaptive_avg_pool3d, g, x, tuple(g.shape[-3:])),
    "avg_pool2d_backward": _pool_backward(F.avg_pool2d),
    "avg_pool3d_backward": _pool_backward(F.avg_pool3d),
    "max_pool2d_with_indices_backward": _window_backward(F.max_pool2d),
    "max_pool3d_with_indices_backward": _window_backward(F.max_pool3d),
    "adaptive_max_pool2d": lambda x, size: F.adaptive_max_pool2d(x, tuple(size), return_indices=True),
    "adaptive_max_pool3d": lambda x, size: F.adaptive_max_pool3d(x, tuple(size), return_indices=True),
    "adaptive_max_pool2d_backward": lambda g, x, at: _gradient(
        F.adaptive_max_pool2d, g, x, tuple(g.shape[-2:])
    ),
    "adaptive_max_pool3d_backward": lambda g, x, at: _gradient(
        F.adaptive_max_pool3d, g, x, tuple(g.shape[-3:])
    ),
    "max_unpool2d": lambda x, indices, size: _unpool(x, indices, size),
    "max_unpool3d": lambda x, indices, size, stride, padding: _unpool(x, indices, size),
    "fractional_max_pool2d": lambda x, kernel, size, samples: F.fractional_max_pool2d_with_indices(
        x, tuple(kernel), tuple(size), _random_samples=samples
    ),
    "fractional_max_pool3d": lambda x, kernel, size, samples: F.fractional_max_pool3d_with_indices(
        x, tuple(kernel), tuple(size), _random_samples=samples
    ),
    "fractional_max_pool2d_backward": lambda grad, x, kernel, size, at: _scatter_maxima(grad, x, at, 2),
    "fractional_max_pool3d_backward": lambda grad, x, kernel, size, at: _scatter_maxima(grad, x, at, 3),
}


def _unpool(x: Tensor, indices: Tensor, size: Sequence[int]) -> Tensor:
    ndim = len(size)
    if x.dim() == ndim + 2:
        return call(table["max_unpool"], (x, indices), (tuple(size),))
    return _unpool(x.unsqueeze(0), indices.unsqueeze(0), size).squeeze(0)


def _scatter_maxima(grad: Tensor, x: Tensor, indices: Tensor, ndim: int) -> Tensor:
    """Return the gradient of maxima that stood at flat indices of their plane."""
    planes = x.new_zeros((*x.shape[:-ndim], math.prod(x.shape[-ndim:])))
    return planes.scatter_add(-1, indices.flatten(-ndim), grad.flatten(-ndim)).view(x.shape)


_INTERPOLATION = ("bilinear", "nearest", "bicubic")
_PADDING = ("zeros", "border", "reflection")


@_kernel
def grid_sampler_2d(x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool) -> Tensor:
    return sampling.grid_sample(x, grid, _INTERPOLATION[mode], _PADDING[padding], align_corners)


@_kernel
def grid_sampler_2d_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align_corners: bool, mask: Sequence[bool]
) -> tuple[Any, ...]:
    return gradients_of(
        lambda a, g: grid_sampler_2d(a, g, mode, padding, align_corners), (x, grid), (grad,), mask
    )


for _name in ("grid_sampler_3d", "grid_sampler"):
    KERNELS[_name] = grid_sampler_2d
KERNELS["grid_sampler_3d_backward"] = grid_sampler_2d_backward


def _upsample(kind: str, with_corners: bool, antialias: bool = False) -> Callable[..., Tensor]:
    """Return `upsample(input, output size, [align_corners,] scales)`."""

    def upsample(x: Tensor, size: Sequence[int], *more: Any) -> Tensor:
        corners = bool(more[0]) if with_corners else False
        scales = (*more[with_corners:], *(None,) * len(size))[: len(size)]
        how = Resampling(kind, tuple(size), scales, corners, antialias)
        return call(table["interpolate"], (x,), (how,))

    return upsample


def _upsample_backward(upsample: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda grad, size, input_size, *more: _gradient(
        upsample, grad, grad.new_zeros(tuple(input_size)), size, *more
    )


for _name, _kind, _corners, _antialias in (
    *[(f"upsample_nearest{n}d", "nearest", False, False) for n in (1, 2, 3)],
    *[(f"_upsample_nearest_exact{n}d", "nearest-exact", False, False) for n in (1, 2, 3)],
    ("upsample_linear1d", "linear", True, False),
    ("upsample_bilinear2d", "linear", True, False),
    ("upsample_trilinear3d", "linear", True, False),
    ("upsample_bicubic2d", "cubic", True, False),
    ("_upsample_bilinear2d_aa", "linear", True, True),
    ("_upsample_bicubic2d_aa", "cubic", True, True),
    ("_upsample_lanczos2d_aa", "lanczos", True, True),
):
    KERNELS[_name] = _upsample(_kind, _corners, _antialias)
    KERNELS[f"{_name}_backward"] = _upsample_backward(KERNELS[_name])


# -- random numbers, comparison, the rest -----------------------------------------------------------------------------


def _functional(name: str) -> Callable[..., Tensor]:
    return lambda x, *args, **options: getattr(x.clone(), name)(*args, **options)


for _name in ("uniform", "exponential", "cauchy", "geometric", "log_normal", "random"):
    KERNELS[_name] = _functional(f"{_name}_")
KERNELS["normal_functional"] = _functional("normal_")
KERNELS["bernoulli.p"] = functions["bernoulli"]


@_kernel
def _cdist_forward(x: Tensor, other: Tensor, p: float, compute_mode: int | None) -> Tensor:
    return functions["cdist"](x, other, p)


_SCALES = (transforms.NONE, transforms.ROOT, transforms.WHOLE)


@_kernel
def _fft_c2c(x: Tensor, dims: Sequence[int], normalization: int, forward: bool) -> Tensor:
    return call(transforms.c2c, (x,), (tuple(dims), _SCALES[normalization], forward))


@_kernel
def _fft_r2c(x: Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Tensor:
    if not onesided:
        return _fft_c2c(x + x.new_zeros((), dtype=_to_complex(x.dtype)), dims, normalization, True)
    return call(transforms.r2c, (x,), (tuple(dims), _SCALES[normalization]))


def _to_complex(kind: dtype) -> dtype:
    return complex128 if kind is float64 else complex64


@_kernel
def _fft_c2r(x: Tensor, dims: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    return call(transforms.c2r, (x,), (tuple(dims), _SCALES[normalization], last_dim_size))


@_kernel
def _linalg_det(x: Tensor) -> tuple[Tensor, ...]:
    return linalg.det(x), *linalg.lu_factor(x)


@_kernel
def _linalg_slogdet(x: Tensor) -> tuple[Tensor, ...]:
    return *linalg.slogdet(x), *linalg.lu_factor(x)


@_kernel
def _linalg_svd(
    x: Tensor, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Tensor, ...]:
    if compute_uv:
        return tuple(linalg.svd(x, full_matrices))
    return x.new_empty((0,)), linalg.svdvals(x), x.new_empty((0,))


@_kernel
def _linalg_eigh(x: Tensor, UPLO: str = "L", compute_v: bool = True) -> tuple[Tensor, ...]:  # noqa: N803
    return tuple(linalg.eigh(x, UPLO)) if compute_v else (linalg.eigvalsh(x, UPLO), x.new_empty((0,)))


@_kernel
def _linalg_solve_ex(
    x: Tensor, other: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, ...]:
    result, info = linalg.solve_ex(x, other, left=left, check_errors=check_errors)
    return result, *linalg.lu_factor(x), info


@_kernel
def _linalg_check_errors(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    if info.any():
        raise LinAlgError(
            f"{api_name}: the computation did not converge or the input is singular: {info.tolist()}"
        )


@_kernel
def _cdist_backward(grad: Tensor, x: Tensor, other: Tensor, p: float, distances: Tensor) -> Tensor:
    return _gradient(lambda a: functions["cdist"](a, other, p), grad, x)


@_kernel
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Sequence[int]) -> Tensor:
    count = math.prod(sizes)
    chosen = grad.masked_select(mask)[:count]
    flat = grad.new_zeros((count,))
    flat[: chosen.numel()] = chosen
    return flat.view(tuple(sizes))


@_kernel
def _conj(x: Tensor) -> Tensor:
    return x.conj()


KERNELS["unfold"] = Tensor.unfold
for _name in ("sigmoid_backward", "silu_backward", "tanh_backward"):
    KERNELS[_name] = lambda grad, x, _op=table[_name]: call(_op, (grad, x))
KERNELS["gelu_backward"] = lambda grad, x, *, approximate="none": call(
    table["gelu_backward"], (grad, x), (approximate,)
)


@_kernel
def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, ...]:
    values, inverse, counts = functions["unique_consecutive"](x, True, True, dim)
    return (
        values,
        inverse if return_inverse else values.new_empty((0,), dtype=int64),
        counts if return_counts else values.new_empty((0,), dtype=int64),
    )


@_kernel
def unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = functions["unique"](x, sorted, True, True, dim)
    return found


@_kernel
def _unique2(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, ...]:
    values, inverse, counts = functions["unique"](x, sorted, True, True)
    return (
        values,
        inverse if return_inverse else values.new_empty((0,), dtype=int64),
        counts if return_counts else values.new_empty((0,), dtype=int64),
    )


KERNELS["_conj_physical"] = Tensor.conj_physical
