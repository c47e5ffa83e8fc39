"""`pad`: extends the trailing dimensions at both ends, or crops them by negative amounts.

params: (mode, pads), one (before, after) for each dimension of the input. The mode "constant" has the value as
a second input; "reflect", "replicate" and "circular" read the input again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import DTYPES, bool_, dtype, int64
from flambeau.core.layout import dense_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Kernel, Launch, Routine
from flambeau.ops.op import Derivative, Make, Op, Operand, Sample, Signature, define
from flambeau.ops.work import element_work

Array = np.ndarray[Any, Any]


def _rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    x, *value = operands
    mode, pads = params
    assert isinstance(x, Meta)
    if mode in ("reflect", "replicate") and x.dtype is bool_:
        raise NotImplementedError(f"\"{mode}_pad\" not implemented for 'Bool'")
    if len(pads) != x.ndim:
        raise RuntimeError(
            f"pad: expected one (before, after) pair per dimension, {x.ndim}, but got {len(pads)}"
        )
    for n, (before, after) in zip(x.shape, pads, strict=True):
        _check(mode, x, n, before, after)
    shape = tuple([n + a + b for n, (a, b) in zip(x.shape, pads, strict=True)])
    return Signature((_padded_meta(x, shape, mode, pads),), (x, *[x.dtype for _ in value]), params)


def _padded_meta(x: Meta, shape: tuple[int, ...], mode: str, pads: Sequence[tuple[int, int]]) -> Meta:
    """Return the layout of a padded tensor: the format of x; contiguous for circular padding; a copy's if it only
    crops.
    """
    if mode == "constant" and all(before <= 0 and after <= 0 for before, after in pads):
        return x.with_(shape, dense_strides(shape, x.strides))
    # Circular padding is composed of parts; PyTorch's GPU kernels return the other two contiguous.
    kept = mode == "constant" or (mode != "circular" and x.device.type != "cuda")
    return Meta.laid(shape, x.dtype, x.device, x.channels_last and kept)


def _check(mode: str, x: Meta, n: int, before: int, after: int) -> None:
    if mode == "reflect" and (before >= n or after >= n) and (before or after):
        raise RuntimeError(
            "Argument #4: Padding size should be less than the corresponding input dimension, but got: padding "
            f"({before}, {after}) at dimension of input {list(x.shape)}"
        )
    if mode == "circular" and (before > n or after > n):
        raise RuntimeError("Padding value causes wrapping around more than once.")
    if mode == "constant" and n + min(before, 0) + min(after, 0) < 0:
        raise RuntimeError("narrow(): length must be non-negative.")
    if n + before + after < 0 or (
        mode in ("reflect", "replicate") and n + before + after <= 0 and (before or after)
    ):
        raise RuntimeError(
            f"The input size {n}, plus negative padding {before} and {after}, resulted in a negative output size, "
            "which is invalid. Check dimension of your input."
        )
    if mode != "constant" and n == 0 and (before or after):
        raise RuntimeError(f"Expected a tensor with non-zero padded dimensions, but got: {list(x.shape)}")


def _host(launch: Launch) -> Body:
    mode, pads = launch.params
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    if mode == "constant":
        return _constant(source.shape, pads)
    places = [
        _places(mode, n, a, b) if a or b else None for n, (a, b) in zip(source.shape, pads, strict=True)
    ]

    def body(outputs: list[Array], inputs: list[Array]) -> None:
        x = inputs[0]
        for axis, place in enumerate(places):
            x = x if place is None else x.take(place, axis)
        np.copyto(outputs[0], x)

    return body


def _constant(shape: tuple[int, ...], pads: tuple[tuple[int, int], ...]) -> Body:
    read = [slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(shape, pads, strict=True)]
    written = [
        slice(max(a, 0), max(a, 0) + len(range(n)[r])) for n, r, (a, _) in zip(shape, read, pads, strict=True)
    ]

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x, value = inputs
        outputs[0][...] = value
        outputs[0][tuple(written)] = x[tuple(read)]

    return body


def _places(mode: str, n: int, before: int, after: int) -> Array:
    """Return, for each position of the result along a dimension, the index of the input element that it reads."""
    at = np.arange(-before, n + after)
    if mode == "replicate":
        return np.clip(at, 0, n - 1)
    if mode == "circular":
        return at % n
    at = np.abs(at)
    return np.where(at >= n, 2 * (n - 1) - at, at)


def _samples(make: Make, kind: dtype) -> Iterable[Sample]:
    pads = ((0, 0), (1, 2), (2, -1))
    yield (make(2, 3, 4), 2), ("constant", pads)
    for mode in ("reflect", "replicate", "circular"):
        yield (make(2, 3, 4),), (mode, pads)


def _pad_back(grad: Any, metas: Any, params: Any, call: Any) -> Any:
    """Return the gradient of `pad`: each input element receives the gradients of the elements that read it."""
    mode, pads = params
    if mode == "constant":
        return call(pad, (grad, 0), (mode, tuple([(-before, -after) for before, after in pads])))
    for dim, (n, (before, after)) in enumerate(zip(metas[0].shape, pads, strict=True)):
        if before or after:
            places = grad.new_tensor(_places(mode, n, before, after), dtype=int64)
            shape = (*grad.shape[:dim], n, *grad.shape[dim + 1 :])
            laid = _padded_meta(metas[0], shape, mode, pads).strides
            grad = grad.new_empty_strided(shape, laid).zero_().index_add_(dim, places, grad)
    return grad


pad = define(
    Op(
        "pad",
        _rule,
        Kernel("pad", _host, cuda=Routine("nn.padding:pad"), work=element_work.padding),
        DTYPES,
        _samples,
        derivative=Derivative(_pad_back),
    )
)
