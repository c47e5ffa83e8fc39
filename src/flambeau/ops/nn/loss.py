"""Losses that are one kernel: elementwise losses, negative log likelihood, margins over classes.

Their means and sums are separate reductions; only nll_loss divides by a weight that its kernel computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype, int64, uint8
from flambeau.core.layout import expand_strides
from flambeau.core.meta import Meta
from flambeau.core.typeinfo import finfo
from flambeau.driver.protocol import Body, Expression, Fold, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import FLOAT32, AutocastRule
from flambeau.ops.op import (
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    define,
    note,
    one_device,
)
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, NUMBERS, wide
from flambeau.ops.pointwise.pointwise import pointwise
from flambeau.ops.work import row_work, workspaces

Array = np.ndarray[Any, Any]


# -- elementwise ----------------------------------------------------------------------------------------


def _smooth_l1(x: Any, y: Any, beta: Any) -> Any:
    away = np.abs(x - y)
    return np.where(away < beta, x.dtype.type(0.5) * away * away / beta, away - x.dtype.type(0.5) * beta)


def _clamp_within(x: Any, bound: float) -> Any:
    """Return `x` clamped to [-bound, bound], where the bound may exceed the range of its dtype."""
    return x if bound > finfo(x.dtype).max else x.clamp(-bound, bound)


def _huber(x: Any, y: Any, delta: Any) -> Any:
    away, half = np.abs(x - y), x.dtype.type(0.5)
    return np.where(away <= delta, half * away * away, delta * (away - half * delta))


def _cross_entropy(x: Any, y: Any) -> Any:
    for name, values in (("input", x), ("target", y)):
        if not ((values >= 0) & (values <= 1)).all():
            raise RuntimeError(f"all elements of {name} should be between 0 and 1")
    least = x.dtype.type(-100)
    return (y - 1) * np.maximum(np.log1p(-x), least) - y * np.maximum(np.log(x), least)


def _cross_entropy_of_logits(x: Any, y: Any) -> Any:
    return (1 - y) * x - (np.minimum(x, x.dtype.type(0)) - np.log1p(np.exp(-np.abs(x))))


def _smooth_slope(away: Any, beta: Any) -> Any:
    return (away / beta).where(~(away.abs() >= beta), away.sgn())


_paired = partial(pointwise, promoting=slice(2), wide_scalars=True)
mse_loss = _paired(
    "mse_loss",
    lambda x, y: (x - y) * (x - y),
    2,
    "The squared difference.",
    dtypes=NUMBERS,
    flops=2,
    cuda="(a - b) * (a - b)",
    derivative=Derivative(lambda grad, a, b: grad * 2 * (a - b), lambda grad, a, b: grad * 2 * (b - a)),
    autocast=FLOAT32,
)
smooth_l1_loss = _paired(
    "smooth_l1_loss",
    _smooth_l1,
    3,
    "Half the squared difference over beta, or past beta a line.",
    dtypes=FLOATS,
    flops=6,
    examples=((1.0,),),
    cuda="absolute(a - b) < c ? T(0.5) * absolute(a - b) * absolute(a - b) / c : absolute(a - b) - T(0.5) * c",
    derivative=Derivative(
        lambda grad, a, b, c: grad * _smooth_slope(a - b, c),
        lambda grad, a, b, c: -grad * _smooth_slope(a - b, c),
    ),
    autocast=FLOAT32,
)
huber_loss = _paired(
    "huber_loss",
    _huber,
    3,
    "Half the squared difference, or past delta a line.",
    dtypes=FLOATS,
    flops=6,
    examples=((1.0,),),
    cuda="absolute(a - b) <= c ? T(0.5) * absolute(a - b) * absolute(a - b) : c * (absolute(a - b) - T(0.5) * c)",
    derivative=Derivative(
        lambda grad, a, b, c: grad * _clamp_within(a - b, c),
        lambda grad, a, b, c: grad * _clamp_within(b - a, c),
    ),
    autocast=FLOAT32,
)
binary_cross_entropy = _paired(
    "binary_cross_entropy",
    _cross_entropy,
    2,
    "The cross entropy of probabilities; logarithms end at -100.",
    dtypes=FLOATS,
    flops=24,
    low=0,
    high=1,
    cuda="(b - 1) * greater(log1p_(-a), T(-100)) - b * greater(log_(a), T(-100))",
    derivative=Derivative(
        lambda grad, a, b: (a - b) * grad / (a * (1 - a)).clamp(min=1e-12),
        lambda grad, a: grad * ((1 - a).log().clamp(min=-100) - a.log().clamp(min=-100)),
    ),
    autocast=AutocastRule("refuse", "float32"),
)
binary_cross_entropy_with_logits = _paired(
    "binary_cross_entropy_with_logits",
    _cross_entropy_of_logits,
    2,
    "The cross entropy of sigmoid(x).",
    dtypes=FLOATS,
    flops=24,
    cuda="(1 - b) * a - (lesser(a, T(0)) - log1p_(exp_(-absolute(a))))",
    derivative=Derivative(lambda grad, a, b: (a.sigmoid() - b) * grad, lambda grad, a: -grad * a),
    autocast=FLOAT32,
    work=row_work.paired_loss,
)


# -- nll_loss: params (reduction, ignore_index); inputs x (N, C, ...), target (N, ...), weight (C) or none


def _nll_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x, target, *weight = operands
    reduction, _ = params
    assert isinstance(x, Meta) and isinstance(target, Meta)
    where = one_device(operands, "nll_loss_forward", ("self", "target", "weight"))
    if x.ndim < 1:
        raise RuntimeError("input tensor should be 1D or 2D")
    expected = x.shape[:1] + x.shape[2:] if x.ndim > 1 else ()
    counts = target.dtype in (int64, uint8)
    # PyTorch checks the dtype first for these dimensions
    asked_first = (x.ndim, target.ndim) in ((1, 1), (4, 3))
    if target.shape != expected and (counts or not asked_first):
        raise _misfit(x, target, expected)
    if not counts:
        raise RuntimeError(f"expected target dtype to be Long or Byte, but got {target.dtype.torch_name}")
    if x.ndim > 2 and target.dtype is uint8:
        raise RuntimeError("expected scalar type Long but found Byte")
    if x.dtype not in FLOATS:
        raise NotImplementedError(f"\"nll_loss_out_frame\" not implemented for '{x.dtype.torch_name}'")
    classes = x.shape[1] if x.ndim > 1 else x.shape[0]
    for w in weight:
        assert isinstance(w, Meta)
        if w.shape != (classes,):
            raise RuntimeError(
                f"weight tensor should be defined either for all {classes} classes or no classes but got weight "
                f"tensor of shape: {list(w.shape)}"
            )
        if w.dtype is not x.dtype:
            raise RuntimeError(f"expected scalar type {x.dtype.torch_name} but found {w.dtype.torch_name}")
    shape = expected if reduction == "none" else ()
    out = Meta.contiguous_of(shape, x.dtype, where)
    return Signature((out,), (x, target, *[w for w in weight if isinstance(w, Meta)]), params)


def _misfit(x: Meta, target: Meta, expected: tuple[int, ...]) -> Exception:
    """Return PyTorch's error text for a target of the wrong shape, which depends on the input's dimensions."""
    if x.ndim not in (1, 2, 4):
        return RuntimeError(f"Expected target size {list(expected)}, got {list(target.shape)}")
    if x.ndim == 4 and target.ndim != 3:
        return RuntimeError(
            "only batches of spatial targets supported (3D tensors) but got targets of dimension: "
            f"{target.ndim}"
        )
    if x.ndim < 3 and target.ndim > 1:
        return RuntimeError("0D or 1D target tensor expected, multi-target not supported")
    if x.ndim == 1:
        return ValueError(f"For 1D input, 1D target must have size 1, but got target size: {target.shape[0]}")
    return RuntimeError(f"size mismatch (got input: {list(x.shape)} , target: {list(target.shape)}")


def _nll_host(launch: Launch) -> Body:
    reduction, ignored = launch.params
    kind = launch.outputs[0].dtype
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, target = inputs[0], inputs[1].astype(np.int64)
        if x.ndim == 1:
            x, target = x[None], target[None]
        valid = target != ignored
        bad = valid & (target.view(np.uint64) >= x.shape[1])  # as unsigned numbers, negative ones are large
        if bad.any():
            raise IndexError(f"Target {target[bad][0]} is out of bounds.")
        places = np.where(valid, target, 0)
        if x.ndim == 2:
            chosen = widen(x[np.arange(len(x)), places])
        else:
            chosen = widen(np.take_along_axis(x, places[:, None], 1)[:, 0])
        zero, weight = chosen.dtype.type(0), valid.astype(chosen.dtype)
        if len(inputs) > 2:
            weight = np.where(valid, widen(inputs[2])[places], zero)
        loss = np.where(valid, -chosen * weight, zero)
        if reduction != "none":
            total = np.add.reduce(loss.reshape(-1))
            loss = total / np.add.reduce(weight.reshape(-1)) if reduction == "mean" else total
        np.copyto(outputs[0], np.asarray(loss).reshape(outputs[0].shape), casting="unsafe")

    return body


def _nll_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for reduction in ("none", "sum", "mean"):
        yield (make(4, 3), np.array([0, 2, 1, -100])), (reduction, -100)
        yield (make(2, 3, 2), np.array([[0, 2], [1, 1]]), make(3, low=1)), (reduction, 2)


def _flops(launch: Launch) -> int:
    source = launch.inputs[0]
    return 4 * source.numel if isinstance(source, Meta) else 0


def _nll_back(grad: Any, b: Any, c: Any, metas: Any, params: Any, call: Any) -> Any:
    return call(nll_loss_backward, (grad, b) if c is None else (grad, b, c), (*params, metas[0].shape))


def _nll_name(metas: Sequence[Meta | None], params: tuple[Any, ...]) -> str:
    """Return the node's name, which differs for rows of classes and for pixels."""
    scores = metas[0]
    return "NllLoss2DBackward0" if scores is not None and scores.ndim > 2 else "NllLossBackward0"


nll_loss = define(
    Op(
        "nll_loss",
        _nll_rule,
        Kernel(
            "nll_loss",
            _nll_host,
            _flops,
            cuda=Routine("nn.losses:nll_loss"),
            work=row_work.labelled_loss,
            workspace=workspaces.one_number,
        ),
        FLOATS,
        _nll_samples,
        derivative=Derivative(_nll_back, name=_nll_name),
        autocast=FLOAT32,
    )
)


# -- its gradient: inputs that of the loss, target, weight or none; params (reduction, ignore_index, x's shape) -----


def _nll_backward_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    grad, target, *weight = operands
    reduction, ignored, shape = params
    assert isinstance(grad, Meta)
    out = Meta.contiguous_of(shape, grad.dtype, one_device(operands))
    (loss,) = _nll_rule((out, target, *weight), (reduction, ignored)).outputs
    if grad.shape != loss.shape:
        raise RuntimeError(
            f"nll_loss_backward(): expected a gradient of shape {list(loss.shape)}, but got {list(grad.shape)}"
        )
    return Signature((out,), (grad, *[x for x in (target, *weight) if isinstance(x, Meta)]), params)


def _nll_backward_host(launch: Launch) -> Body:
    reduction, ignored, shape = launch.params
    kind, dim = launch.outputs[0].dtype, 1 if len(shape) > 1 else 0
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, target = widen(inputs[0]), inputs[1].astype(np.int64)
        valid = target != ignored
        places = np.where(valid, target, 0)
        weight = widen(inputs[2])[places] if len(inputs) > 2 else np.ones((), grad.dtype)
        share = np.where(valid, weight, grad.dtype.type(0))
        given = -grad * share
        if reduction == "mean":  # without any target, the gradient of ignored elements is 0 too
            given = np.where(valid, given / np.add.reduce(share.reshape(-1)), grad.dtype.type(0))
        outputs[0][...] = 0
        values = np.broadcast_to(given, target.shape).astype(outputs[0].dtype)
        np.put_along_axis(outputs[0], np.expand_dims(places, dim), np.expand_dims(values, dim), dim)

    return body


def _nll_backward_back(grad: Any, b: Any, c: Any, params: Any) -> Any:
    reduction, ignored, shape = params
    dim, valid = 1 if len(shape) > 1 else 0, b != ignored
    places = b.to(int64).masked_fill(~valid, 0)
    weight = valid.to(grad.dtype)
    if c is not None:
        weight = c.index_select(0, places.reshape(-1)).reshape(b.shape) * weight
    given = -grad.gather(dim, places.unsqueeze(dim)).squeeze(dim) * weight
    if reduction == "none":
        return given
    return given.sum() / weight.sum() if reduction == "mean" else given.sum()


def _nll_backward_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for (x, target, *weight), (reduction, ignored) in _nll_samples(make, kind):
        grad = make(*target.shape) if reduction == "none" else make()
        yield (grad, target, *weight), (reduction, ignored, x.shape)


nll_loss_backward = define(
    Op(
        "nll_loss_backward",
        _nll_backward_rule,
        Kernel(
            "nll_loss_backward",
            _nll_backward_host,
            cuda=Routine("nn.losses:nll_loss_backward"),
            work=row_work.labelled_loss_gradient,
        ),
        FLOATS,
        _nll_backward_samples,
        derivative=Derivative(_nll_backward_back),
    )
)


# -- its parts in compiled functions: the number of targets that count, and an element of each class ---------------


def _count_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    (target,) = operands
    assert isinstance(target, Meta)
    return Signature((Meta.contiguous_of((), wide(params[1]), target.device),), (target,), params)


def _count_host(launch: Launch) -> Body:
    ignored, kind = launch.params[0], launch.outputs[0].dtype.numpy

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        outputs[0][...] = np.add.reduce((inputs[0] != ignored).astype(kind).reshape(-1))

    return body


def _every_dim(launch: Launch) -> tuple[int, ...]:
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    return tuple(range(source.ndim))


def _slope_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    metas = [x for x in operands if isinstance(x, Meta)]
    shape = params[1]
    over = [x.with_(shape=shape, strides=expand_strides(x.shape, x.strides, shape)) for x in metas]
    return Signature((Meta.contiguous_of(shape, metas[0].dtype, metas[0].device),), tuple(over), params)


def _slope_host(launch: Launch) -> Body:
    kind, ignored = launch.outputs[0].dtype, launch.params[0]
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, target, *count = [x[:, 0] for x in inputs]
        valid = target != ignored
        given = -widen(grad) * valid.astype(widen(grad).dtype)
        if count:
            given = np.where(valid, given / count[0], given.dtype.type(0))
        outputs[0][...] = 0
        values = given.astype(outputs[0].dtype)
        np.put_along_axis(outputs[0], np.where(valid, target, 0)[:, None], values[:, None], 1)

    return body


def _slope_kinds(launch: Launch) -> tuple[tuple[tuple[dtype, ...], ...], tuple[dtype, ...]]:
    kind = (wide(launch.outputs[0].dtype),)
    return (kind, (), kind)[: len(launch.inputs)], ()


def _slope_text(launch: Launch) -> str:
    column = "(i >> 31 ? i % k0 : (i64)((u32)i % (u32)k0))"
    return f"b == {column} && b != k1 ? -a{' / c' if len(launch.inputs) > 2 else ''} : T(0)"


def _part(name: str, rule: Any, host: Any, cuda: Any) -> Op:
    kernel = Kernel(name, host, cuda=cuda)
    op = Op(name, rule, kernel, FLOATS, lambda make, kind: [], derivative=NOT_DIFFERENTIABLE)
    note(op, "nll_loss")
    return op


_COUNT = Fold(
    _every_dim,
    lambda launch: (int64,),
    "i64",
    "0",
    "(i64)(x != k0)",
    "a + b",
    ("s",),
    lambda launch: (launch.params[0],),
)
_SLOPE = Expression(
    _slope_text,
    _slope_kinds,
    lambda launch: (launch.params[1][1], launch.params[0]),
    indexed=True,
)
count_targets = _part("count_targets", _count_rule, _count_host, _COUNT)
nll_slope = _part("nll_slope", _slope_rule, _slope_host, _SLOPE)


# -- margins over classes: inputs x (N, C), target, weight (C) or none; one loss for each row -------------


def _margin_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results of multi_margin_loss. Operands: x (N, C), target (N,). Params: (p, margin)."""
    x, target, *weight = operands
    assert isinstance(x, Meta) and isinstance(target, Meta)
    where = one_device(operands)
    if x.ndim != 2 or 0 in x.shape[1:]:
        raise RuntimeError(
            f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(x.shape)}"
        )
    if target.shape != x.shape[:1]:
        raise RuntimeError(
            f"inconsistent target size, expected {list(x.shape[:1])} but got {list(target.shape)}"
        )
    _check_classes(x, target, "multi_margin_loss")
    for w in weight:
        if isinstance(w, Meta) and w.numel != x.shape[1]:
            raise RuntimeError(f"inconsistent weight size, expected {x.shape[1]} but got {list(w.shape)}")
    out = Meta.contiguous_of(x.shape[:1], x.dtype, where)
    return Signature((out,), (x, target, *[w for w in weight if isinstance(w, Meta)]), params)


def _check_classes(x: Meta, target: Meta, name: str) -> None:
    if target.dtype is not int64:
        raise RuntimeError(f"expected scalar type Long but found {target.dtype.torch_name}")
    if x.dtype not in FLOATS:
        raise NotImplementedError(f"\"{name}\" not implemented for '{x.dtype.torch_name}'")


def _positive(over: Array) -> Array:
    """Return max(x, 0), with 0 for NaN, as in PyTorch."""
    return np.where(over > 0, over, over.dtype.type(0))


def _margin_host(launch: Launch) -> Body:
    p, margin = launch.params
    kind = launch.outputs[0].dtype
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, target = widen(inputs[0]), inputs[1]
        if target.size and (int(target.min()) < 0 or int(target.max()) >= x.shape[1]):
            raise RuntimeError("target out of range")
        own = np.take_along_axis(x, target[:, None], 1)
        over = _positive(x.dtype.type(margin) - own + x)
        over = over * over if p == 2 else over
        if len(inputs) > 2:
            over = over * widen(inputs[2])[target][:, None]
        np.put_along_axis(over, target[:, None], x.dtype.type(0), 1)
        np.copyto(outputs[0], np.add.reduce(over, axis=1) / x.dtype.type(x.shape[1]), casting="unsafe")

    return body


def _margin_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    target = np.array([0, 2, 1, 2])
    return [((make(4, 3), target), (1, 1.0)), ((make(4, 3), target, make(3, low=1)), (2, 0.5))]


def _margin_backward_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. Operands: a gradient for each row, then those of multi_margin_loss."""
    grad, x, *rest = operands
    assert isinstance(grad, Meta) and isinstance(x, Meta)
    found = _margin_rule([x, *rest], params)
    if grad.shape != x.shape[:1] or grad.dtype is not x.dtype:
        raise RuntimeError(f"expected a gradient of shape {list(x.shape[:1])}, got {list(grad.shape)}")
    out = Meta.contiguous_of(x.shape, x.dtype, one_device(operands))
    return Signature((out,), (grad, *found.inputs), params)


def _margin_backward_host(launch: Launch) -> Body:
    p, margin = launch.params
    kind = launch.outputs[0].dtype
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, x, target = widen(inputs[0]), widen(inputs[1]), inputs[2][:, None]
        over = _positive(x.dtype.type(margin) - np.take_along_axis(x, target, 1) + x)
        slope = (over > 0).astype(x.dtype) if p == 1 else 2 * over
        if len(inputs) > 3:
            slope = slope * widen(inputs[3])[target]
        np.put_along_axis(slope, target, x.dtype.type(0), 1)
        np.put_along_axis(slope, target, -np.add.reduce(slope, axis=1, keepdims=True), 1)
        np.copyto(outputs[0], grad[:, None] * slope / x.dtype.type(x.shape[1]), casting="unsafe")

    return body


def _margin_backward_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(x.shape[0]), x, *rest), params) for (x, *rest), params in _margin_samples(make, kind)]


def _margin_back(grad: Any, a: Any, b: Any, c: Any, params: Any, call: Any) -> Any:
    return call(multi_margin_loss_backward, (grad, a, b) if c is None else (grad, a, b, c), params)


def _margin_back_twice(grads: Any, a: Any, b: Any, c: Any, d: Any, params: Any) -> list[Any]:
    """Return the second derivatives of multi_margin_loss with respect to the gradient and, if p is 2, the scores."""
    p, margin = params
    target = c.unsqueeze(1)
    over = margin - b.gather(1, target) + b
    on = (over > 0).to(b.dtype).scatter(1, target, 0)
    apart = (grads[0] - grads[0].gather(1, target)) * on / b.shape[1]
    by_grad = (apart if p == 1 else apart * 2 * over).sum(1)
    by_weight = None
    if d is not None:
        weight = d.index_select(0, c)
        by_weight = d.new_zeros(d.shape).index_add(0, c, by_grad * a)
        by_grad, apart = by_grad * weight, apart * weight.unsqueeze(1)
    if p == 1:
        return [by_grad, None, None, by_weight]
    inner = apart * 2 * a.unsqueeze(1)
    return [by_grad, inner.scatter_add(1, target, -inner.sum(1, True)), None, by_weight]


multi_margin_loss_backward = define(
    Op(
        "multi_margin_loss_backward",
        _margin_backward_rule,
        Kernel(
            "multi_margin_loss_backward", _margin_backward_host, _flops,
            cuda=Routine("nn.margin_losses:multi_margin_loss_backward"),
        ),
        FLOATS,
        _margin_backward_samples,
        derivative=Derivative(whole=_margin_back_twice),
    )
)  # fmt: skip
multi_margin_loss = define(
    Op(
        "multi_margin_loss",
        _margin_rule,
        Kernel("multi_margin_loss", _margin_host, _flops, cuda=Routine("nn.margin_losses:multi_margin_loss")),
        FLOATS,
        _margin_samples,
        derivative=Derivative(_margin_back),
        autocast=FLOAT32,
    )
)


def _multilabel_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x, target = operands
    assert isinstance(x, Meta) and isinstance(target, Meta)
    where = one_device(operands)
    if x.ndim != 2 or 0 in x.shape[1:]:
        raise RuntimeError(
            f"Expected non-empty vector or matrix with optional 0-dim batch size, but got: {list(x.shape)}"
        )
    if target.shape != x.shape:
        raise RuntimeError(
            f"inconsistent target size: {list(target.shape)} for input of size: {list(x.shape)}"
        )
    _check_classes(x, target, "multilabel_margin_loss")
    return Signature((Meta.contiguous_of(x.shape[:1], x.dtype, where),), (x, target))


def _multilabel_host(launch: Launch) -> Body:
    kind = launch.outputs[0].dtype
    widen = to_computing(kind, kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x, target = widen(inputs[0]), inputs[1]
        if target.size and (int(target.min()) < -1 or int(target.max()) >= x.shape[1]):
            raise RuntimeError("argument #2 'target' is out of range")
        listed = np.logical_and.accumulate(target >= 0, axis=1)  # labels end at the first -1
        rows = np.broadcast_to(np.arange(len(x))[:, None], x.shape)
        labelled = np.zeros(x.shape, bool)
        labelled[rows[listed], target[listed]] = True
        own = np.take_along_axis(x, np.where(listed, target, 0), 1)
        over = _positive(1 - own[:, :, None] + x[:, None, :])
        counted = listed[:, :, None] & ~labelled[:, None, :]
        total = np.where(counted, over, x.dtype.type(0)).reshape(len(x), x.shape[1] ** 2).sum(axis=1)
        np.copyto(outputs[0], total / x.dtype.type(x.shape[1]), casting="unsafe")

    return body


def _multilabel_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(2, 4), np.array([[3, 0, -1, 1], [1, -1, 0, 0]])), ())]


def _multilabel_back(grad: Any, a: Any, b: Any) -> Any:
    listed = (b >= 0).to(int64).cumprod(1)
    places = b.clamp(min=0)
    labelled = listed.new_zeros(b.shape).scatter_add_(1, places, listed) > 0
    over = 1 - a.gather(1, places).unsqueeze(2) + a.unsqueeze(1)
    on = ((over > 0) & (listed > 0).unsqueeze(2) & ~labelled.unsqueeze(1)).to(a.dtype)
    slope = on.sum(1).scatter_add(1, places, -on.sum(2))
    return grad.unsqueeze(1) * slope / a.shape[1]


multilabel_margin_loss = define(
    Op("multilabel_margin_loss", _multilabel_rule,
       Kernel("multilabel_margin_loss", _multilabel_host, _flops,
              cuda=Routine("nn.margin_losses:multilabel_margin_loss")),
       FLOATS, _multilabel_samples, derivative=Derivative(_multilabel_back), autocast=FLOAT32,
)
)  # fmt: skip
