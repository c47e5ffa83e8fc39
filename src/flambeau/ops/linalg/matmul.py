"""Matrix products: one batched product of any strides, with or without adding a tensor.

# Note [TF32]
On GPUs of compute capability 8.0 or newer a float32 product may use TensorFloat-32: inputs have the exponent of float32
and 10 bits of mantissa, rounded to nearest with ties away from zero; products accumulate in float32. The flag is in the
launch's params and the capability in the launch, so the reference implementation rounds on a virtual A100 and does not
on a V100 or the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.device import device
from flambeau.core.dtype import FLOATING, bfloat16, bool_, dtype, float16, float32, float64, int64
from flambeau.core.layout import broadcast_shapes, expand_strides, view_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine, output_rate
from flambeau.ops.autocast_rules import LOWER
from flambeau.ops.derivative_helpers import conj, refuse_derivative
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define, one_device
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import ALL, wide
from flambeau.ops.view import expand
from flambeau.ops.work import product_work

Array = np.ndarray[Any, Any]
PRODUCTS = tuple(d for d in ALL if d is not bool_)
TF32_SINCE = (8, 0)


# -- shapes ---------------------------------------------------------------------------------------------


def mismatch(a: Meta, b: Meta) -> str:
    """Return PyTorch's error text for matrices, or batches of matrices, whose inner sizes differ.

    Raises:
        RuntimeError: If the batch sizes differ.
    """
    *_, n, p = b.shape
    if b.ndim == 2:
        return (
            f"mat1 and mat2 shapes cannot be multiplied ({math.prod(a.shape[:-1])}x{a.shape[-1]} and {n}x{p})"
        )
    count = math.prod(broadcast_shapes([a.shape[:-2], b.shape[:-2]]))
    return (
        f"Expected size for first two dimensions of batch2 tensor to be: [{count}, {a.shape[-1]}] but got: "
        f"[{count}, {n}]."
    )


def _vector_mismatch(a: Meta, b: Meta) -> str:
    n, k = b.numel, a.shape[-1]
    if a.ndim > 1:
        rows = math.prod(a.shape[:-1])
        return f"size mismatch, got input ({rows}), mat ({rows}x{k}), vec ({n})"
    return (
        f"inconsistent tensor size, expected tensor [{k}] and src [{n}] to have the same number of elements, "
        f"but got {k} and {n} elements respectively"
    )


def _laid_out(a: Meta, b: Meta) -> tuple[Meta, Meta, tuple[int, ...]]:
    """Return both operands as batches of matrices with equal batch dimensions, and the shape of the product."""
    if a.ndim == 0 or b.ndim == 0:
        raise RuntimeError(
            f"both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D"
        )
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.ndim > 1 else ()
    if b.ndim == 1 and a.shape[-1] != b.shape[0]:
        raise RuntimeError(_vector_mismatch(a, b))
    if a.ndim == 1:
        a = a.with_((1, *a.shape), (0, *a.strides))
    if b.ndim == 1:
        b = b.with_((*b.shape, 1), (*b.strides, 0))
    if a.shape[-1] != b.shape[-2]:
        raise RuntimeError(mismatch(a, b))
    batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    shape = (*batch, *rows, *columns)
    folded = _fold_batch(a) if b.ndim == 2 else None
    if folded is not None:
        return folded, b, shape
    return expand_batch(a, batch), expand_batch(b, batch), shape


def _fold_batch(a: Meta) -> Meta | None:
    """Return a batch of matrices as one tall matrix, so that one product suffices; None if that needs a copy."""
    if a.ndim == 2 or not a.numel:
        return None
    tall = (a.numel // a.shape[-1], a.shape[-1])
    strides = view_strides(a.shape, a.strides, tall)
    return None if strides is None else a.with_(tall, strides)


def expand_batch(x: Meta, batch: tuple[int, ...]) -> Meta:
    shape = (*batch, *x.shape[-2:])
    return x.with_(shape, expand_strides(x.shape, x.strides, shape))


def _check(a: Meta, b: Meta, where: str) -> None:
    if a.dtype is not b.dtype:
        raise RuntimeError(_unlike(a, b))
    refused = a.dtype not in PRODUCTS or (where == "cuda" and a.dtype.category < FLOATING)
    if refused:
        raise NotImplementedError(f"\"{_room(a, b, where)}\" not implemented for '{a.dtype.torch_name}'")


def _unlike(a: Meta, b: Meta) -> str:
    """Return PyTorch's error message for two different dtypes, which depends on the routine for these shapes."""
    one, other = a.dtype.torch_name, b.dtype.torch_name
    if a.ndim == b.ndim == 1:
        return f"dot : expected both vectors to have same dtype, but found {one} and {other}"
    if b.ndim == 1:
        return f"addmv input tensors must have the same dtype, but got {other}, {one}, and {other}"
    if b.ndim > 2:
        return f"expected scalar type {one} but found {other}"
    return f"expected m1 and m2 to have the same dtype, but got: {c_name(a.dtype)} != {c_name(b.dtype)}"


def _room(a: Meta, b: Meta, where: str) -> str:
    """Return PyTorch's name of the routine that multiplies operands of these shapes."""
    if a.ndim == b.ndim == 1:
        return "dot"
    if where == "cuda":
        return "addmm_cuda"
    if b.ndim == 1:
        return "addmv_impl_cpu"
    return "bmm" if b.ndim > 2 else "addmm_impl_cpu_"


_C_NAMES = {
    "bool": "bool", "uint8": "unsigned char", "int8": "signed char", "int16": "short int", "int32": "int",
    "int64": "long int", "uint16": "short unsigned int", "uint32": "unsigned int", "uint64": "long unsigned int",
    "float16": "c10::Half", "bfloat16": "c10::BFloat16", "float32": "float", "float64": "double",
    "complex32": "c10::complex<c10::Half>", "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}  # fmt: skip


def c_name(kind: dtype) -> str:
    """Return a dtype as C++ names it in error texts."""
    return _C_NAMES.get(kind.name, kind.name)


# -- the host body --------------------------------------------------------------------------------------


def round_to_tf32(x: Array) -> Array:
    """Round float32 to 10 bits of mantissa, to nearest, ties away from zero. Infinities and NaNs are unchanged."""
    x = np.ascontiguousarray(x)
    bits = x.view(np.uint32) + np.uint32(0x1000)
    bits &= np.uint32(0xFFFFE000)
    rounded, finite = bits.view(np.float32), np.isfinite(x)
    if not finite.all():
        np.copyto(rounded, x, where=~finite)
    return rounded


def uses_tf32(launch: Launch) -> bool:
    """Return True if a launch rounds to TF32: its last param, the flag, is set, the dtype is float32 and the GPU has
    TF32.
    """
    allowed = launch.params[-1]
    modern = launch.capability is not None and launch.capability >= TF32_SINCE
    return bool(allowed and modern and launch.outputs[0].dtype is float32)


def product_rate(launch: Launch) -> str:
    """Return the peak rate of a profile that bounds a product: TF32's or its dtype's."""
    return "tf32" if uses_tf32(launch) else output_rate(launch)


def _product(launch: Launch, source: dtype) -> Callable[[Array, Array], Array]:
    """Return a function that computes the product of two arrays in the dtype of the launch."""
    if uses_tf32(launch):
        return lambda a, b: np.matmul(round_to_tf32(a), round_to_tf32(b))
    if wide(source) is source:
        return np.matmul
    convert = to_computing(source, source)
    return lambda a, b: np.matmul(convert(a), convert(b))


def _host(launch: Launch) -> Body:
    a, b = launch.inputs
    assert isinstance(a, Meta) and isinstance(b, Meta)
    product, out = _product(launch, a.dtype), launch.outputs[0]
    shape = (*a.shape[:-1], b.shape[-1])
    if product is np.matmul and out.plain and out.dtype is a.dtype:
        if out.shape == shape and len(shape) == 2:
            return lambda outputs, inputs: np.dot(inputs[0], inputs[1], outputs[0])
        return lambda outputs, inputs: np.matmul(inputs[0], inputs[1], out=outputs[0].reshape(shape))

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        np.copyto(outputs[0], product(*inputs).reshape(outputs[0].shape), casting="unsafe")

    return body


def _added_host(launch: Launch) -> Body:
    one, source = launch.inputs[:2]
    assert isinstance(one, Meta) and isinstance(source, Meta)
    product, widen = _product(launch, source.dtype), to_computing(one.dtype, one.dtype)
    number, out = wide(source.dtype).numpy.type, launch.outputs[0].dtype
    native = out is source.dtype is one.dtype is wide(out)

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        added, a, b, beta, alpha = inputs
        result = product(a, b).reshape(outputs[0].shape)
        if alpha != 1:
            result = result * number(alpha)
        if beta != 0:  # with beta 0 the added tensor is not read, so its NaNs do not spread
            added = widen(added) if beta == 1 else widen(added) * number(beta)
            result = np.add(result, added, out=outputs[0] if native else None)
        if result is not outputs[0]:
            np.copyto(outputs[0], result, casting="unsafe")

    return body


def _flops(launch: Launch) -> int:
    a = launch.inputs[-4] if len(launch.inputs) == 5 else launch.inputs[0]
    assert isinstance(a, Meta)
    return 2 * launch.outputs[0].numel * a.shape[-1]


# -- derivatives: a vector on the left stands for a matrix of one row, one on the right gives no matrix products -----


def _left_back(grad: Any, b: Any, metas: Sequence[Any]) -> Any:
    left, right = metas[:2]
    if right.ndim == 1:
        if _is_column_major(left):
            return (conj(b).unsqueeze(-1) * grad.unsqueeze(-2)).transpose(-1, -2)
        return (grad if left.ndim == 1 else grad.unsqueeze(-1)) * conj(b)
    grad = grad.unsqueeze(-2) if left.ndim == 1 else grad
    if _is_column_major(left):
        return (conj(b) @ grad.transpose(-1, -2)).transpose(-1, -2)
    given = grad @ conj(b.transpose(-1, -2))
    return given.squeeze(-2) if left.ndim == 1 else given


def _right_back(grad: Any, a: Any, metas: Sequence[Any]) -> Any:
    left, right = metas[:2]
    if right.ndim == 1:
        if left.ndim == 1:
            return grad * conj(a)
        return conj(a.reshape(-1, left.shape[-1]).transpose(0, 1)) @ grad.reshape(-1)
    factor = a.unsqueeze(0) if left.ndim == 1 else a
    grad = grad.unsqueeze(-2) if left.ndim == 1 else grad
    if left.ndim > 2 and right.ndim == 2:  # one product is faster than a sum of many
        rows = math.prod(left.shape[:-1])
        factor, grad = factor.reshape(rows, left.shape[-1]), grad.reshape(rows, right.shape[1])
    if _is_column_major(right):
        return (grad.transpose(-1, -2) @ conj(factor)).transpose(-1, -2)
    return conj(factor.transpose(-1, -2)) @ grad


def _is_column_major(x: Meta) -> bool:
    """Return True if a matrix is column-major, like a layer's transposed weight. Its gradient then is column-major,
    too.
    """
    return x.ndim == 2 and x.strides[0] == 1 and x.strides[1] >= x.shape[0] > 1


def _times(grad: Any, factor: Any) -> Any:
    return grad if factor == 1 else grad * conj(factor)


# -- the records ----------------------------------------------------------------------------------------


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    a, b = operands
    assert isinstance(a, Meta) and isinstance(b, Meta)
    where = _product_device(a, b)
    left, right, shape = _laid_out(a, b)
    _check(a, b, where.type)
    return Signature((Meta.contiguous_of(shape, a.dtype, where),), (left, right), _rounded_only(b, params))


def _rounded_only(b: Meta, params: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return params with TF32 off for a product with a vector, because cuBLAS' gemv and dot use no tensor cores."""
    return params if b.ndim > 1 else (*params[:-1], False)


def _product_device(a: Meta, b: Meta) -> device:
    """Return the common device of both operands. Errors name PyTorch's function for such shapes."""
    if b.ndim == 1:
        if a.ndim == 1:
            return one_device((a, b), "_dot", ("self", "tensor"))
        return one_device((b, a), "addmv_", ("self", "mat"))
    return one_device((a, b), "bmm" if b.ndim > 2 else "mm", ("self", "mat2"))


def _sum_device(added: Meta, a: Meta, b: Meta) -> device:
    """Return the common device of three tensors, with errors as in `_product_device`."""
    routine, *names = (
        ("addmv", "mat", "vec") if b.ndim == 1
        else ("baddbmm", "batch1", "batch2") if b.ndim > 2
        else ("addmm", "mat1", "mat2")
    )  # fmt: skip
    return one_device((added, a, b), routine, ("self", *names))


def _added_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    added, a, b, beta, alpha = operands
    assert isinstance(added, Meta) and isinstance(a, Meta) and isinstance(b, Meta)
    where = _sum_device(added, a, b)
    left, right, shape = _laid_out(a, b)
    check_added(added, a, b)
    _check(a, b, where.type)
    strides = expand.rule(added, shape).strides
    numbers = [float64 if x is float else int64 for x in (beta, alpha)]
    out = Meta.contiguous_of(shape, a.dtype, where)
    return Signature((out,), (added.with_(shape, strides), left, right, *numbers), _rounded_only(b, params))


def check_added(added: Meta, a: Meta, b: Meta) -> None:
    if a.ndim > 2 and added.dtype is not a.dtype:
        raise RuntimeError(
            f"Input dtypes must be the same, got: input {c_name(added.dtype)}, batch1: {c_name(a.dtype)}, batch2: "
            f"{c_name(b.dtype)}"
        )
    for name, other in (("self", added), ("mat1", a)) if a.ndim == 2 else ():
        if other.dtype is not b.dtype:
            raise RuntimeError(
                f"{name} and mat2 must have the same dtype, but got {other.dtype.torch_name} and {b.dtype.torch_name}"
            )


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4), make(4, 2)), ()
    yield (make(2, 3, 4), make(4, 2)), ()
    yield (make(2, 1, 3, 4), make(5, 4, 2)), ()
    yield (make(4), make(4)), ()


def _added_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 2), make(3, 4), make(4, 2), 1, 1), ()
    yield (make(2, 3, 2), make(2, 3, 4), make(2, 4, 2), 2, 3), ()


def _product_name(metas: Sequence[Meta | None], params: tuple[Any, ...]) -> str:
    left, right = (0 if m is None else m.ndim for m in metas)
    found = {(1, 1): "Dot", (2, 1): "Mv", (2, 2): "Mm", (3, 3): "Bmm"}.get((left, right))
    return f"{found}Backward0" if found else "UnsafeViewBackward0"


_ROUTINE = Routine(
    "linalg.products:direct_product",
    library="linalg.products:product",
    structure="linalg.products:product_of_structure",
)
matmul = define(
    Op(
        "matmul",
        _rule,
        Kernel("matmul", _host, _flops, rate=product_rate, cuda=_ROUTINE, work=product_work.product),
        PRODUCTS,
        _samples,
        flags=("matmul_allow_tf32",),
        derivative=Derivative(_left_back, _right_back, name=_product_name, linear="each"),
        autocast=LOWER,
    )
)
addmm = define(
    Op(
        "addmm", _added_rule,
        Kernel("addmm", _added_host, _flops, rate=product_rate, cuda=_ROUTINE, work=product_work.product),
        PRODUCTS, _added_samples, flags=("matmul_allow_tf32",),
        derivative=Derivative(
            lambda grad, d: _times(grad, d),
            lambda grad, c, metas, e: _times(_left_back(grad, c, metas[1:]), e),
            lambda grad, b, metas, e: _times(_right_back(grad, b, metas[1:]), e),
        ), autocast=LOWER,
    )
)  # fmt: skip


# -- products of halves that are not rounded to halves ---------------------------------------------------------


def _in_float32(signature: Signature) -> Signature:
    return Signature((signature.outputs[0].with_(dtype=float32),), signature.inputs, (False,))


def _mm_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    return _in_float32(_rule(operands, (False,)))


def _addmm_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the results. The added tensor has dtype float32."""
    added, a, *others = operands
    assert isinstance(added, Meta) and isinstance(a, Meta)
    found = _in_float32(_added_rule((added.with_(dtype=a.dtype), a, *others), (False,)))
    one = found.inputs[0]
    assert isinstance(one, Meta)
    return Signature(found.outputs, (one.with_(dtype=float32), *found.inputs[1:]), found.params)


def _added_unrounded(make: Make, kind: dtype) -> Iterable[Sample]:
    for (added, *others), params in _added_samples(make, kind):
        yield (added.astype(np.float32), *others), params


def _factors_rate(launch: Launch) -> str:
    factor = launch.inputs[-4 if len(launch.inputs) == 5 else 0]
    assert isinstance(factor, Meta)
    return factor.dtype.name


mm_dtype = define(
    Op(
        "mm.dtype", _mm_rule,
        Kernel("matmul", _host, _flops, rate=_factors_rate, cuda=_ROUTINE, work=product_work.product),
        (float16, bfloat16), lambda make, kind: [((make(3, 4), make(4, 2)), ()), ((make(2, 3, 4), make(2, 4, 2)), ())],
        derivative=refuse_derivative("mm"),
    )
)  # fmt: skip
addmm_dtype = define(
    Op(
        "addmm.dtype", _addmm_rule,
        Kernel("addmm", _added_host, _flops, rate=_factors_rate, cuda=_ROUTINE, work=product_work.product),
        (float16, bfloat16), _added_unrounded, derivative=refuse_derivative("addmm"),
    )
)  # fmt: skip
