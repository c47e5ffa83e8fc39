"""Products of float16 and bfloat16 that stay in float32: `mm`, `bmm`, `addmm`, `baddbmm` with `out_dtype`, on CUDA."""

from __future__ import annotations

from typing import Any

from flambeau.core.device import CPU
from flambeau.core.dtype import bfloat16, dtype, float16, float32
from flambeau.core.errors import type_name
from flambeau.ops.linalg import matmul as ops
from flambeau.ops.linalg.matmul import c_name
from flambeau.tensor.outputs import run
from flambeau.tensor.tensor import Tensor


def product(name: str, a: Tensor, b: Tensor, kind: dtype, out: Tensor | None) -> Tensor:
    """The product in `kind`. Raises what PyTorch's operator of this name raises."""
    _check(name, a, b, kind, out)
    found: Tensor = run(ops.matmul if kind is a.dtype else ops.mm_dtype, (a, b), (), out)
    return found


def add_product(
    name: str, input: Tensor, a: Tensor, b: Tensor, factors: tuple[Any, Any], kind: dtype, out: Tensor | None
) -> Tensor:
    """beta * input + alpha * (a @ b) in `kind`; the factors are beta and alpha."""
    _check(name, a, b, kind, out)
    if input.dtype not in (kind, a.dtype):
        what = "mat1" if name == "addmm" else "batch1"
        raise RuntimeError(f"self dtype must match either out_dtype or {what} dtype")
    op = ops.addmm if kind is a.dtype else ops.addmm_dtype
    found: Tensor = run(op, (input.to(kind), a, b, *factors), (), out)
    return found


_DIFFERENT = {
    "mm": "input dtypes must be the same",
    "addmm": "mat1 and mat2 must have the same dtype, but got {} and {}",
    "bmm": "batch1 and batch2 must have the same dtype",
    "baddbmm": "batch1 and batch2 must have the same dtype",
}


def check_device(name: str, a: Tensor, out: Tensor | None) -> None:
    """Raise NotImplementedError for a product on the CPU."""
    if a.device is CPU:
        raise NotImplementedError(
            f"Could not run 'aten::{name}.dtype{'' if out is None else '_out'}' with arguments from the 'CPU' backend: "
            "out_dtype is for CUDA."
        )


def _check(name: str, a: Tensor, b: Tensor, kind: Any, out: Tensor | None) -> None:
    if not isinstance(kind, dtype):
        raise TypeError(f"{name}(): argument 'out_dtype' must be torch.dtype, not {type_name(kind)}")
    check_device(name, a, out)
    if a.dtype is not b.dtype:
        raise RuntimeError(_DIFFERENT[name].format(c_name(a.dtype), c_name(b.dtype)))
    if kind is not a.dtype and (kind is not float32 or a.dtype not in (float16, bfloat16)):
        raise RuntimeError("out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs")
    if out is not None and out.dtype is not kind:
        raise RuntimeError("out_dtype must be the same as the dtype of the provided out tensor")
