"""`out=`: the checks that structured operators make before they store into given tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.matmul import c_name
from flambeau.ops.op import Op
from flambeau.tensor.call import call, call_into, signature
from flambeau.tensor.tensor import Tensor


def run(op: Op, args: Sequence[Any], params: tuple[Any, ...], out: Any = None) -> Any:
    """Call `op`; with `out`, a tensor or a sequence of them, store there: of the result's very dtypes."""
    if out is None:
        return call(op, args, params)
    outputs = (out,) if isinstance(out, Tensor) else tuple(out)
    for natural, target in zip(signature(op, args, params).outputs, outputs, strict=True):
        if natural.dtype is not target.meta.dtype:
            raise RuntimeError(
                f"Expected out tensor to have dtype {c_name(natural.dtype)}, "
                f"but got {c_name(target.meta.dtype)} instead"
            )
    return call_into(op, outputs, args, params, resize=True)
