"""Translations of products, convolutions, pooling, normalization, attention and losses, with PyTorch's backward.

A formula here shows the calls that PyTorch's formula does. In backward with `create_graph=True`, Flambeau's own formula
is used instead (`either`), because kernels named `..._backward` record nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau._aten.overloads import find_overload
from flambeau._aten.translations import TABLE, Args, Call, Params, Translation, translates
from flambeau.core.dtype import int64
from flambeau.ops.op import Derivative, names_of, table
from flambeau.tape.mode import mode
from flambeau.tensor.tensor import Tensor


class _ShownFormula:
    """A formula for all gradients: PyTorch's calls, or Flambeau's formulas where the gradients are recorded."""

    def __init__(
        self, shown: Callable[..., Any], own: Derivative, needs: Sequence[bool] | None = None
    ) -> None:
        self._shown, self._needs = shown, needs
        whole: Any = own.whole
        if needs is not None and hasattr(whole, "bind_needs"):
            whole = whole.bind_needs(needs)
        self._own, self._whole = own, whole
        formulas = [f for f in (whole, *own.formulas) if f is not None]
        names = [name for f in (shown, *formulas) for name in names_of(f)]
        self.names = tuple(dict.fromkeys([*names, "needs"]))

    def bind_needs(self, needs: Sequence[bool]) -> _ShownFormula:
        """Return the formula where these inputs require a gradient."""
        return _ShownFormula(self._shown, self._own, needs)

    def __call__(self, *values: Any) -> Any:
        known = dict(zip(self.names, values, strict=True))
        if not mode.recording:
            return self._shown(*[known[name] for name in names_of(self._shown)])
        if self._whole is not None:
            return self._whole(*[known[name] for name in names_of(self._whole)])
        return [
            f(*[known[name] for name in names_of(f)]) if f is not None and need else None
            for f, need in zip(self._own.formulas, known["needs"], strict=False)
        ]


def either(name: str, outputs: int | None = None) -> Callable[[Callable[..., Any]], Derivative]:
    """Return a decorator that makes a formula of PyTorch's calls the derivative of an operator of Flambeau."""
    own = table[name].derivative
    return lambda shown: Derivative(
        whole=_ShownFormula(shown, own), name=own.name, outputs=outputs or own.outputs
    )


def _aten(name: str, *args: Any, **kwargs: Any) -> Any:
    return find_overload(name)(*args, **kwargs)


# -- products -------------------------------------------------------------------------------------------------------


@either("matmul")
def _product_back(grad: Any, a: Any, b: Any, needs: Any) -> Any:
    by_a = by_b = None
    if a.ndim == 1:
        return [b * grad if needs[0] else None, a * grad if needs[1] else None]
    if b.ndim == 1:
        by_a = _aten("mul.Tensor", grad.unsqueeze(1), b) if needs[0] else None
        return [by_a, _aten("mv", a.t(), grad) if needs[1] else None]
    name = "mm" if a.ndim == 2 else "bmm"
    if needs[1]:
        by_b = _aten(name, _transpose(a), grad)
    if needs[0]:
        by_a = _aten(name, grad, _transpose(b))
    return [by_a, by_b]


def _transpose(x: Any) -> Any:
    turned = x.t() if x.ndim == 2 else x.transpose(1, 2)
    return turned.conj() if x.is_complex() else turned


@translates("matmul", derivative=_product_back)
def _matmul(args: Args, params: Params) -> Call:
    dims = tuple([a.dim() for a in args])
    return Call({(2, 2): "mm", (2, 1): "mv", (1, 1): "dot"}.get(dims, "bmm"), args)


@either("addmm")
def _added_back(grad: Any, b: Any, c: Any, d: Any, e: Any, metas: Any, needs: Any) -> Any:
    name = "mm" if b.ndim == 2 else "bmm"
    by_a = by_b = by_c = None
    if c.ndim == 1:
        by_b = _aten("mul.Tensor", grad.unsqueeze(1), c) if needs[1] else None
        by_c = _aten("mv", b.t(), grad) if needs[2] else None
    else:
        if needs[1]:
            by_b = _aten(name, grad, _transpose(c))
        if needs[2]:
            by_c = _aten(name, _transpose(b), grad)
    if needs[0]:
        by_a = _times(grad, d)
    return [by_a, _times(by_b, e), _times(by_c, e)]


def _times(grad: Any, factor: Any) -> Any:
    return grad if grad is None or factor == 1 else _aten("mul.Scalar", grad, factor)


@translates("addmm", derivative=_added_back)
def _addmm(args: Args, params: Params) -> Call:
    added, a, b, beta, alpha = args
    name = "addmv" if b.dim() == 1 else "addmm" if a.dim() == 2 else "baddbmm"
    return Call(name, (added, a, b), {"beta": beta, "alpha": alpha})


# -- convolution: params (Geometry) ---------------------------------------------------------------------------------


def _geometry(how: Any) -> list[Any]:
    ndim = len(how.stride)
    output_padding = list(how.output_padding) or [0] * ndim
    return [
        list(how.stride),
        list(how.padding),
        list(how.dilation),
        how.transposed,
        output_padding,
        how.groups,
    ]


@either("convolution")
def _convolution_back(grad: Any, a: Any, b: Any, params: Any, metas: Any, needs: Any) -> Any:
    mask = [*needs, *[False] * (3 - len(needs))]
    bias = [metas[2].shape[0]] if len(metas) > 2 else [0]
    return _aten("convolution_backward", grad, a, b, bias, *_geometry(params[0]), mask)


@translates("convolution", derivative=_convolution_back)
def _convolution(args: Args, params: Params) -> Call:
    bias = args[2] if len(args) > 2 else None
    return Call("convolution", (*args[:2], bias, *_geometry(params[0])))


# -- pooling: params (Windows, ...) ---------------------------------------------------------------------------------


def _windows(how: Any) -> list[Any]:
    return [list(how.kernel), list(how.stride), list(how.padding), list(how.dilation), how.ceil]


@either("max_pool")
def _max_pool_back(grad: Any, a: Any, out1: Any, params: Any, call: Any) -> Any:
    how = params[0]
    if len(how.kernel) == 1:
        flat = (grad.unsqueeze(-2), a.unsqueeze(-2), *[[1, *n] for n in _windows(how)[:1]])
        lists = [[1, *how.stride], [0, *how.padding], [1, *how.dilation], how.ceil, out1.unsqueeze(-2)]
        return [_aten("max_pool2d_with_indices_backward", *flat, *lists).squeeze(-2)]
    return [_aten(f"max_pool{len(how.kernel)}d_with_indices_backward", grad, a, *_windows(how), out1)]


@translates("max_pool", derivative=_max_pool_back)
def _max_pool(args: Args, params: Params) -> Any:
    how = params[0]
    ndim = len(how.kernel)
    if ndim > 1:
        return Call(f"max_pool{ndim}d_with_indices", (*args, *_windows(how)))
    windows = [[1, *how.kernel], [1, *how.stride], [0, *how.padding], [1, *how.dilation], how.ceil]
    found = _aten("max_pool2d_with_indices", args[0].unsqueeze(-2), *windows)
    return tuple([x.squeeze(-2) for x in found])


@either("avg_pool")
def _avg_pool_back(grad: Any, a: Any, params: Any, call: Any) -> Any:
    how, include, divisor = params
    ndim = len(how.kernel)
    if ndim == 1:
        arguments = ([1, *how.kernel], [1, *how.stride], [0, *how.padding], how.ceil, include, divisor)
        whole = _aten("avg_pool2d_backward", grad.unsqueeze(-2), a.unsqueeze(-2), *arguments)
        return [whole.squeeze(-2)]
    arguments = (list(how.kernel), list(how.stride), list(how.padding), how.ceil, include, divisor)
    return [_aten(f"avg_pool{ndim}d_backward", grad, a, *arguments)]


@translates("avg_pool", derivative=_avg_pool_back)
def _avg_pool(args: Args, params: Params) -> Any:
    how, include, divisor = params
    ndim = len(how.kernel)
    if ndim == 1:
        windows = ([1, *how.kernel], [1, *how.stride], [0, *how.padding], how.ceil, include, divisor)
        return _aten("avg_pool2d", args[0].unsqueeze(-2), *windows).squeeze(-2)
    windows = (list(how.kernel), list(how.stride), list(how.padding), how.ceil, include, divisor)
    return Call(f"avg_pool{ndim}d", (*args, *windows))


@either("adaptive_avg_pool")
def _adaptive_avg_back(grad: Any, a: Any, params: Any, call: Any, metas: Any) -> Any:
    size = params[0]
    if len(size) == 1:
        whole = _aten("_adaptive_avg_pool2d_backward", grad.unsqueeze(-2), a.unsqueeze(-2))
        return [whole.squeeze(-2)]
    if set(size) == {1}:
        shape = metas[0].shape
        return [_aten("div.Scalar", grad.expand(shape), _count(shape[-len(size) :]))]
    return [_aten(f"_adaptive_avg_pool{len(size)}d_backward", grad, a)]


def _count(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


@translates("adaptive_avg_pool", derivative=_adaptive_avg_back)
def _adaptive_avg_pool(args: Args, params: Params) -> Any:
    size = list(params[0])
    if len(size) == 1:
        return _aten("_adaptive_avg_pool2d", args[0].unsqueeze(-2), [1, *size]).squeeze(-2)
    if set(size) == {1}:
        return Call("mean.dim", (*args, list(range(-len(size), 0)), True))
    return Call(f"_adaptive_avg_pool{len(size)}d", (*args, size))


@either("adaptive_max_pool")
def _adaptive_max_back(grad: Any, a: Any, out1: Any, params: Any) -> Any:
    ndim = len(params[0])
    if ndim == 1:
        inputs = [x.unsqueeze(-2) for x in (grad, a, out1)]
        return [_aten("adaptive_max_pool2d_backward", *inputs).squeeze(-2)]
    return [_aten(f"adaptive_max_pool{ndim}d_backward", grad, a, out1)]


@translates("adaptive_max_pool", derivative=_adaptive_max_back)
def _adaptive_max_pool(args: Args, params: Params) -> Any:
    size = list(params[0])
    if len(size) == 1:
        found = _aten("adaptive_max_pool2d", args[0].unsqueeze(-2), [1, *size])
        return tuple([x.squeeze(-2) for x in found])
    return Call(f"adaptive_max_pool{len(size)}d", (*args, size))


# -- normalization: x, then weight and bias if given; params (..., eps, given) --------------------------------------


def _affine(more: Args, given: Sequence[bool]) -> list[Any]:
    listed = list(more)
    return [listed.pop(0) if there else None for there in given]


def _mask(needs: Sequence[bool], given: Sequence[bool]) -> list[bool]:
    rest = list(needs[1:])
    return [needs[0], *[rest.pop(0) if there else False for there in given]]


def _select_given(grads: Sequence[Any], given: Sequence[bool]) -> list[Any]:
    return [grads[0], *[g for g, there in zip(grads[1:], given, strict=True) if there]]


@either("layer_norm", outputs=1)
def _layer_norm_back(grad: Any, a: Any, b: Any, c: Any, out1: Any, out2: Any, params: Any, needs: Any) -> Any:
    ndim, _, given = params
    weight, bias = _affine([x for x in (b, c) if x is not None], given)
    shape = list(a.shape[a.ndim - ndim :])
    grads = _aten("native_layer_norm_backward", grad, a, shape, out1, out2, weight, bias, _mask(needs, given))
    return _select_given(grads, given)


@translates("layer_norm", derivative=_layer_norm_back, kept=1)
def _layer_norm(args: Args, params: Params) -> Call:
    ndim, eps, given = params
    x = args[0]
    return Call("native_layer_norm", (x, list(x.shape[x.dim() - ndim :]), *_affine(args[1:], given), eps))


def _group_sizes(x: Any) -> tuple[int, int, int]:
    n, channels = x.shape[:2]
    return n, channels, _count(x.shape[2:])


@either("group_norm", outputs=1)
def _group_norm_back(grad: Any, a: Any, b: Any, out1: Any, out2: Any, params: Any, needs: Any) -> Any:
    groups, _, given = params
    weight = b if given[0] else None
    sizes = (*_group_sizes(a), groups)
    grads = _aten("native_group_norm_backward", grad, a, out1, out2, weight, *sizes, _mask(needs, given))
    return _select_given(grads, given)


@translates("group_norm", derivative=_group_norm_back, kept=1)
def _group_norm(args: Args, params: Params) -> Call:
    groups, eps, given = params
    return Call(
        "native_group_norm", (args[0], *_affine(args[1:], given), *_group_sizes(args[0]), groups, eps)
    )


# -- attention: query, key, value and a mask; params (is_causal, scale) ---------------------------------------------


@either("scaled_dot_product_attention")
def _attention_back(grad: Any, a: Any, b: Any, c: Any, d: Any, outs: Any, params: Any, needs: Any) -> Any:
    out, sums = outs
    causal, scale = params
    if a.is_cuda or (len(needs) > 3 and needs[3]):
        seed = _aten("empty.memory_format", [], dtype=int64, device=a.device)
        mask = [*needs, *[False] * (4 - len(needs))]
        inputs = (grad, a, b, c, d, out, sums, seed, seed, 0.0, mask, causal)
        return list(_aten("_scaled_dot_product_efficient_attention_backward", *inputs, scale=scale))[
            : len(needs)
        ]
    inputs = (grad, a, b, c, out, sums, 0.0, causal)
    found = _aten("_scaled_dot_product_flash_attention_for_cpu_backward", *inputs, attn_mask=d, scale=scale)
    return [*found, None][: len(needs)]


@translates("scaled_dot_product_attention", derivative=_attention_back)
def _attention(args: Args, params: Params) -> Any:
    query, key, value, *more = args
    mask = more[0] if more else None
    causal, scale = params
    if query.is_cuda:
        inputs = (query, key, value, mask, True, 0.0, causal)
        return tuple(_aten("_scaled_dot_product_efficient_attention", *inputs, scale=scale)[:2])
    name = "_scaled_dot_product_flash_attention_for_cpu"
    return Call(name, (query, key, value, 0.0, causal), {"attn_mask": mask, "scale": scale})


# -- losses ---------------------------------------------------------------------------------------------------------

_REDUCTIONS = ("none", "mean", "sum")


@either("nll_loss", outputs=1)
def _nll_back(grad: Any, a: Any, b: Any, c: Any, out1: Any, params: Any) -> Any:
    how, ignored = params
    weight = c if isinstance(c, Tensor) else None
    name = "nll_loss2d_backward" if a.ndim > 2 else "nll_loss_backward"
    return [_aten(name, grad, a, b, weight, _REDUCTIONS.index(how), ignored, out1)]


@translates("nll_loss", derivative=_nll_back, kept=1)
def _nll_loss(args: Args, params: Params) -> Any:
    x, target, *weight = args
    how, ignored = params
    name = "nll_loss2d_forward" if x.dim() > 2 else "nll_loss_forward"
    return Call(name, (x, target, weight[0] if weight else None, _REDUCTIONS.index(how), ignored))


# -- embeddings, images ---------------------------------------------------------------------------------------------


@translates("pad")
def _pad(args: Args, params: Params) -> Call:
    how, pairs = params
    used = list(pairs)
    kinds = {"reflect": "reflection", "replicate": "replication"}
    if how == "constant":
        while used and used[0] == (0, 0):
            used.pop(0)
        flat = [n for pair in reversed(used) for n in pair]
        return Call("constant_pad_nd", (args[0], flat, args[1] if len(args) > 1 else 0))
    spatial = list(used)[-max(1, args[0].dim() - 2) :]
    flat = [n for pair in reversed(spatial) for n in pair]
    return Call(f"{kinds[how]}_pad{len(spatial)}d", (args[0], flat))


@translates("unfold")
def _im2col(args: Args, params: Params) -> Call:
    kernel, how = params
    return Call("im2col", (*args, list(kernel), list(how.dilation), list(how.padding), list(how.stride)))


@translates("fold")
def _col2im(args: Args, params: Params) -> Call:
    size, kernel, how = params
    sizes = (list(size), list(kernel), list(how.dilation), list(how.padding), list(how.stride))
    return Call("col2im", (*args, *sizes))


@translates("interpolate")
def _interpolate(args: Args, params: Params) -> Call:
    how = params[0]
    ndim = len(how.size)
    names = {
        "nearest": f"upsample_nearest{ndim}d", "nearest-exact": f"_upsample_nearest_exact{ndim}d",
        "linear": ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")[ndim - 1],
        "cubic": "upsample_bicubic2d", "lanczos": "upsample_lanczos2d",
    }  # fmt: skip
    name = f"_{names[how.mode]}_aa" if how.antialias else names[how.mode]
    corners = () if how.mode.startswith("nearest") else (how.align_corners,)
    return Call(name, (*args, list(how.size), *corners, *how.scales))


TABLE["native_dropout"] = Translation(
    lambda args, params: Call("native_dropout", (args[0], 1 - args[3], True))
)
