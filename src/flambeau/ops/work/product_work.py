"""The work of matrix products, convolutions and attention."""

from __future__ import annotations

import math

from flambeau.core.meta import Meta
from flambeau.driver.api import Launch, MatrixProduct, Work, stream_work
from flambeau.ops.work.element_work import CYCLES_OF_A_MICROSECOND, MULTIPROCESSORS, pass_over

_VECTOR = 16  # bytes of the widest load


def _are_rows_aligned(metas: list[Meta]) -> bool:
    """Return True if the rows of all matrices begin at multiples of the widest load."""
    for meta in metas:
        if meta.ndim < 2:
            continue
        per = max(_VECTOR // meta.itemsize, 1)
        steps = [stride for size, stride in zip(meta.shape[-2:], meta.strides[-2:], strict=True) if size > 1]
        if any(step != 1 and step % per for step in steps):
            return False
    return True


def product(launch: Launch) -> Work:
    """Return the work of `mm`, `bmm`, `addmm` and `baddbmm`. The factors are the last two inputs."""
    out = launch.outputs[0]
    a, b = [x for x in launch.inputs if isinstance(x, Meta)][-2:]
    depth = a.shape[-1] if a.ndim else 1
    rows = a.shape[-2] if a.ndim > 1 else 1
    columns = b.shape[-1] if b.ndim > 1 else 1
    count = out.numel // max(rows * columns, 1)
    if not out.numel or not depth:
        return stream_work(launch)
    if rows == 1 or columns == 1:
        return _matrix_and_vector(launch, out.numel, depth)
    aligned = _are_rows_aligned([*launch.outputs, a, b])
    made = MatrixProduct(count, rows, columns, depth, launch.kernel.rate(launch), aligned)
    nbytes = launch.nbytes / (1.0 if aligned else 0.45)
    return Work(nbytes, launch.nbytes, max(out.numel, launch.nbytes // 64), product=made)


def _matrix_and_vector(launch: Launch, results: int, depth: int) -> Work:
    """Return the work of products with a vector: each result is a sum over `depth`."""
    microseconds = 1.3 + (0.0 if results >= 64 else 0.8 + min(depth / 256 * 5e-3, 3.0))
    return pass_over(launch, results * depth // 8, microseconds)


# -- convolutions -----------------------------------------------------------------------------------------------------

_HALF_SHARE, _SHARE = 1.0, 0.69  # shares of a plain product's rate
_DEPTHWISE = 0.62  # share of the memory's rate


def convolution(launch: Launch) -> Work:
    """Return the work of a convolution. Inputs are x, weight and a bias or none."""
    x, weight = _operands(launch)
    return _convolution(launch, x, weight, launch.outputs[0], 1.0)


def convolution_of_input(launch: Launch) -> Work:
    """Return the work of a convolution's gradient with respect to its input. Inputs are grad and weight."""
    grad, weight = _operands(launch)
    return _convolution(launch, launch.outputs[0], weight, grad, 1.3)


def convolution_of_weight(launch: Launch) -> Work:
    """Return the work of a convolution's gradient with respect to its weight. Inputs are grad and x."""
    grad, x = _operands(launch)
    return _convolution(launch, x, launch.outputs[0], grad, 1.3)


def _operands(launch: Launch, first: int = 0) -> list[Meta]:
    """Return two of the tensors that the launch reads, from position `first` on."""
    return [meta for meta in launch.inputs if isinstance(meta, Meta)][first : first + 2]


def _convolution(launch: Launch, broad: Meta, weight: Meta, narrow: Meta, slower: float) -> Work:
    """Return the work of a convolution as a matrix product (samples x places) x (channels x taps) x (features).

    Half precision is computed with channels last, so other layouts are copied before and after.

    Args:
        launch: The launch.
        broad: The tensor from which windows are taken.
        weight: The weight.
        narrow: The tensor with one element for each window.
        slower: Factor by which it is slower than a plain convolution.
    """
    if launch.params[0].transposed:
        narrow, broad = broad, narrow
    if not (broad.numel and weight.numel and narrow.numel):
        return stream_work(launch)
    channels, features = weight.shape[1], weight.shape[0]
    taps, places = math.prod(weight.shape[2:]), math.prod(narrow.shape[2:])
    groups = max(broad.shape[1] // channels, 1)
    cycles = 4.2 * CYCLES_OF_A_MICROSECOND
    if groups > 1 and channels == 1:
        return Work(
            launch.nbytes / _DEPTHWISE, launch.nbytes, narrow.numel, 4.0 * taps * narrow.numel, cycles
        )
    half = broad.itemsize == 2
    aligned = not half or (broad.shape[1] % 8 == 0 and features % 8 == 0)
    share = (_HALF_SHARE if half else _SHARE) / slower
    made = MatrixProduct(
        groups, narrow.shape[0] * places, max(features // groups, 1), channels * taps, launch.kernel.rate(launch),
        aligned, share,
    )  # fmt: skip
    moved, kernels = float(launch.nbytes), 1
    if half and broad.ndim == 4 and broad.strides[1] != 1 and broad.shape[1] > 1:
        moved, kernels = 3.0 * moved, 3
    return Work(moved, launch.nbytes, max(narrow.numel, weight.numel), 0.0, cycles, kernels, made)


# -- attention --------------------------------------------------------------------------------------------------------


def attention(launch: Launch) -> Work:
    """Return the work of attention in one kernel, in which each tile of queries reads all keys."""
    q, k = _operands(launch)
    return _attention(launch, q, k, (0.27, 0.29), (0.7, 2.1), 5.0, 1.0)


def attention_gradient(launch: Launch) -> Work:
    """Return the work of attention's gradient: five products where attention has two."""
    q, k = _operands(launch, 1)
    return _attention(launch, q, k, (0.5, 0.4), (2.0, 9.0), 12.0, 2.5)


def _attention(
    launch: Launch,
    q: Meta,
    k: Meta,
    shares: tuple[float, float],
    steps: tuple[float, float],
    start: float,
    factor: float,
) -> Work:
    """Return the work of attention.

    Args:
        shares: Shares of a plain product's rate, in half precision and in float32.
        steps: Microseconds of a tile of queries with 64 keys, in half precision and in float32.
        start: Microseconds beyond the start of a kernel.
        factor: Products relative to those of the forward pass.
    """
    if not (q.numel and k.numel):
        return stream_work(launch)
    queries, depth = q.shape[-2:]
    keys, heads, wide = k.shape[-2], q.numel // (queries * depth), q.itemsize > 2
    causal = bool(launch.params[0])
    seen = 0.5 * (1 + 128 / max(queries, 128)) if causal else 1.0
    operations = 4.0 * heads * queries * keys * depth * seen * factor
    peak = 66.9e6 if wide else 989.4e6 * min(1.0, (depth / 128) ** 0.4)  # products per microsecond of an H100
    waves = -(-heads * -(-queries // (64 if wide else 128)) // MULTIPROCESSORS)
    chain = waves * -(-keys // 64) * steps[wide] * (0.6 if causal else 1.0) * depth / 64 / min(waves, 2)
    microseconds = start + max(operations / (peak * shares[wide]), chain)
    return pass_over(launch, q.numel, microseconds)
