"""The gradients of normalization: one operator for each grouping of elements, one formula for all.

Inputs: grad, x and the weight if there is one. Results: gradients of x, and of weight and bias if present. Mean and
standard deviation are recomputed, which costs less than saving them; only batch norm saves them, because they are few
numbers that need all of x. See Note [Moments of batches].

# Note [How x is seen]
x is viewed in a shape in which the elements that are normalized together lie along some dimensions, and the weight
along others: layers (..., *normalized), groups (N, G, C / G, ...), batches (N, C, ...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.layout import Strides, contiguous_strides, result_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.derivative_helpers import refuse_derivative
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, wide
from flambeau.ops.reduce.reduce_rows import grouping, pairwise_sum
from flambeau.ops.work import row_work, workspaces

Array = np.ndarray[Any, Any]
Params = tuple[Any, ...]
Ints = tuple[int, ...]


class Seen(NamedTuple):
    """The shape in which a normalization views x, the normalized dims, and the dims of the weight.

    See Note [How x is seen].
    """

    shape: Ints
    dims: Ints
    weighted: Ints

    @property
    def others(self) -> Ints:
        """Return the dims over which a weight is shared."""
        return tuple([d for d in range(len(self.shape)) if d not in self.weighted])

    @property
    def length(self) -> int:
        return math.prod([self.shape[d] for d in self.dims])

    @property
    def row(self) -> Ints:
        """Return the shape with which weights broadcast over x."""
        return tuple([n if d in self.weighted else 1 for d, n in enumerate(self.shape)])


def seen_by_layer(shape: Ints, params: Params) -> Seen:
    """Return the view of layer_norm. Params: (number of trailing dimensions, eps, (weight?, bias?))."""
    dims = tuple(range(len(shape) - params[0], len(shape)))
    return Seen(shape, dims, dims)


def seen_by_group(shape: Ints, params: Params) -> Seen:
    """Return the view of group_norm. Params: (groups, eps, (weight?, bias?))."""
    groups = params[0]
    split = (shape[0], groups, shape[1] // groups, *shape[2:])
    return Seen(split, tuple(range(2, len(split))), (1, 2))


def seen_by_batch(shape: Ints, params: Params) -> Seen:
    """Return the view of batch_norm. Params: (eps, (weight?, bias?))."""
    return Seen(shape, (0, *range(2, len(shape))), (1,))


See = Callable[[Ints, Params], Seen]


# -- the rule and the host body ---------------------------------------------------------------------------------


Laid = Callable[[Meta, Meta], Strides]
"""The strides of the gradient by x, from the metas of grad and x."""


def contiguous(grad: Meta, x: Meta) -> Strides:
    return contiguous_strides(x.shape)


def as_input(grad: Meta, x: Meta) -> Strides:
    return x.suggest(x.shape).strides


def as_input_on_cpus(grad: Meta, x: Meta) -> Strides:
    return as_input(grad, x) if x.device.type != "cuda" else contiguous(grad, x)


def as_products(grad: Meta, x: Meta) -> Strides:
    """Return the strides that PyTorch's gradient has as a composition of products: on GPUs channels last if both
    operands are.
    """
    if x.device.type != "cuda":
        return result_strides(x.shape, grad.strides, x.strides)
    return as_input(grad, x) if grad.channels_last else contiguous(grad, x)


def _rule_of(
    name: str, see: See, laid: Laid, moments: int = 0
) -> Callable[[Sequence[Operand], Params], Signature]:
    """Return the inference of a gradient; `moments` is the number of inputs between x and the weight."""

    def rule(operands: Sequence[Operand], params: Params) -> Signature:
        metas = [x for x in operands if isinstance(x, Meta)]
        grad, x, *weights = [*metas[:2], *metas[2 + moments :]]
        where, given = one_device(metas), params[-1]
        if x.dtype not in FLOATS:
            raise NotImplementedError(f"\"{name}\" not implemented for '{x.dtype.torch_name}'")
        if grad.shape != x.shape or grad.dtype is not x.dtype:
            raise RuntimeError(
                f"{name}(): expected a gradient of shape {list(x.shape)} and dtype {x.dtype}, but got "
                f"{list(grad.shape)} and {grad.dtype}"
            )
        seen = see(x.shape, params)
        kind = weights[0].dtype if weights else wide(x.dtype)
        shape = weights[0].shape if weights else _vector(seen)
        made = [Meta.contiguous_of(shape, kind, where)] * sum(given)
        out = Meta.of(x.shape, laid(grad, x), x.dtype, where)
        return Signature((out, *made), tuple(metas), (seen, *params[-2:]))

    return rule


def _vector(seen: Seen) -> Ints:
    """Return the shape of a bias that has no weight: channels are one dimension."""
    shape = tuple([seen.shape[d] for d in seen.weighted])
    return shape if seen.weighted == seen.dims else (math.prod(shape),)


def _host_of(centered: bool, given_moments: bool = False) -> Callable[[Launch], Body]:
    def host(launch: Launch) -> Body:
        seen, eps, given = launch.params
        kind, shape = launch.outputs[0].dtype, launch.outputs[0].shape
        widen, mean, total = to_computing(kind, kind), _mean(seen), _total(seen)

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            grad, x = (widen(a).reshape(seen.shape) for a in inputs[:2])
            scaled = grad * inputs[-1].astype(grad.dtype).reshape(seen.row) if given[0] else grad
            if given_moments:
                middle, scale = (a.reshape(seen.row) for a in inputs[2:4])
                away = x - middle
            else:
                away = x - mean(x) if centered else x
                scale = 1 / np.sqrt(mean(away * away) + x.dtype.type(eps))
            away = away * scale
            inner = scaled - away * mean(scaled * away)
            if centered:
                inner -= mean(scaled)
            inner *= scale
            np.copyto(outputs[0], inner.reshape(shape), casting="unsafe")
            if given[0]:
                np.copyto(outputs[1], total(grad * away).reshape(outputs[1].shape), casting="unsafe")
            if given[1]:
                np.copyto(outputs[-1], total(grad).reshape(outputs[-1].shape), casting="unsafe")

        return body

    return host


def _mean(seen: Seen) -> Callable[[Array], Array]:
    """Return the means over all elements that are normalized together."""
    group, length = grouping(seen.shape, seen.dims), max(seen.length, 1)
    shape = [1 if d in seen.dims else n for d, n in enumerate(seen.shape)]
    return lambda x: pairwise_sum(group(x)).reshape(shape) / x.dtype.type(length)


def _total(seen: Seen) -> Callable[[Array], Array]:
    """Return the sums over all elements that share a weight."""
    group = grouping(seen.shape, seen.others)
    return lambda x: pairwise_sum(group(x))


# -- the derivative: of a gradient, by the result's gradient, x and the weight -------------------------------------


def widen(*tensors: Any) -> list[Any]:
    """Return tensors in half precision as float32."""
    return [t if t is None else t.to(wide(t.dtype)) for t in tensors]


def _back_of(see: See, centered: bool) -> Callable[..., Any]:
    # With z = (x - mean) * scale and P(v) = v - mean(v) - z * mean(v * z), which is its own transpose, the record
    # gives scale * P(grad * weight), sum(grad * z) and sum(grad). So much for `down`, `across` and `along`, the
    # gradients of these three.
    def back(grads: Any, a: Any, b: Any, c: Any, metas: Any, params: Params) -> list[Any]:
        *_, eps, given = params
        seen = see(a.shape, params)
        down, grad, x = (t.reshape(seen.shape) for t in widen(grads[0], a, b))
        weight, across = (t.reshape(seen.row) for t in widen(c, grads[1])) if given[0] else (None, None)

        def mean(t: Any) -> Any:
            return t.mean(seen.dims, True)

        away = x - mean(x) if centered else x
        scale = (mean(away * away) + eps).rsqrt()
        z = away * scale

        def project(t: Any) -> Any:
            rest = t - z * mean(t * z)
            return rest - mean(t) if centered else rest

        scaled = grad if weight is None else grad * weight
        turned = project(down)
        by_scale = -scale * scale * z * mean(turned * scaled)
        by_z = -scale * scale * project(down * mean(scaled * z) + scaled * mean(down * z))
        by_grad, by_x = turned * scale, by_scale + by_z
        if weight is not None:
            by_grad = by_grad * weight + across * z
            by_x = by_x + scale * project(across * grad)
        if given[1]:
            by_grad = by_grad + grads[-1].reshape(seen.row)
        found = [by_grad.reshape(a.shape), by_x.reshape(a.shape)]
        if weight is not None:
            by_weight = grad * scale * turned
            shared = (
                by_weight.sum(seen.others) if seen.others else by_weight
            )  # for NumPy, a sum over no dims is one over all
            found.append(shared.reshape(c.shape))
        return found

    return back


# -- the records --------------------------------------------------------------------------------------------------


def _flops(launch: Launch) -> int:
    return 16 * launch.outputs[0].numel


def _layer_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4, 5), make(3, 4, 5), make(5)), (1, 1e-5, (True, True))
    yield (make(3, 4, 5), make(3, 4, 5), make(4, 5)), (2, 1e-3, (True, False))
    yield (make(3, 4), make(3, 4)), (1, 1e-5, (False, False))


def _rms_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4, 5), make(3, 4, 5), make(5)), (1, 1e-5, (True, False))
    yield (make(3, 4), make(3, 4)), (2, 1e-3, (False, False))


def _group_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(2, 4, 5), make(2, 4, 5), make(4)), (2, 1e-5, (True, True))
    yield (make(2, 6, 3, 2), make(2, 6, 3, 2)), (3, 1e-3, (False, True))


def _batch_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(4, 3), make(4, 3), make(3)), (1e-5, (True, True))
    yield (make(2, 3, 4, 2), make(2, 3, 4, 2)), (1e-3, (False, True))
    yield (make(2, 3, 4), make(2, 3, 4)), (1e-3, (False, False))


def _moment_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    number = wide(kind).numpy
    for (grad, x, *weights), params in _batch_samples(make, kind):
        rows = np.swapaxes(x.astype(np.float64), 0, 1).reshape(x.shape[1], -1)
        moments = rows.mean(1), 1 / np.sqrt(rows.var(1) + params[0])
        yield (grad, x, *[m.astype(number) for m in moments], *weights), params


def _define(name: str, see: See, laid: Laid, samples: Any, centered: bool = True) -> Op:
    kernel = Kernel(
        name,
        _host_of(centered),
        _flops,
        cuda=Routine(f"nn.normalizing_gradients:{name}"),
        work=row_work.norm_gradient(4.7),
    )
    back = Derivative(whole=_back_of(see, centered))
    return define(Op(name, _rule_of(name, see, laid), kernel, FLOATS, samples, derivative=back))


layer_norm_backward = _define("layer_norm_backward", seen_by_layer, contiguous, _layer_samples)
rms_norm_backward = _define("rms_norm_backward", seen_by_layer, as_products, _rms_samples, centered=False)
group_norm_backward = _define("group_norm_backward", seen_by_group, as_input_on_cpus, _group_samples)
batch_norm_backward = _define("batch_norm_backward", seen_by_batch, as_input, _batch_samples)


# Note [Moments of batches]
# The forward pass leaves each channel's mean and scale, so that the backward pass need not read all of x for them.
# They are functions of x; where a second derivative may be wanted they are computed again, by a record whose gradient
# is known.
batch_norm_backward_by_moments = define(
    Op(
        "batch_norm_backward_by_moments",
        _rule_of("batch_norm_backward", seen_by_batch, as_input, 2),
        Kernel(
            "batch_norm_backward_by_moments",
            _host_of(True, True),
            _flops,
            cuda=Routine("nn.normalizing_gradients:batch_norm_backward_by_moments"),
            work=row_work.norm_gradient(5.4),
            workspace=workspaces.sums_of_channels,
        ),
        FLOATS,
        _moment_samples,
        derivative=refuse_derivative("batch_norm_backward_by_moments"),
    )
)


def of_batch(grad: Any, a: Any, b: Any, out1: Any, out2: Any, params: Params, call: Any) -> Any:
    """Return the derivative formula of batch_norm_train."""
    weights = (b,) if params[-1][0] else ()
    if any(t.requires_grad for t in (grad, a, *weights)):
        found = call(batch_norm_backward, (grad, a, *weights), params)
    else:
        found = call(batch_norm_backward_by_moments, (grad, a, out1, out2, *weights), params)
    return found if isinstance(found, tuple) else (found,)


def given_to(record: Op) -> Callable[..., Any]:
    """Return the derivative formula of a normalization whose gradient the operator `record` computes."""

    def back(grad: Any, a: Any, b: Any, params: Params, call: Any) -> Any:
        found = call(record, (grad, a, b) if params[-1][0] else (grad, a), params)
        return found if isinstance(found, tuple) else (found,)

    return back
