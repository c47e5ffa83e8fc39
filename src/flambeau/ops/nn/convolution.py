"""Convolution, its transpose and their gradients in any number of dimensions, and the columns they are made of.

# Note [How a convolution computes]
The windows of the input are copied out as columns, some samples at a time so that the copy stays small, and
one batched matrix product multiplies them by the weight of every group. The transposed convolution is that
product turned round: the columns are computed, then added up where windows overlap. So the gradient of either
by its input is the other with the same weight, and the gradient by the weight is the product of one side's
columns with the other side. TF32 rounds both factors, see Note [TF32].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.dtype import complex32, dtype, float64, int64
from flambeau.core.meta import Meta
from flambeau.driver.api import Body, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import LOWER
from flambeau.ops.gradients import conj
from flambeau.ops.linalg.matmul import c_name, product_rate, round_to_tf32, uses_tf32
from flambeau.ops.nn.windows import Ints, padded, spread, windows
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATING_OR_COMPLEX, INTEGERS, wide
from flambeau.ops.work import product_work

Array = np.ndarray[Any, Any]
CHUNK = 1 << 20  # bytes of columns made at a time: what the product reads is in the cache still


class Geometry(NamedTuple):
    """How windows lie: all but `groups` and `channels_last` have one int for each spatial dimension."""

    stride: Ints
    padding: Ints
    dilation: Ints
    transposed: bool = False
    output_padding: Ints = ()
    groups: int = 1
    channels_last: bool = False
    """The format of the gradients by x and weight: the result's, which the gradients' own inputs do not tell."""

    def reach(self, kernel: Sequence[int]) -> Ints:
        """Return the extent of a window, dilation included."""
        return tuple([d * (k - 1) + 1 for k, d in zip(kernel, self.dilation, strict=True)])

    def size(self, size: Sequence[int], kernel: Sequence[int]) -> Ints:
        """Return the spatial size of the result."""
        reach = self.reach(kernel)
        if self.transposed:
            more = self.output_padding or (0,) * len(reach)
            return tuple(
                [
                    (n - 1) * s - 2 * p + r + o
                    for n, s, p, r, o in zip(size, self.stride, self.padding, reach, more, strict=True)
                ]
            )
        return tuple(
            [
                (n + 2 * p - r) // s + 1
                for n, s, p, r in zip(size, self.stride, self.padding, reach, strict=True)
            ]
        )


# -- the rule -------------------------------------------------------------------------------------------


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Inputs x (N, C, ...), weight, and bias or none; params: a Geometry, then the flags."""
    x, weight, *bias = operands
    how = params[0]
    assert isinstance(x, Meta) and isinstance(weight, Meta)
    _check_kinds(x, weight, bias)
    where = one_device(operands, "_cudnn_convolution", ("input", "weight", "bias"))
    _check_dtypes(x, weight, bias, how)
    _check_geometry(how, weight)
    channels = _check_channels(x, weight, bias, how)
    size = how.size(x.shape[2:], weight.shape[2:])
    _check_size(x, weight, how, size)
    out = Meta.laid((x.shape[0], channels, *size), x.dtype, where, _is_last(x, weight))
    return Signature((out,), (x, weight, *[b for b in bias if isinstance(b, Meta)]), params)


def _is_last(x: Meta, weight: Meta) -> bool:
    """Return True if results are laid channels last: where either side is. oneDNN (in 3-d) and cuDNN have no float64
    so.
    """
    if x.dtype is float64 and (x.ndim == 5 or x.device.type == "cuda"):
        return False
    return x.channels_last or weight.channels_last


def _check_kinds(x: Meta, weight: Meta, bias: Sequence[Operand]) -> None:
    """Raise PyTorch's error for a CPU tensor that meets a CUDA tensor."""
    for name, y in zip(("weight", "bias"), (weight, *bias), strict=False):
        if isinstance(y, Meta) and {x.device.type, y.device.type} == {"cpu", "cuda"}:
            one, other = (
                f"torch{'.cuda' if t.device.type == 'cuda' else ''}.{t.dtype.torch_name}Tensor"
                for t in (x, y)
            )
            raise RuntimeError(f"Input type ({one}) and {name} type ({other}) should be the same")


def _check_dtypes(x: Meta, weight: Meta, bias: Sequence[Operand], how: Geometry) -> None:
    for y in (weight, *bias):
        assert isinstance(y, Meta)
        if y.dtype is not x.dtype:
            which = "weight" if y is weight else "bias"
            raise RuntimeError(
                f"Input type ({c_name(x.dtype)}) and {which} type ({c_name(y.dtype)}) should be the same"
            )
    kinds = [*FLOATING_OR_COMPLEX]
    if x.device.type != "cuda":  # cuDNN has no integers
        kinds += [int64] if how.transposed else INTEGERS
    if x.dtype not in kinds:
        raise NotImplementedError(f"\"convolution\" not implemented for '{x.dtype.torch_name}'")


def _check_geometry(how: Geometry, weight: Meta) -> None:
    if any(p < 0 for p in how.padding):
        raise RuntimeError("negative padding is not supported")
    if any(s <= 0 for s in how.stride):
        raise RuntimeError("non-positive stride is not supported")
    if any(d <= 0 for d in how.dilation):
        raise RuntimeError("dilation should be greater than zero")
    if how.groups <= 0:
        raise RuntimeError("non-positive groups is not supported")
    if weight.shape[0] < how.groups:
        raise RuntimeError(
            f"Given groups={how.groups}, expected weight to be at least {how.groups} at dimension 0, but got "
            f"weight of size {list(weight.shape)} instead"
        )
    if weight.shape[0] % how.groups:
        raise RuntimeError(
            f"Given groups={how.groups}, expected weight to be divisible by {how.groups} at dimension 0, but got "
            f"weight of size {list(weight.shape)} instead"
        )
    for more, s, d in zip(how.output_padding, how.stride, how.dilation, strict=False):
        if more >= s and more >= d:
            raise RuntimeError(
                "output padding must be smaller than either stride or dilation, but got "
                f"output_padding: {list(how.output_padding)}, stride: {list(how.stride)}, "
                f"dilation: {list(how.dilation)}"
            )


def _check_channels(x: Meta, weight: Meta, bias: Sequence[Operand], how: Geometry) -> int:
    """How many channels the result has."""
    kind = "transposed=1, " if how.transposed else f"groups={how.groups}, "
    wanted = weight.shape[0] if how.transposed else weight.shape[1] * how.groups
    if x.shape[1] != wanted:
        raise RuntimeError(
            f"Given {kind}weight of size {list(weight.shape)}, expected input{list(x.shape)} to have {wanted} "
            f"channels, but got {x.shape[1]} channels instead"
        )
    channels = weight.shape[1] * how.groups if how.transposed else weight.shape[0]
    for b in bias:
        if isinstance(b, Meta) and b.shape != (channels,):
            raise RuntimeError(
                f"Given {kind}weight of size {list(weight.shape)}, expected bias to be 1-dimensional with {channels} "
                f"elements, but got bias of size {list(b.shape)} instead"
            )
    return channels


def _check_size(x: Meta, weight: Meta, how: Geometry, size: Ints) -> None:
    if how.transposed:
        if any(n < 0 for n in size):
            raise RuntimeError(f"Given input size per channel: {list(x.shape[2:])}. Output size is too small")
        return
    whole = [n + 2 * p for n, p in zip(x.shape[2:], how.padding, strict=True)]
    reach = how.reach(weight.shape[2:])
    if any(n < r for n, r in zip(whole, reach, strict=True)):
        raise RuntimeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, whole))}). Kernel size: "
            f"({' x '.join(map(str, reach))}). Kernel size can't be greater than actual input size"
        )


# -- the host body --------------------------------------------------------------------------------------


def _host(launch: Launch) -> Body:
    how: Geometry = launch.params[0]
    kind = launch.outputs[0].dtype
    compute = _transposed if how.transposed else _forward
    prepare, widen, computed = _prepare(launch), to_computing(kind, kind), wide(kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        out = outputs[0] if computed is kind else np.empty(outputs[0].shape, computed.numpy)
        if inputs[0].size and inputs[1].size:
            compute(out, prepare(inputs[0]), prepare(inputs[1]), how)
        else:
            out[...] = 0
        if len(inputs) > 2:
            out += widen(inputs[2]).reshape(-1, *(1,) * (out.ndim - 2))
        if out is not outputs[0]:
            np.copyto(outputs[0], out, casting="unsafe")

    return body


def _prepare(launch: Launch) -> Callable[[Array], Array]:
    """How a factor is brought to what the product computes in."""
    kind = launch.outputs[0].dtype
    return round_to_tf32 if uses_tf32(launch) else to_computing(kind, kind)


def chunks(count: int, nbytes: int) -> Iterable[slice]:
    """Runs of `count` samples of `nbytes` each, of CHUNK bytes at most where one sample fits."""
    step = max(1, CHUNK // max(nbytes, 1))
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]


def _forward(out: Array, x: Array, weight: Array, how: Geometry) -> None:
    kernel, count = weight.shape[2:], out.shape[2:]
    groups, taps, places = how.groups, math.prod(weight.shape[1:]), math.prod(count)
    x = padded(x, [(p, p) for p in how.padding])
    by_group = weight.reshape(groups, weight.shape[0] // groups, taps)
    for part in chunks(len(x), groups * taps * places * x.itemsize):
        found = windows(x[part], kernel, how.stride, how.dilation, count)
        columns = found.reshape(-1, groups, taps, places)
        if out.flags.c_contiguous:
            np.matmul(by_group, columns, out=out[part].reshape(-1, groups, by_group.shape[1], places))
        else:
            np.copyto(out[part], np.matmul(by_group, columns).reshape(out[part].shape))


def _transposed(out: Array, x: Array, weight: Array, how: Geometry) -> None:
    kernel, count = weight.shape[2:], x.shape[2:]
    groups, places = how.groups, math.prod(count)
    inner, taps = weight.shape[0] // groups, math.prod(weight.shape[1:])
    by_group = weight.reshape(groups, inner, taps).swapaxes(1, 2)
    product = np.multiply if inner == 1 else np.matmul  # nothing to sum: the same numbers, sooner
    reach = how.reach(kernel)
    pads = tuple(
        [
            (p, (n - 1) * s + r - p - m)
            for n, s, r, p, m in zip(count, how.stride, reach, how.padding, out.shape[2:], strict=True)
        ]
    )
    pads = tuple([(a, max(b, 0)) for a, b in pads])
    for part in chunks(len(x), groups * taps * places * x.itemsize):
        columns = product(by_group, x[part].reshape(-1, groups, inner, places))
        columns = columns.reshape(-1, out.shape[1], *kernel, *count)
        added = spread(columns, kernel, how.stride, how.dilation, pads, out.shape[2:])
        np.copyto(out[part], added)


def _flops(launch: Launch) -> int:
    x, weight = launch.inputs[:2]
    assert isinstance(x, Meta) and isinstance(weight, Meta)
    return _meetings(x if launch.params[0].transposed else launch.outputs[0], weight)


def _meetings(narrow: Meta, weight: Meta) -> int:
    """Return each element of the side that windows lie at meets all weights of its channel."""
    return 2 * narrow.numel * weight.numel // max(weight.shape[0], 1)


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(2, 3, 7), make(4, 3, 3), make(4)), (Geometry((1,), (1,), (1,)),)
    yield (make(2, 4, 6, 5), make(6, 2, 3, 2)), (Geometry((2, 1), (1, 0), (1, 2), groups=2),)
    yield (make(1, 2, 3, 4, 4), make(2, 2, 2, 3, 3)), (Geometry((1, 1, 1), (0, 1, 1), (1, 1, 1)),)
    yield (make(2, 4, 5), make(4, 3, 3), make(6)), (Geometry((2,), (1,), (1,), True, (1,), 2),)
    yield (make(1, 2, 3, 4), make(2, 3, 2, 2)), (Geometry((1, 2), (0, 1), (2, 1), True, (0, 1)),)


FLAGS = ("cudnn_enabled", "cudnn_allow_tf32")
"""The flags of all three records; the last of their params is TF32's."""


def _x_back(grad: Any, b: Any, metas: Any, params: Any, call: Any) -> Any:
    return call(convolution_backward_input, (grad, conj(b)), (_laid(params[0], metas), metas[0].shape[2:]))


def _w_back(grad: Any, a: Any, metas: Any, params: Any, call: Any) -> Any:
    return call(convolution_backward_weight, (grad, conj(a)), (_laid(params[0], metas), metas[1].shape[2:]))


def _laid(how: Geometry, metas: Any) -> Geometry:
    return how._replace(channels_last=True) if _is_last(metas[0], metas[1]) else how


def _bias_back(grad: Any) -> Any:
    return grad.sum((0, *range(2, grad.ndim)))


convolution = define(
    Op(
        "convolution",
        _rule,
        Kernel(
            "convolution",
            _host,
            _flops,
            rate=product_rate,
            cuda=Routine("nn.direct_convolution:convolution", library="nn.convolution:convolution"),
            work=product_work.convolution,
        ),
        FLOATING_OR_COMPLEX,
        _samples,
        flags=FLAGS,
        derivative=Derivative(_x_back, _w_back, _bias_back),
        autocast=LOWER,
    )
)


# -- gradients: of a sum of the result's elements times `grad`, nothing conjugated ------------------------


def _input_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """grad (N, O, ...) and the weight to the gradient by x; params: Geometry, x's spatial size, flags."""
    grad, weight = operands
    how, size = params[:2]
    assert isinstance(grad, Meta) and isinstance(weight, Meta)
    channels = weight.shape[0] if how.transposed else weight.shape[1] * how.groups
    x = Meta.laid((grad.shape[0], channels, *size), grad.dtype, one_device(operands), how.channels_last)
    _check_grad(grad, x, weight, how)
    return Signature((x,), (grad, weight), params)


def _check_grad(grad: Meta, x: Meta, weight: Meta, how: Geometry) -> None:
    _check_dtypes(x, weight, (), how)
    channels = weight.shape[1] * how.groups if how.transposed else weight.shape[0]
    wanted = (x.shape[0], channels, *how.size(x.shape[2:], weight.shape[2:]))
    if grad.shape != wanted or grad.dtype is not x.dtype:
        raise RuntimeError(
            f"Expected the gradient of a convolution to have shape {list(wanted)} and dtype {x.dtype}, but got "
            f"{list(grad.shape)} and {grad.dtype}"
        )


def _input_host(launch: Launch) -> Body:
    how: Geometry = launch.params[0]
    kind = launch.outputs[0].dtype
    compute, prepare, computed = (_forward if how.transposed else _transposed), _prepare(launch), wide(kind)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        grad, weight = inputs
        out = outputs[0] if computed is kind else np.empty(outputs[0].shape, computed.numpy)
        if grad.size and weight.size:
            compute(out, prepare(grad), prepare(weight), how)
        else:
            out[...] = 0
        if out is not outputs[0]:
            np.copyto(outputs[0], out, casting="unsafe")

    return body


def _weight_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """grad and x to the gradient by the weight; params: Geometry, the kernel's spatial size, flags."""
    grad, x = operands
    how, kernel = params[:2]
    assert isinstance(grad, Meta) and isinstance(x, Meta)
    narrow, broad = (x, grad) if how.transposed else (grad, x)
    shape = (narrow.shape[1], broad.shape[1] // how.groups, *kernel)
    weight = Meta.laid(shape, x.dtype, one_device(operands), how.channels_last)
    _check_grad(grad, x, weight, how)
    return Signature((weight,), (grad, x), params)


def _weight_host(launch: Launch) -> Body:
    how, kernel = launch.params[:2]
    prepare = _prepare(launch)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        broad, narrow = map(prepare, inputs if how.transposed else inputs[::-1])
        np.copyto(outputs[0], _weight(narrow, broad, kernel, how).reshape(outputs[0].shape), casting="unsafe")

    return body


def _weight(narrow: Array, broad: Array, kernel: Ints, how: Geometry) -> Array:
    """Return the windows of `broad` (N, C, ...) times `narrow` (N, O, windows ...): (groups, O / groups, taps)."""
    groups, count = how.groups, narrow.shape[2:]
    inner, places = narrow.shape[1] // groups, math.prod(count)
    taps = broad.shape[1] // groups * math.prod(kernel)
    out = np.zeros((groups, inner, taps), narrow.dtype)
    ends = zip(broad.shape[2:], count, how.stride, how.padding, how.reach(kernel), strict=True)
    pads = [(p, max((m - 1) * s + r - p - n, 0)) for n, m, s, p, r in ends]
    broad = padded(broad, pads)
    for part in chunks(len(broad), groups * taps * places * broad.itemsize):
        found = windows(broad[part], kernel, how.stride, how.dilation, count)
        columns = np.moveaxis(found, 0, len(kernel) + 1).reshape(groups, taps, -1)
        side = np.moveaxis(narrow[part].reshape(-1, groups, inner, places), 0, 2).reshape(groups, inner, -1)
        out += np.matmul(side, columns.swapaxes(1, 2))
    return out


def _input_flops(launch: Launch) -> int:
    grad, weight = launch.inputs
    assert isinstance(grad, Meta) and isinstance(weight, Meta)
    return _meetings(launch.outputs[0] if launch.params[0].transposed else grad, weight)


def _weight_flops(launch: Launch) -> int:
    grad, x = launch.inputs
    assert isinstance(grad, Meta) and isinstance(x, Meta)
    return _meetings(x if launch.params[0].transposed else grad, launch.outputs[0])


def _input_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for (x, weight, *_), (how,) in _samples(make, kind):
        yield (make(*_result_shape(x, weight, how)), weight), (how, x.shape[2:])


def _weight_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for (x, weight, *_), (how,) in _samples(make, kind):
        yield (make(*_result_shape(x, weight, how)), x), (how, weight.shape[2:])


def _result_shape(x: Array, weight: Array, how: Geometry) -> Ints:
    channels = weight.shape[1] * how.groups if how.transposed else weight.shape[0]
    return (x.shape[0], channels, *how.size(x.shape[2:], weight.shape[2:]))


def _input_back(grad: Any, b: Any, params: Any, call: Any) -> Any:
    return call(convolution, (grad, conj(b)), params[:1])


def _input_weight_back(grad: Any, a: Any, metas: Any, params: Any, call: Any) -> Any:
    return call(convolution_backward_weight, (conj(a), grad), (params[0], metas[1].shape[2:]))


convolution_backward_input = define(
    Op(
        "convolution_backward_input", _input_rule,
        Kernel(
            "convolution_backward_input", _input_host, _input_flops, rate=product_rate,
            cuda=Routine(library="nn.convolution:backward_input"), work=product_work.convolution_of_input,
        ),
        FLOATING_OR_COMPLEX, _input_samples, flags=FLAGS,
        derivative=Derivative(_input_back, _input_weight_back),
    )
)  # fmt: skip
convolution_backward_weight = define(
    Op(
        "convolution_backward_weight", _weight_rule,
        Kernel(
            "convolution_backward_weight", _weight_host, _weight_flops, rate=product_rate,
            cuda=Routine(library="nn.convolution:backward_weight"), work=product_work.convolution_of_weight,
        ),
        FLOATING_OR_COMPLEX, _weight_samples, flags=FLAGS,
        derivative=Derivative(
            lambda grad, b, params, call: call(convolution, (conj(b), grad), params[:1]),
            lambda grad, a, metas, params, call: call(
                convolution_backward_input, (conj(a), grad), (params[0], metas[1].shape[2:])
            ),
        ),
    )
)  # fmt: skip


# -- unfold and fold: the columns themselves --------------------------------------------------------------


def _unfold_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """x (N, C, H, W) to (N, C * taps, windows); params: (kernel, Geometry)."""
    x = operands[0]
    kernel, how = params
    assert isinstance(x, Meta)
    size = how.size(x.shape[2:], kernel)
    if any(n <= 0 for n in size):
        raise RuntimeError(
            f"Given input with spatial size {_tuple(x.shape[2:])}, kernel_size={_tuple(kernel)}, "
            f"dilation={_tuple(how.dilation)}, padding={_tuple(how.padding)}, calculated shape of the array of "
            f"sliding blocks as {_tuple(size)}, but its components must be at least one."
        )
    shape = (x.shape[0], x.shape[1] * math.prod(kernel), math.prod(size))
    return Signature((Meta.contiguous_of(shape, x.dtype, x.device),), (x,), params)


def _tuple(values: Iterable[int]) -> str:
    return f"({', '.join(map(str, values))})"


def _unfold_host(launch: Launch) -> Body:
    kernel, how = launch.params
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    count, kind = how.size(source.shape[2:], kernel), source.dtype
    # NumPy makes no strided views of complex32.
    prepare: Callable[[Array], Array] = to_computing(kind, kind) if kind is complex32 else lambda x: x

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = padded(prepare(inputs[0]), [(p, p) for p in how.padding])
        found = windows(x, kernel, how.stride, how.dilation, count)
        np.copyto(outputs[0], found.reshape(outputs[0].shape), casting="unsafe")

    return body


def _fold_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """x (N, C * taps, windows) to (N, C, H, W); params: (output size, kernel, Geometry)."""
    x = operands[0]
    size, kernel, how = params
    assert isinstance(x, Meta)
    taps, count = math.prod(kernel), how.size(size, kernel)
    if x.shape[1] % taps:
        raise RuntimeError(
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got "
            f"input.size(1)={x.shape[1]} and kernel_size={_tuple(kernel)}."
        )
    if any(n <= 0 for n in count) or x.shape[2] != math.prod(count):
        raise RuntimeError(
            f"Given output_size={_tuple(size)}, kernel_size={_tuple(kernel)}, dilation={_tuple(how.dilation)}, "
            f"padding={_tuple(how.padding)}, stride={_tuple(how.stride)}, expected size of input's dimension 2 to "
            f"match the calculated number of sliding blocks {' * '.join(map(str, count))} = {math.prod(count)}, but "
            f"got input.size(2)={x.shape[2]}."
        )
    out = Meta.contiguous_of((x.shape[0], x.shape[1] // taps, *size), x.dtype, x.device)
    return Signature((out,), (x,), params)


def _fold_host(launch: Launch) -> Body:
    size, kernel, how = launch.params
    count, kind = how.size(size, kernel), launch.outputs[0].dtype
    widen, pads = to_computing(kind, kind), tuple([(p, p) for p in how.padding])

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        out = outputs[0]
        columns = widen(inputs[0]).reshape(*out.shape[:2], *kernel, *count)
        np.copyto(out, spread(columns, kernel, how.stride, how.dilation, pads, size), casting="unsafe")

    return body


_PLAIN, _WIDE = Geometry((1, 1), (0, 0), (1, 1)), Geometry((2, 1), (1, 1), (1, 2))


def _unfold_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(2, 3, 5, 6),), ((3, 2), how)) for how in (_PLAIN, _WIDE)]


def _fold_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    return [((make(2, 12, 12),), ((4, 5), (2, 2), _PLAIN)), ((make(1, 12, 15),), ((4, 5), (2, 2), _WIDE))]


def _unfold_back(grad: Any, metas: Any, params: Any, call: Any) -> Any:
    return call(fold, (grad,), (metas[0].shape[2:], *params))


unfold = define(
    Op(
        "unfold", _unfold_rule, Kernel("unfold", _unfold_host, cuda=Routine("nn.im2col:unfold")), FLOATING_OR_COMPLEX,
        _unfold_samples,
        derivative=Derivative(_unfold_back, name="Im2ColBackward0", linear="together"),
    )
)  # fmt: skip
fold = define(
    Op(
        "fold",
        _fold_rule,
        Kernel("fold", _fold_host, cuda=Routine("nn.im2col:fold")),
        FLOATING_OR_COMPLEX,
        _fold_samples,
        derivative=Derivative(
            lambda grad, params, call: call(unfold, (grad,), params[1:]),
            name="Col2ImBackward0",
            linear="together",
        ),
    )
)
