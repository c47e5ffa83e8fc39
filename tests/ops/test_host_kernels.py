"""Every fast implementation of the CPU computes what the reference implementation of its record computes.

A new one is tested without a new line here: inputs are the samples of its record, with other sizes, layouts, and
elements that are not finite. Constants of its module (sizes of blocks) are drawn as well, so that small arrays reach
all of its code.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flambeau
from flambeau import Tensor
from flambeau.driver.protocol import Launch
from flambeau.ops import cache_blocks
from flambeau.ops.op import Op, table
from flambeau.tensor.call import call, signature
from flambeau.testing.operator_properties import (
    UNSAMPLED,
    channels_innermost,
    maker,
    plain,
    reversed_dims,
    tensor_of,
    with_gaps,
)

Array = np.ndarray[Any, Any]
FAST = sorted(name for name, op in table.items() if op.kernel.fast is not None)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0)
LARGE = 1 << 20  # bytes and operations of a call
SIZES = (0, 1, 2, 5, 16, 33, 70)


def module_of(op: Op) -> ModuleType:
    return import_module("flambeau.driver.host.kernels." + op.kernel.fast.path.partition(":")[0])


def constants(op: Op) -> list[tuple[ModuleType, str]]:
    modules = (module_of(op), cache_blocks)
    return [
        (m, name) for m in modules for name, value in vars(m).items() if name.isupper() and type(value) is int
    ]


@pytest.mark.parametrize("name", FAST)
@given(data=st.data())
def test_fast_implementation_computes_what_the_reference_does(name: str, data: st.DataObject) -> None:
    op = table[name]
    inputs, params = data.draw(calls(op), label="call")
    with pytest.MonkeyPatch.context() as patch:
        for module, constant in constants(op) if data.draw(st.booleans()) else ():
            patch.setattr(module, constant, data.draw(st.sampled_from((1, 2, 7, 40)), label=constant))
        found = result_of(op.with_(), inputs, params)
    want = result_of(op.with_(kernel=op.kernel.with_(fast=None)), inputs, params)
    if isinstance(want, Exception):
        assert type(found) is type(want), repr(found)
        return
    assert not isinstance(found, Exception), repr(found)
    for one, other in zip(found, want, strict=True):
        check_close(one, other, inputs, op.kernel.fast.ulps)


@st.composite
def calls(draw: Callable[..., Any], op: Op) -> tuple[list[Any], tuple[Any, ...]]:
    kind, seed = draw(st.sampled_from(op.dtypes)), draw(st.integers(0, 99))
    samples = list(op.samples(maker(kind, seed), kind))
    assert samples or op.name in UNSAMPLED
    inputs, params = draw(st.sampled_from(samples))
    random = np.random.default_rng(seed)
    sizes = sorted({n for x in inputs if isinstance(x, np.ndarray) for n in x.shape})
    for _ in range(draw(st.integers(0, 2)) if sizes else 0):
        old, new = draw(st.sampled_from(sizes)), draw(st.sampled_from(SIZES))
        other = [resized(x, old, new, random) for x in inputs]
        if accepts(op, other, params):
            inputs = other
    if draw(st.booleans()):
        inputs = [spoiled(x, random) for x in inputs]
    layout = draw(st.sampled_from((plain, reversed_dims, with_gaps, channels_innermost)))
    return [tensor_of(x, layout) if isinstance(x, np.ndarray) else x for x in inputs], params


def resized(x: Any, old: int, new: int, random: np.random.Generator) -> Any:
    """An array whose sizes of `old` are `new`, with elements of `x`."""
    if not isinstance(x, np.ndarray):
        return x
    shape = [new if n == old else n for n in x.shape]
    return random.choice(x.reshape(-1), shape) if x.size else np.zeros(shape, x.dtype)


def spoiled(x: Any, random: np.random.Generator) -> Any:
    """The array with a few elements that are not finite, if it has floating point elements."""
    if not isinstance(x, np.ndarray) or not x.size or np.dtype(x.dtype).kind not in "fcV":
        return x
    x = x.copy()
    x.reshape(-1)[random.integers(0, x.size, 1 + x.size // 50)] = random.choice(SPECIAL)
    return x


def accepts(op: Op, inputs: list[Any], params: tuple[Any, ...]) -> bool:
    """Return True if the operator takes these inputs, and they are small enough for the reference."""
    try:
        found = signature(op, [tensor_of(x) if isinstance(x, np.ndarray) else x for x in inputs], params)
    except (RuntimeError, IndexError, ValueError):
        return False
    launch = Launch(op.kernel, found.outputs, found.inputs, found.params)
    return launch.nbytes < LARGE and op.kernel.flops(launch) < LARGE


def result_of(op: Op, inputs: list[Any], params: tuple[Any, ...]) -> list[Any] | Exception:
    try:
        found = call(op, inputs, params)
    except (RuntimeError, IndexError, ValueError) as error:
        return error
    return list(found) if isinstance(found, tuple) else [found]


def check_close(found: Tensor, want: Tensor, inputs: list[Any], ulps: int) -> None:
    """Compare bits, NaN with NaN; or, with `ulps`, elements by that many units in the last place of the largest."""
    if not (want.dtype.is_floating_point or want.dtype.is_complex):
        assert found.tolist() == want.tolist()
        return
    one, other = numbers(found), numbers(want)
    finite = np.isfinite(other)
    assert (np.isfinite(one) == finite).all()
    if not want.dtype.is_complex:
        np.testing.assert_array_equal(one[~finite], other[~finite])
    one, other = one[finite], other[finite]
    if want.dtype.is_complex:
        ulps = max(
            ulps, 128
        )  # NumPy rounds a complex product once or twice, depending on how many lie in a row
    if ulps:
        scale = max(
            [np.abs(x[np.isfinite(x)]).max(initial=0) for x in [other, *map(numbers, tensors(inputs))]]
        )
        np.testing.assert_allclose(one, other, rtol=0, atol=ulps * flambeau.finfo(want.dtype).eps * scale)
    else:
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(np.signbit(one.real), np.signbit(other.real))


def numbers(x: Tensor) -> Array:
    return np.asarray(x.to(flambeau.complex128 if x.dtype.is_complex else flambeau.float64).numpy())


def tensors(inputs: list[Any]) -> list[Tensor]:
    return [x for x in inputs if isinstance(x, Tensor)]
