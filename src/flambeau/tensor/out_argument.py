"""`out=`: the checks of structured operators before they store their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import can_cast, dtype
from flambeau.core.errors import type_name
from flambeau.core.layout import contiguous_strides
from flambeau.ops.linalg.matmul import c_name
from flambeau.ops.op import Op
from flambeau.tape.mode import mode
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.call import call, call_into, resize_to, signature, unary
from flambeau.tensor.tensor import Tensor


def run(op: Op, args: Sequence[Any], params: tuple[Any, ...], out: Any = None) -> Any:
    """Call `op`. Store its results in `out`, a tensor or a sequence of tensors of exactly the results' dtypes, unless
    it is None.
    """
    if out is None:
        return unary(op, args[0], params) if len(args) == 1 else call(op, args, params)
    outputs = (out,) if isinstance(out, Tensor) else tuple(out)
    wanted = signature(op, args, params).outputs
    if len(wanted) == 1 and not isinstance(out, Tensor):
        raise TypeError(f"{op.name}(): argument 'out' must be Tensor, not {type_name(out)}")
    for natural, target in zip(wanted, outputs, strict=True):
        require_dtype(natural.dtype, target)
    return call_into(op, outputs, args, params, resize=True)


def run_cast(op: Op, args: Sequence[Any], params: tuple[Any, ...], out: Any = None) -> Any:
    """Run an operator whose single result PyTorch casts to the dtype of `out`."""
    if not isinstance(out, Tensor) or signature(op, args, params).outputs[0].dtype is out.meta.dtype:
        return run(op, args, params, out)
    return deliver(call(op, args, params), out)


def require_dtype(kind: dtype, out: Tensor) -> None:
    """Raise RuntimeError if `out` does not have exactly the dtype of the result."""
    if out.meta.dtype is not kind:
        raise RuntimeError(
            f"Expected out tensor to have dtype {c_name(kind)}, but got {c_name(out.meta.dtype)} instead"
        )


def deliver(result: Any, out: Any, name: str | None = None) -> Any:
    """Store a composite function's results in `out=`; without `out`, return them.

    Raises:
        RuntimeError: With nothing changed, if a result cannot be cast to the dtype of its output.
    """
    if out is None:
        return result
    require_no_gradient(result, out)
    several = not isinstance(result, Tensor)
    pairs = list(zip(result, out, strict=True)) if several else [(result, out)]
    for one, target in pairs:
        if not can_cast(one.dtype, target.dtype):
            have, wanted = one.dtype.torch_name, target.dtype.torch_name
            raise RuntimeError(
                f"result type {have} can't be cast to the desired output type {wanted}"
                if name is None
                else f"{name}: Expected result to be safely castable from {have} dtype, but got result with dtype "
                f"{wanted}"
            )
    for one, target in pairs:
        if target.meta.shape != one.meta.shape:
            resize_to(target, one.meta.with_(strides=contiguous_strides(one.meta.shape)))
        target.copy_(one)
    return out


def require_no_gradient(result: Any, out: Any) -> None:
    """Raise RuntimeError if the result requires a gradient but is stored in `out`, or if `out` requires one."""
    tensors = [
        *((result,) if isinstance(result, Tensor) else result),
        *((out,) if isinstance(out, Tensor) else out),
    ]
    if mode.recording and any(isinstance(t, Tensor) and requires_grad(t) for t in tensors):
        raise RuntimeError(
            "functions with out=... arguments don't support automatic differentiation, but one of the arguments "
            "requires grad."
        )
