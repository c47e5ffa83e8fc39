"""Convolution, its transpose and their gradients in any number of dimensions, and unfold and fold.

The reference implementations add one tap of the kernel after the other. The input gradient of a convolution is the
transposed convolution with the same weight, and vice versa. TF32 rounds both factors, see Note [TF32].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.dtype import INTEGRAL, complex32, dtype, float64, int64
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Routine
from flambeau.ops.autocast_rules import LOWER
from flambeau.ops.derivative_helpers import conj
from flambeau.ops.linalg.matmul import c_name, product_rate, round_to_tf32, uses_tf32
from flambeau.ops.nn.sliding_windows import Ints, pad_axes, spread, taps, windows
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATING_OR_COMPLEX, INTEGERS, REFUSED
from flambeau.ops.work import convolution_work, element_work, workspaces

Array = np.ndarray[Any, Any]


class Geometry(NamedTuple):
    """The positions of windows. All fields but `groups` and `channels_last` have one int for each spatial dimension."""

    stride: Ints
    padding: Ints
    dilation: Ints
    transposed: bool = False
    output_padding: Ints = ()
    groups: int = 1
    channels_last: bool = False
    """The format of the gradients by x and weight: the result's, which the inputs of the gradients do not determine."""

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
    """Infer the results. Inputs x (N, C, ...), weight, and bias or none; params: a Geometry, then the flags."""
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
    """Return True if results have channels last: if an operand has it, except for float64 in cuDNN and 3-d oneDNN."""
    if x.dtype is float64 and (x.ndim == 5 or x.device.type == "cuda"):
        return False
    return x.channels_last or weight.channels_last


def _check_kinds(x: Meta, weight: Meta, bias: Sequence[Operand]) -> None:
    """Raise PyTorch's error for a CPU tensor together with a CUDA tensor."""
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
    if any(p < 0 for p in how.output_padding):
        raise RuntimeError("negative output_padding is not supported")
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
    """Check the numbers of channels. Returns the number of channels of the result."""
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
        _check_transposed_size(x, size)
    else:
        whole = [n + 2 * p for n, p in zip(x.shape[2:], how.padding, strict=True)]
        reach = how.reach(weight.shape[2:])
        if any(n < r for n, r in zip(whole, reach, strict=True)):
            raise RuntimeError(
                f"Calculated padded input size per channel: {_sizes(whole)}. Kernel size: {_sizes(reach)}. Kernel size "
                "can't be greater than actual input size"
            )
    if 0 in x.shape[2:] and all(x.shape[:2]):
        raise RuntimeError(
            "Only zero batch or zero channel inputs are supported, but got input shape: "
            f"{[*x.shape[:2], *_planes(x.shape[2:])]}"
        )


def _check_transposed_size(x: Meta, size: Ints) -> None:
    if any(n < 0 for n in size) or (x.shape[0] and 0 in size):
        raise RuntimeError(
            f"Given input size per channel: {_sizes(_planes(x.shape[2:]))}. Calculated output size per channel: "
            f"{_sizes(_planes(size))}. Output size is too small"
        )


def _planes(sizes: Ints) -> Ints:
    """Return the sizes of a signal as those of an image of one row, as which PyTorch convolves it."""
    return (1, *sizes) if len(sizes) == 1 else sizes


def _sizes(sizes: Sequence[int]) -> str:
    return f"({' x '.join(map(str, sizes))})"


# -- the reference implementation -----------------------------------------------------------------------


def _host(launch: Launch) -> Body:
    how: Geometry = launch.params[0]
    return _sum_body(launch, add_windows if how.transposed else sum_windows)


def _sum_body(launch: Launch, compute: Callable[[Array, Array, Geometry, Ints], Array]) -> Body:
    how, out, convert = launch.params[0], launch.outputs[0], factor_conversion(launch)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        found = compute(convert(inputs[0]), convert(inputs[1]), how, out.shape[2:])
        add_bias(found, inputs[2:], out.dtype)
        np.copyto(outputs[0], found, casting="unsafe")

    return body


def factor_conversion(launch: Launch) -> Callable[[Array], Array]:
    """Return the function that converts a factor to the dtype of the product's computation."""
    kind = launch.outputs[0].dtype
    return round_to_tf32 if uses_tf32(launch) else to_computing(kind, kind)


def add_bias(out: Array, bias: Sequence[Array], kind: dtype) -> None:
    """Add the bias of each channel, if there is one, to results of dtype `kind`."""
    for b in bias:
        out += to_computing(kind, kind)(b).reshape(-1, *(1,) * (out.ndim - 2))


def sum_windows(x: Array, weight: Array, how: Geometry, size: Ints) -> Array:
    """Return out[n, o, i] = sum of weight[o, c, tap] * x[n, c, i * stride + tap * dilation] over c and taps."""
    x, weight = _by_group(pad_axes(x, [(p, p) for p in how.padding]), how, 1), _by_group(weight, how, 0)
    out = np.zeros((len(x), *weight.shape[:2], *size), x.dtype)
    for tap, places in taps(weight.shape[3:], how.stride, how.dilation, size):
        out += np.einsum("goc,ngc...->ngo...", _at_tap(weight, tap), x[places])
    return out.reshape(len(x), math.prod(weight.shape[:2]), *size)


def add_windows(x: Array, weight: Array, how: Geometry, size: Ints) -> Array:
    """Compute the transpose: out[n, o, i * stride + tap * dilation] += weight[c, o, tap] * x[n, c, i]."""
    x, weight = _by_group(x, how, 1), _by_group(weight, how, 0)
    around = [n + 2 * p for n, p in zip(size, how.padding, strict=True)]
    out = np.zeros((len(x), how.groups, weight.shape[2], *around), x.dtype)
    for tap, places in taps(weight.shape[3:], how.stride, how.dilation, x.shape[3:]):
        out[places] += np.einsum("gco,ngc...->ngo...", _at_tap(weight, tap), x)
    inner: list[Any] = [slice(p, p + n) for n, p in zip(size, how.padding, strict=True)]
    return out[(..., *inner)].reshape(len(x), how.groups * weight.shape[2], *size)


def sum_products(narrow: Array, broad: Array, how: Geometry, kernel: Ints) -> Array:
    """Return out[o, c, tap] = sum of narrow[n, o, i] * broad[n, c, i * stride + tap * dilation] over n and i."""
    narrow, broad = (_by_group(x, how, 1) for x in (narrow, pad_axes(broad, [(p, p) for p in how.padding])))
    out = np.zeros((how.groups, narrow.shape[2], broad.shape[2], *kernel), narrow.dtype)
    for tap, places in taps(kernel, how.stride, how.dilation, narrow.shape[3:]):
        sides = (x.reshape(*x.shape[:3], math.prod(x.shape[3:])) for x in (narrow, broad[places]))
        _at_tap(out, tap)[...] = np.einsum("ngoi,ngci->goc", *sides)
    return out.reshape(how.groups * narrow.shape[2], *out.shape[2:])


def _at_tap(weight: Array, tap: Ints) -> Array:
    place: tuple[Any, ...] = (..., *tap)
    return weight[place]


def _by_group(x: Array, how: Geometry, axis: int) -> Array:
    """Split an axis into two: the groups, and the elements of a group."""
    return x.reshape(*x.shape[:axis], how.groups, x.shape[axis] // how.groups, *x.shape[axis + 1 :])


def _flops(launch: Launch) -> int:
    x, weight = launch.inputs[:2]
    assert isinstance(x, Meta) and isinstance(weight, Meta)
    return _meetings(x if launch.params[0].transposed else launch.outputs[0], weight)


def _meetings(narrow: Meta, weight: Meta) -> int:
    """Return the number of products: each element of a window is multiplied by all weights of its channel."""
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
            work=convolution_work.convolution,
            workspace=workspaces.convolution,
            fast=HostRoutine("convolution:convolution", ulps=64),
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
    """Infer the gradient of x. Operands: grad (N, O, ...) and weight; params: Geometry, spatial size of x, flags."""
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
    return _sum_body(launch, sum_windows if how.transposed else add_windows)


def _weight_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the gradient of the weight. Operands: grad and x; params: Geometry, the kernel's spatial size, flags."""
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
    convert = factor_conversion(launch)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        broad, narrow = map(convert, inputs if how.transposed else inputs[::-1])
        np.copyto(outputs[0], sum_products(narrow, broad, how, kernel), casting="unsafe")

    return body


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
            cuda=Routine(library="nn.convolution:backward_input"), work=convolution_work.convolution_of_input,
            workspace=workspaces.convolution_of_input,
            fast=HostRoutine("convolution:backward_input", ulps=64),
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
            cuda=Routine(library="nn.convolution:backward_weight"), work=convolution_work.convolution_of_weight,
            workspace=workspaces.convolution_of_weight,
            fast=HostRoutine("convolution:backward_weight", ulps=64),
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


def _refuse_integers(x: Meta, name: str) -> None:
    if x.dtype.category == INTEGRAL or x.dtype in REFUSED:
        raise NotImplementedError(f"\"{name}_{x.device.type}\" not implemented for '{x.dtype.torch_name}'")


def _unfold_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the columns (N, C * taps, windows) of x (N, C, H, W). Params: (kernel size, Geometry)."""
    x = operands[0]
    kernel, how = params
    assert isinstance(x, Meta)
    _refuse_integers(x, "im2col_out")
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
        x = pad_axes(prepare(inputs[0]), [(p, p) for p in how.padding])
        found = windows(x, kernel, how.stride, how.dilation, count)
        np.copyto(outputs[0], found.reshape(outputs[0].shape), casting="unsafe")

    return body


def _fold_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the sum (N, C, H, W) of columns (N, C * taps, windows). Params: (output size, kernel size, Geometry)."""
    x = operands[0]
    size, kernel, how = params
    assert isinstance(x, Meta)
    _refuse_integers(x, "col2im_out")
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
        "unfold", _unfold_rule,
        Kernel("unfold", _unfold_host, cuda=Routine("nn.im2col:unfold"), work=element_work.columns_of_windows,
            workspace=workspaces.copies_of_input),
        FLOATING_OR_COMPLEX, _unfold_samples,
        derivative=Derivative(_unfold_back, name="Im2ColBackward0", linear="together"),
    )
)  # fmt: skip
fold = define(
    Op(
        "fold",
        _fold_rule,
        Kernel(
            "fold",
            _fold_host,
            cuda=Routine("nn.im2col:fold"),
            work=element_work.per_element(100.0, 6.0),
            workspace=workspaces.rest_of_columns,
        ),
        FLOATING_OR_COMPLEX,
        _fold_samples,
        derivative=Derivative(
            lambda grad, params, call: call(unfold, (grad,), params[1:]),
            name="Col2ImBackward0",
            linear="together",
        ),
    )
)
