"""The work of matrix products and attention."""

from __future__ import annotations

import math

from flambeau.core.frozen import Record
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch, MatrixProduct, Work, stream_work
from flambeau.ops.work.element_work import CYCLES_OF_A_MICROSECOND, MULTIPROCESSORS, pass_over

_VECTOR = 16  # bytes of the widest load
_START = 0.6  # microseconds of a product beyond the start of a kernel
_NARROW_HALF, _NARROW = 3.4, 2.2  # how often narrower loads move the operands


def _widest_load(metas: list[Meta]) -> int:
    """Return the bytes of the widest load that the beginnings of all rows of matrices allow."""
    widest = _VECTOR
    for meta in metas:
        for size, stride in zip(meta.shape[-2:], meta.strides[-2:], strict=True):
            if size > 1 and stride != 1:
                widest = math.gcd(widest, stride * meta.itemsize)
    return widest


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
    load = _widest_load([meta for meta in (*launch.outputs, a, b) if meta.ndim > 1])
    made = MatrixProduct(count, rows, columns, depth, launch.kernel.rate(launch), load)
    nbytes = launch.nbytes * (1.0 if load == _VECTOR else _NARROW_HALF if out.itemsize <= 2 else _NARROW)
    cycles = _START * CYCLES_OF_A_MICROSECOND
    return Work(nbytes, launch.nbytes, max(out.numel, launch.nbytes // 64), 0.0, cycles, product=made)


def first_operands(launch: Launch, first: int = 0) -> list[Meta]:
    """Return two of the tensors that the launch reads, from position `first` on."""
    return [meta for meta in launch.inputs if isinstance(meta, Meta)][first : first + 2]


def _matrix_and_vector(launch: Launch, results: int, depth: int) -> Work:
    """Return the work of products with a vector: each result is a sum over `depth`."""
    microseconds = 1.3 + (0.0 if results >= 64 else 0.8 + min(depth / 256 * 5e-3, 3.0))
    return pass_over(launch, results * depth // 8, microseconds)


# -- attention --------------------------------------------------------------------------------------------------------

# Note [The time of attention]
# cuDNN's kernels for half precision on Hopper take tiles of 128 queries, one on each multiprocessor at a time, in
# steps of 128 keys; its gradient takes tiles of 64. PyTorch's memory-efficient kernels for float32 take tiles of 64
# by 64. A step takes time by the depth of the heads. Tiles of causal attention end at their diagonal, and the longest
# ones begin first. A tile alone waits in each step for the step before it.


_ROOF = 1.4  # share of a plain product's rate that no attention exceeds


class Tiles(Record):
    """The tiles of a kernel for attention. See Note [The time of attention].

    Attributes:
        side: Number of queries and of keys of a tile.
        start: Microseconds beyond the start of a kernel.
        tile: Microseconds of a tile, beyond its steps.
        steps: Depth of a head, as an upper limit -> microseconds of a step of a busy multiprocessor.
        alone: Factor of a step's time where its multiprocessor has no other tile.
        together: Number of tiles that a multiprocessor has at the same time.
        products: Number of matrix products of a step.
    """

    side: int
    start: float
    tile: float
    steps: dict[int, float]
    alone: float = 1.0
    together: int = 1
    products: int = 2


_HALF = Tiles(128, 1.63, 1.88, {32: 1.15, 64: 1.13, 128: 1.74})
_WIDE = Tiles(64, 4.2, 0.0, {64: 3.75, 128: 5.0}, 1.4, 4)
_HALF_GRADIENT = Tiles(64, 5.0, 7.3, {32: 0.5, 64: 0.62, 128: 1.2}, 2.0, products=5)
_WIDE_GRADIENT = Tiles(64, 18.0, 0.0, {32: 9.8, 64: 15.6, 96: 17.5, 128: 22.0}, products=5)


def attention(launch: Launch) -> Work:
    """Return the work of attention in one kernel, in which each tile of queries reads all keys."""
    q, k = first_operands(launch)
    return _attention(launch, q, k, _WIDE if q.itemsize > 2 else _HALF)


def attention_gradient(launch: Launch) -> Work:
    """Return the work of attention's gradient: five products where attention has two."""
    q, k = first_operands(launch, 1)
    return _attention(launch, q, k, _WIDE_GRADIENT if q.itemsize > 2 else _HALF_GRADIENT)


def _attention(launch: Launch, q: Meta, k: Meta, tiles: Tiles) -> Work:
    if not (q.numel and k.numel):
        return stream_work(launch)
    queries, depth = q.shape[-2:]
    steps, heads = -(-k.shape[-2] // tiles.side), q.numel // (queries * depth)
    count = heads * -(-queries // tiles.side)
    step = tiles.steps[min([most for most in tiles.steps if depth <= most], default=max(tiles.steps))]
    step *= max(depth / max(tiles.steps), 1.0)
    seen = (steps + 1) / 2 if launch.params[0] else float(steps)
    busy = count / MULTIPROCESSORS
    waves = busy if launch.params[0] else float(-(-count // MULTIPROCESSORS))
    together = min(-(-count // MULTIPROCESSORS), tiles.together)
    chain = max(waves * seen * step, steps * step * max(tiles.alone, together)) + max(busy, 1.0) * tiles.tile
    pairs = max(round(k.shape[-2] * seen / steps), 1)
    made = MatrixProduct(
        heads, queries, pairs, tiles.products * depth, launch.kernel.rate(launch), _VECTOR, _ROOF
    )
    work = pass_over(launch, q.numel, tiles.start)
    return work.with_(chain=chain * CYCLES_OF_A_MICROSECOND, product=made)
