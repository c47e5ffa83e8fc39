"""Activations, softmax and similar functions. With `inplace=True` they store into their input."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import BOOL, INTEGRAL, bool_, dtype, float64, promote_types
from flambeau.core.errors import argument_type
from flambeau.core.layout import may_self_overlap, wrap_dim
from flambeau.ops.copy import checked_scalar
from flambeau.ops.op import Op
from flambeau.ops.pointwise import activation as ops
from flambeau.ops.pointwise import pointwise_functions as functions
from flambeau.ops.reduce.softmax import log_softmax as log_softmax_op
from flambeau.ops.reduce.softmax import softmax as softmax_op
from flambeau.runtime.generator import Generator
from flambeau.tape.mode import mode
from flambeau.tensor.arguments import public
from flambeau.tensor.arguments.arg_errors import Number
from flambeau.tensor.arguments.options import integer, kind_of, number
from flambeau.tensor.arguments.public import function, method
from flambeau.tensor.call import call, call_into, unary
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.indexing import without_repeats
from flambeau.tensor.out_argument import run
from flambeau.tensor.signatures import by_parser, compares, signatures
from flambeau.tensor.tensor import Tensor


def require_tensor(x: Any, name: str, argument: str = "input", position: int = 1) -> Tensor:
    """Return `x`, which must be a tensor. Raises the TypeError of PyTorch's argument parser."""
    if not isinstance(x, Tensor):
        raise TypeError(argument_type(name, argument, position, "Tensor", x))
    return x


def refuse_gradient(name: str, argument: str, x: Any) -> None:
    """Raise RuntimeError if an argument requires gradients that PyTorch does not compute."""
    if isinstance(x, Tensor) and x.requires_grad and mode.recording:
        raise RuntimeError(
            f"The function '{name}' is not differentiable with respect to argument '{argument}'. "
            "This input cannot have requires_grad True."
        )


def _run(op: Op, name: str, input: Tensor, *scalars: Any, inplace: bool = False, params: Any = ()) -> Tensor:
    args: list[Any] = [require_tensor(input, name)]
    for scalar in scalars:
        if isinstance(scalar, Tensor) and scalar.ndim:
            raise TypeError(f"{name}(): arguments after 'input' must be Number, not Tensor")
        args.append(scalar.item() if isinstance(scalar, np.generic) else scalar)
    return call_into(op, (input,), tuple(args), params) if inplace else call(op, tuple(args), params)


# -- softmax --------------------------------------------------------------------------------------------


def _run_along_dim(op: Op, name: str, input: Any, dim: Any, kind: dtype | None, out: Any = None) -> Tensor:
    kind = None if kind is None else kind_of(kind, name)
    return run(op, (require_tensor(input, name),), (integer(dim, name, "dim", 2), kind), out)


@signatures("special_softmax(input: Tensor, dim: int, dtype: dtype | None=)")
def _softmax(input: Tensor, dim: int, dtype: dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return exp(x) over its sum along `dim`; the input is converted to `dtype` first."""
    return _run_along_dim(softmax_op, "softmax", input, dim, dtype, out)


@signatures("special_log_softmax(input: Tensor, dim: int, *, dtype: dtype | None=)")
def _log_softmax(input: Tensor, dim: int, dtype: dtype | None = None, *, out: Tensor | None = None) -> Tensor:
    """Return the logarithm of softmax along `dim`."""
    return _run_along_dim(log_softmax_op, "log_softmax", input, dim, dtype, out)


for _name, _define in (("softmax", _softmax), ("log_softmax", _log_softmax)):
    public.alias(_name, _define)


def _dim(name: str, dim: int | None, ndim: int, stacklevel: int) -> int:
    """Return the dim that PyTorch chooses if there is none, with its warning."""
    if dim is not None:
        return dim
    index(stacklevel)  # raises TypeError for a value that the warning could not use
    warn_program(
        f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument.",
        UserWarning,
    )
    return 0 if ndim in (0, 1, 3) else 1


@compares("dim")
def softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: dtype | None = None
) -> Tensor:
    """Return exp(x) over its sum along `dim`; the input is converted to `dtype` first."""
    return _softmax(input, _dim("softmax", dim, require_tensor(input, "softmax").dim(), _stacklevel), dtype)


@compares("dim")
def softmin(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: dtype | None = None
) -> Tensor:
    """Return softmax of -x along `dim`."""
    return _softmax(-input, _dim("softmin", dim, require_tensor(input, "softmin").dim(), _stacklevel), dtype)


@compares("dim")
def log_softmax(
    input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: dtype | None = None
) -> Tensor:
    """Return the logarithm of softmax along `dim`."""
    return _log_softmax(
        input, _dim("log_softmax", dim, require_tensor(input, "log_softmax").dim(), _stacklevel), dtype
    )


@compares("dim", "eps", "hard", "tau")
def gumbel_softmax(
    logits: Tensor, tau: float = 1, hard: bool = False, eps: float = 1e-10, dim: int = -1
) -> Tensor:
    """Return a sample of the Gumbel-softmax distribution along `dim`; one-hot if `hard` is True."""
    if eps != 1e-10:
        warn_program("`eps` parameter is deprecated and has no effect.", UserWarning)
    noise = -creation.empty_like(logits).exponential_().log()
    soft = _softmax((logits + noise) / tau, dim)
    if not hard:
        return soft
    largest = soft.max(integer(dim, "max", "dim", 2), keepdim=True)[1]
    one_hot = creation.zeros_like(logits).scatter_(dim, largest, 1.0)
    return one_hot - soft.detach() + soft


# -- bounds ---------------------------------------------------------------------------------------------


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return max(x, 0)."""
    if not inplace and isinstance(input, Tensor):
        return unary(functions.relu, input)
    return _run(functions.relu, "relu", input, inplace=inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Return x clamped to [min_val, max_val].

    Raises:
        ValueError: If min_val > max_val.
    """
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    return _hardtanh(input, min_val, max_val, "hardtanh", inplace)


@by_parser
def hardtanh_(input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0) -> Tensor:
    """Apply `hardtanh` in place. If min_val > max_val the result is `max_val`."""
    return _hardtanh(input, min_val, max_val, "hardtanh_", True)


def _hardtanh(input: Tensor, min_val: Number, max_val: Number, name: str, inplace: bool) -> Tensor:
    if require_tensor(input, name).dtype is bool_:
        raise RuntimeError("Bool inputs not supported for hardtanh")
    if not input.dtype.is_signed and min_val < 0:
        raise RuntimeError("cannot do hardtanh on an unsigned type with negative limits")
    if input.dtype.category == INTEGRAL:
        min_val, max_val = int(min_val), int(max_val)
    return _run(ops.hardtanh, name, input, min_val, max_val, inplace=inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x clamped to [0, 6]."""
    return hardtanh(input, 0.0, 6.0, inplace)


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Return x if it is greater than `threshold`, else `value`."""
    kind = require_tensor(input, "threshold").dtype
    numbers = (
        [checked_scalar(x, kind) for x in (threshold, value)] if kind.category > BOOL else [threshold, value]
    )
    if inplace and may_self_overlap(input.meta.shape, input.meta.strides):
        _run(ops.threshold, "threshold", without_repeats(input), *numbers, inplace=True)
        return input
    return _run(ops.threshold, "threshold", input, *numbers, inplace=inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Return relu6(x + 3) / 6."""
    return _run(ops.hardsigmoid, "hardsigmoid", input, inplace=inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * relu6(x + 3) / 6."""
    return _run(ops.hardswish, "hardswish", input, inplace=inplace)


@by_parser
def hardshrink(input: Tensor, lambd: Number = 0.5) -> Tensor:
    """Return x, or 0 within [-lambd, lambd]."""
    return _run(ops.hardshrink, "hardshrink", input, lambd)


@by_parser
def softshrink(input: Tensor, lambd: Number = 0.5) -> Tensor:
    """Return x moved towards 0 by lambd >= 0, 0 within [-lambd, lambd]."""
    if lambd < 0:
        raise RuntimeError(f"lambda must be greater or equal to 0, but found to be {lambd:g}.")
    return _run(ops.softshrink, "softshrink", input, lambd)


# -- of slopes and exponentials ---------------------------------------------------------------------------


def leaky_relu(input: Tensor, negative_slope: Number = 0.01, inplace: bool = False) -> Tensor:
    """Return x, or negative_slope * x below 0."""
    return _run(functions.leaky_relu, "leaky_relu", input, negative_slope, inplace=inplace)


def elu(input: Tensor, alpha: Number = 1.0, inplace: bool = False) -> Tensor:
    """Return x, or alpha * (exp(x) - 1) below 0."""
    return _run(functions.elu, "elu", input, alpha, 1, 1, inplace=inplace)


_SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1)


@signatures("selu(input: Tensor)", shown="selu(input: Tensor)")
def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return scale * elu(x, alpha) with the constants that keep mean and variance."""
    return _run(functions.elu, "selu", input, *_SELU, inplace=inplace)


@signatures("celu(input: Tensor, alpha: Number=)", shown="celu(input: Tensor, alpha: Number=1.0)")
def celu(input: Tensor, alpha: Number = 1.0, inplace: bool = False) -> Tensor:
    """Return x, or alpha * (exp(x / alpha) - 1) below 0.

    Raises:
        RuntimeError: If alpha is 0.
    """
    if alpha == 0:
        raise RuntimeError("ZeroDivisionError: alpha cannot be 0 for CELU")
    return _run(functions.elu, "celu", input, alpha, 1, 1 / alpha, inplace=inplace)


@by_parser
@signatures("F.gelu(input: Tensor, *, approximate: str=)")
def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Return x times the normal distribution's cumulative probability of x; `approximate` may be "tanh"."""
    if approximate not in ("none", "tanh"):
        raise RuntimeError("approximate argument must be either none or tanh.")
    return _run(functions.gelu, "gelu", input, params=(approximate,))


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * sigmoid(x)."""
    return _run(functions.silu, "silu", input, inplace=inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Return x * tanh(softplus(x))."""
    return _run(ops.mish, "mish", input, inplace=inplace)


@by_parser
def softplus(input: Tensor, beta: Number = 1, threshold: Number = 20) -> Tensor:
    """Return log(1 + exp(beta x)) / beta, or x itself where beta x > threshold."""
    return _run(functions.softplus, "softplus", input, beta, threshold)


@by_parser
def logsigmoid(input: Tensor) -> Tensor:
    """Return log(sigmoid(x))."""
    return _run(ops.log_sigmoid, "logsigmoid", input)


def softsign(input: Tensor) -> Tensor:
    """Return x / (|x| + 1)."""
    return input / (input.abs() + 1)


def tanhshrink(input: Tensor) -> Tensor:
    """Return x - tanh(x)."""
    return input - input.tanh()


def sigmoid(input: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return input.sigmoid()


def tanh(input: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    return input.tanh()


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Return the first half along `dim` times the sigmoid of the second."""
    if require_tensor(input, "glu").dim() == 0:
        raise RuntimeError("glu does not support scalars because halving size must be even")
    axis = wrap_dim(integer(dim, "glu", "dim", 2), input.dim())
    size = input.shape[axis]
    if size % 2:
        raise RuntimeError(f"Halving dimension must be even, but dimension {axis} is size {size}")
    return call(ops.glu, (input.narrow(axis, 0, size // 2), input.narrow(axis, size // 2, size // 2)))


@by_parser
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Return x, or weight * x where it is negative; `weight` has one element or one for each of dimension 1."""
    ndim = require_tensor(input, "prelu").dim()
    if require_tensor(weight, "prelu", "weight", 2).numel() != 1:
        if ndim == 0:
            raise RuntimeError("Not allow zero-dim input tensor.")
        channels = input.shape[1] if ndim > 1 else 1
        if channels != weight.numel():
            raise RuntimeError(
                "Mismatch of parameter numbers and input channel size. Found parameter numbers = "
                f"{weight.numel()} and channel size = {channels}."
            )
    if weight.dim() > 1:
        raise RuntimeError(
            f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.dim()}"
        )
    if input.dtype is not weight.dtype:
        promote_types(input.dtype, weight.dtype)
        raise RuntimeError("prelu: Type promoting not supported. Got types: ")
    shape = [-1 if d == 1 or (ndim < 2 and d == 0) else 1 for d in range(ndim)]
    return call(ops.prelu, (input, weight.reshape(shape)))


@signatures(
    "rrelu(input: Tensor, lower: Number=, upper: Number=, training: bool=, generator: Generator | None=)",
    shown="""
rrelu(input: Tensor, lower: Number=0.125, upper: Number=0.3333333333333333, training: bool=False,
    generator: Generator | None=None)
""",
)
def rrelu(
    input: Tensor, lower: Number = 1.0 / 8, upper: Number = 1.0 / 3, training: bool = False, inplace: bool = False,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Return x, or x times a slope below 0: the mean of the bounds, in training a uniform number between them.

    The slopes are PyTorch's on the CPU, one drawn for each element that is not positive; on CUDA they are not.
    """
    if not isinstance(training, bool):
        raise TypeError(argument_type("rrelu", "training", 4, "bool", training))
    lower, upper = number(lower, "rrelu", "lower", 2), number(upper, "rrelu", "upper", 3)
    for name, bound in (("lower", lower), ("upper", upper)):
        if not math.isfinite(bound):
            raise RuntimeError(f"rrelu: {name} bound must be finite, got {bound}")
    if lower > upper:
        raise RuntimeError("Lower bound should be less than or equal to the upper bound")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    if not input.dtype.is_floating_point:
        where = "cuda" if input.device.type == "cuda" else "cpu"
        raise NotImplementedError(
            f"\"rrelu_with_noise_out_{where}\" not implemented for '{input.dtype.torch_name}'"
        )
    negative = input <= 0
    slopes = creation.empty(int(negative.sum()), dtype=float64, device=input.device)
    slopes.uniform_(lower, upper, generator=generator)
    result = input * creation.ones_like(input).masked_scatter(negative, slopes.to(input.dtype))
    return input.copy_(result) if inplace else result


# -- in the torch namespace and on tensors too -------------------------------------------------------------


def _in_place(define: Any, name: str) -> Any:
    def in_place(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return define(input, *args, **kwargs, inplace=True)

    in_place.__name__ = name
    in_place.__doc__ = f"`{name[:-1]}` in place."
    return by_parser(in_place)


def elu_(input: Tensor, alpha: Number = 1.0, scale: Number = 1, input_scale: Number = 1) -> Tensor:
    """Apply `elu` in place. `scale` multiplies the result, `input_scale` the argument of exp."""
    return _run(functions.elu, "elu_", input, alpha, scale, input_scale, inplace=True)


relu_, selu_, celu_ = (_in_place(f, f"{f.__name__}_") for f in (relu, selu, celu))
signatures(
    """
celu_(input: Tensor, alpha: Number=)
rrelu_(input: Tensor, lower: Number=, upper: Number=, training: bool=, generator: Generator | None=)
selu_(input: Tensor)
threshold_(input: Tensor, threshold: Number, value: Number)
""",
    shown="""
celu_(input: Tensor, alpha: Number=1.0)
rrelu_(input: Tensor, lower: Number=0.125, upper: Number=0.3333333333333333, training: bool=False,
    generator: Generator | None=None)
selu_(input: Tensor)
threshold_(input: Tensor, threshold: Number, value: Number)
""",
)
leaky_relu_, threshold_, rrelu_ = (_in_place(f, f"{f.__name__}_") for f in (leaky_relu, threshold, rrelu))
for _public in (celu, celu_, selu, selu_, threshold_, rrelu, rrelu_, prelu):
    function(_public)
for _public in (hardshrink, prelu):
    method(_public)


def _threshold(input: Tensor, threshold: Number, value: Number, *, out: Tensor | None = None) -> Tensor:
    """Return x if it is greater than `threshold`, else `value`."""
    return run(ops.threshold, (require_tensor(input, "threshold"), threshold, value), (), out)


def _hardshrink(input: Tensor, lambd: Number = 0.5, *, out: Tensor | None = None) -> Tensor:
    """Return x, or 0 within [-lambd, lambd]."""
    return run(ops.hardshrink, (require_tensor(input, "hardshrink"), lambd), (), out)


for _public, _name in ((_threshold, "threshold"), (_hardshrink, "hardshrink")):
    _public.__name__ = _public.__qualname__ = _name
    function(_public)
