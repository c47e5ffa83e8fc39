"""Loops over the operator table: what holds for every record, tested with no code per operator.

`cases()` lists (operator, dtype); `check_virtual` runs an operator's samples on the CPU and on a virtual
device and wants the same bits. A program that defines operators of its own can run them over those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flambeau.core.device import CPU, device
from flambeau.core.dtype import BOOL, INTEGRAL, dtype, from_numpy
from flambeau.core.memory import array_at
from flambeau.core.meta import Meta
from flambeau.ops.op import Op, table
from flambeau.tensor.call import call, empty
from flambeau.tensor.tensor import Tensor, make


def cases() -> Iterator[tuple[Op, dtype]]:
    """Every operator of the table with every dtype that it takes."""
    for op in table.values():
        for kind in op.dtypes:
            yield op, kind


def maker(kind: dtype, seed: int) -> Callable[..., np.ndarray[Any, Any]]:
    """`make(*shape, low=, high=)`: seeded random arrays of a dtype, what samples are built with."""
    random = np.random.default_rng(seed)

    def array(*shape: int, low: float = -3, high: float = 3) -> np.ndarray[Any, Any]:
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


def tensor_of(array: np.ndarray[Any, Any], transposed: bool = False) -> Tensor:
    """A CPU tensor of an array's elements; `transposed` stores them with the dimensions reversed."""
    shape, kind = array.shape, from_numpy(array.dtype)
    stored = np.ascontiguousarray(array.T if transposed else array).reshape(
        shape[::-1] if transposed else shape
    )
    result = empty(Meta.contiguous_of(stored.shape, kind, CPU))
    array_at(result.ptr, stored.shape, kind.numpy)[...] = stored
    if not transposed:
        return result
    meta = Meta.of(shape, result.meta.strides[::-1], kind, CPU)
    return make(meta, result.memory, result.ptr)


def bits(result: Any) -> list[bytes]:
    """The bytes of a result's elements, in order of index."""
    several = result if isinstance(result, tuple) else (result,)
    found = []
    for t in several:
        t = t.cpu()
        view = array_at(t.ptr, t.meta.shape, t.meta.dtype.numpy, t.meta.byte_strides)
        found.append(view.tobytes())
    return found


def check_virtual(op: Op, kind: dtype, where: device, seed: int = 0) -> int:
    """Run the samples on the CPU and on `where`, plain and with reversed strides: the same bits, or AssertionError.

    Returns how many calls were compared.
    """
    count = 0
    for inputs, params in op.samples(maker(kind, seed), kind):
        for transposed in (False, True):
            host = [tensor_of(x, transposed) if isinstance(x, np.ndarray) else x for x in inputs]
            there = [x.to(where) if isinstance(x, Tensor) else x for x in host]
            if not any(isinstance(x, Tensor) for x in host):
                continue
            want, got = call(op, host, params), call(op, there, params)
            assert bits(got) == bits(want), f"{op.name} of {kind} {params}: {where} and the CPU differ"
            count += 1
    return count
