"""Loops over the operator table: properties of every operator, tested without code per operator.

`cases()` lists (operator, dtype); `check_virtual` runs an operator's samples on the CPU and on a virtual device
and wants the same bits, in several layouts, with and without `out=`. A program that defines operators
can run both over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from flambeau.core.device import CPU, device
from flambeau.core.dtype import BOOL, INTEGRAL, dtype, from_numpy
from flambeau.core.errors import RaceError
from flambeau.core.host_arrays import address_of, array_at
from flambeau.core.meta import Meta
from flambeau.ops.op import Op, table
from flambeau.tensor.call import call, call_into, empty, signature
from flambeau.tensor.tensor import Tensor, make

for _name in (
    "multi_tensor.foreach_copy",
    "multi_tensor.foreach_norm",
    "random.gamma",
    "multi_tensor.optimizer",
    "linalg.sparse_product",
):  # the operators that `import flambeau` does not load
    import_module(f"flambeau.ops.{_name}")

Array = np.ndarray[Any, Any]
Layout = Callable[[Array], tuple[Array, Array]]
"""How an array's elements lie in memory: the contiguous memory, and the view of it that is the tensor."""
Variant = Callable[[Array], Array]
Params = tuple[Any, ...]

UNSAMPLED = dict.fromkeys(
    (
        "uniform_", "normal_", "random_", "bernoulli_", "exponential_", "cauchy_", "geometric_", "log_normal_",
        "randperm", "poisson", "_standard_gamma",
    ),
    "PyTorch's CPU and CUDA generators draw different numbers; tests/oracle/random_numbers/test_random.py "
    "and a GPU's recorded draws are the reference",
)  # fmt: skip
"""Operators that have no samples, and why."""


def cases() -> Iterator[tuple[Op, dtype]]:
    """Yield every operator of the table with every dtype that it accepts."""
    for op in table.values():
        for kind in op.dtypes:
            yield op, kind


def summary() -> str:
    """Return the number of operators in the table, and of pairs of operator and dtype."""
    return f"{len(table)} operators, {len(list(cases()))} pairs of operator and dtype"


def maker(kind: dtype, seed: int) -> Callable[..., Array]:
    """Return `make(*shape, low=, high=)`, which creates seeded random arrays of a dtype for samples."""
    random = np.random.default_rng(seed)

    def array(*shape: int, low: float = -3, high: float = 3) -> Array:
        if kind.category == BOOL:
            return np.asarray(random.integers(0, 2, shape).astype(bool))
        if kind.category == INTEGRAL:
            low = max(low, 0) if not kind.is_signed else low
            return np.asarray(random.integers(int(low), int(high) + 1, shape)).astype(kind.numpy)
        values = np.asarray(random.uniform(low, high, shape))
        if kind.is_complex:
            values = values + 1j * random.uniform(low, high, shape)
            return np.asarray(np.asarray(values, np.complex64), kind.numpy)
        return np.asarray(np.asarray(values, np.float32), kind.numpy)

    return array


# -- layouts: the same elements, elsewhere in memory ----------------------------------------------------


def plain(array: Array) -> tuple[Array, Array]:
    stored = np.ascontiguousarray(array).reshape(array.shape)
    return stored, stored


def reversed_dims(array: Array) -> tuple[Array, Array]:
    """Return an array stored with its dimensions reversed, column by column."""
    stored = np.ascontiguousarray(array.T).reshape(array.shape[::-1])
    return stored, stored.T


def with_gaps(array: Array) -> tuple[Array, Array]:
    """Return every second element of an array twice as large, so that its memory has gaps."""
    if not array.ndim:
        return plain(array)
    stored = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    view = stored[..., 1::2]
    view[...] = array
    return stored, view


def channels_innermost(array: Array) -> tuple[Array, Array]:
    """Return images and volumes in `channels_last`; other arrays unchanged."""
    if not is_image(array):
        return plain(array)
    stored = np.ascontiguousarray(np.moveaxis(array, 1, -1))
    return stored, np.moveaxis(stored, -1, 1)


def is_image(x: Any) -> bool:
    """Return True for an array that may be (N, C, spatial ...) with two or three spatial dimensions."""
    return isinstance(x, np.ndarray) and x.ndim in (4, 5)


def tensor_of(array: Array, layout: Layout = plain, where: device = CPU) -> Tensor:
    """Return a tensor of an array's elements on a device, in the memory layout `layout`."""
    stored, view = layout(array)
    kind = from_numpy(array.dtype)
    memory = empty(Meta.contiguous_of((stored.size,), kind, CPU))
    array_at(memory.ptr, (stored.size,), kind.numpy)[...] = stored.reshape(-1)
    if where is not CPU:
        memory = memory.to(where)
    strides = tuple([step // kind.itemsize for step in view.strides])
    offset = address_of(view) - address_of(stored) if view.size else 0
    return make(Meta.of(view.shape, strides, kind, where), memory.memory, memory.ptr + offset)


# -- variants: other elements, where the operator's rule takes them -------------------------------------


def zero_dim(array: Array) -> Array:
    """Return the first element as an array without dimensions."""
    return array[(0,) * array.ndim] if array.size else array


def no_elements(array: Array) -> Array:
    return array[..., :0] if array.ndim else array


def one_row(array: Array) -> Array:
    """Return the first entry along the leading dimension, which broadcasts against the whole array."""
    return array[:1] if array.ndim else array


# -- checks ---------------------------------------------------------------------------------------------


def bits(result: Any) -> list[bytes]:
    """Return the bytes of a result's elements, in order of index."""
    several = result if isinstance(result, tuple) else (result,)
    found = []
    for t in several:
        t = t.cpu()
        view = array_at(t.ptr, t.meta.shape, t.meta.dtype.numpy, t.meta.byte_strides)
        found.append(view.tobytes())
    return found


def check_virtual(op: Op, kind: dtype, where: device, seed: int = 0) -> int:
    """Run the samples on the CPU and on `where`, and raise AssertionError unless bits or errors are equal.

    Each sample is tried in row-major and column-major layout, images also in channels last. The first sample is also
    tried with gaps between its elements, with empty, 0-dim and one-row operands, and with `out=`. Operators that CUDA
    devices do not implement although CPUs do (products of integers) are not compared.

    Returns:
        The number of calls that were compared.
    """
    count = 0
    for number, (inputs, params) in enumerate(op.samples(maker(kind, seed), kind)):
        count += _compare(op, inputs, params, plain, where, into=number == 0)
        if _arrays(inputs):
            count += _compare(op, inputs, params, reversed_dims, where)
            if any(map(is_image, inputs)):
                count += _compare(op, inputs, params, channels_innermost, where)
            count += _compare_variants(op, inputs, params, where) if number == 0 else 0
    return count


def _compare_variants(op: Op, inputs: Sequence[Any], params: Params, where: device) -> int:
    count = _compare(op, inputs, params, with_gaps, where)
    for variant in (no_elements, zero_dim, one_row):
        count += _compare(op, _each(variant, inputs), params, plain, where)
        if sum(isinstance(x, np.ndarray) for x in inputs) > 1:
            count += _compare(op, _first(variant, inputs), params, plain, where)
    return count


def _arrays(inputs: Sequence[Any]) -> bool:
    return any(isinstance(x, np.ndarray) for x in inputs)


def _first(variant: Variant, inputs: Sequence[Any]) -> list[Any]:
    return [np.asarray(variant(x)) if i == 0 else x for i, x in enumerate(inputs)]


def _each(variant: Variant, inputs: Sequence[Any]) -> list[Any]:
    return [np.asarray(variant(x)) if isinstance(x, np.ndarray) else x for x in inputs]


def _compare(
    op: Op, inputs: Sequence[Any], params: Params, layout: Layout, where: device, into: bool = False
) -> int:
    """Compare one call on both devices; with `into`, also with an `out=` of other strides."""
    moved = tuple([where if p is CPU else p for p in params])
    host, there = (_laid_out(inputs, layout, place) for place in (CPU, where))
    about = f"{op.name}{[getattr(x, 'shape', x) for x in inputs]} {params} {layout.__name__}"
    refused, also = _refusal(signature, op, host, params), _refusal(signature, op, there, moved)
    if isinstance(also, NotImplementedError):
        return 0
    assert type(also) is type(refused), f"{about}: {also!r} on {where}, {refused!r} on the CPU"
    if refused is not None:
        return 1
    if _refusal(call, op, host, params) is not None:
        return 0  # the elements are refused, which a device reports late or never
    want = call(op, host, params)
    assert bits(call(op, there, moved)) == bits(want), f"{about}: {where} and the CPU differ"
    if not into:
        return 1
    outputs = want if isinstance(want, tuple) else (want,)
    for args, how, place in ((host, params, CPU), (there, moved, where)):
        targets = tuple([_target(t.meta, place) for t in outputs])
        call_into(op, targets, args, how)
        assert bits(targets) == bits(want), f"{about}: another result with out= on {place}"
    return 2


def _laid_out(inputs: Sequence[Any], layout: Layout, where: device) -> list[Any]:
    return [tensor_of(x, layout, where) if isinstance(x, np.ndarray) else x for x in inputs]


def _refusal(run: Callable[..., Any], *args: Any) -> Exception | None:
    try:
        run(*args)
    except RaceError:
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        return error
    return None


def _target(meta: Meta, where: device) -> Tensor:
    """Return an `out=` of this shape and dtype with steps between its elements."""
    return tensor_of(np.zeros(meta.shape, meta.dtype.numpy), with_gaps, where)
