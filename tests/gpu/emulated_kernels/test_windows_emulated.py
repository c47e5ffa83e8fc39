"""Windows and places: the kernels of pooling, unfold, fold, interpolation and grid_sample emulated beside the host bodies."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.core.errors import NotSupportedError
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.sliding_windows import Lattice
from flambeau.driver.protocol import Launch
from flambeau.ops.nn.sliding_windows import Windows
from flambeau.ops.op import Op, table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
EXACT = (
    "unfold", "fold", "max_pool", "max_pool_backward", "adaptive_max_pool", "adaptive_max_pool_backward", "avg_pool",
    "avg_pool_backward", "max_unpool", "max_unpool_backward", "interpolate", "grid_sample",
)  # fmt: skip
NEAR = ("adaptive_avg_pool", "adaptive_avg_pool_backward", "interpolate_backward", "grid_sample_backward")
KINDS = {"float32", "bfloat16"}
MOVED = {"float64", "int64", "uint8", "complex32"}  # where there is little arithmetic


def launches(op: Op, kinds: set[str], layout: Any, most: int = 99) -> Iterator[tuple[Launch, list[Any]]]:
    """Every sample in float32, the first in other dtypes: each source is compiled, which takes its time."""
    for kind in op.dtypes:
        if kind.name not in kinds:
            continue
        samples = op.samples(operator_properties.maker(kind, 0), kind)
        for inputs, params in islice(samples, most if kind.name == "float32" else 1):
            yield launch_of(op, [layout(x)[1] for x in inputs], params)


def launch_of(op: Op, arrays: list[Any], params: Any, out_step: int = 1) -> tuple[Launch, list[Any]]:
    chosen = tuple([getattr(flags, name) for name in op.flags])
    found = op.rule([emulated.meta_of(x, GPU) for x in arrays], (*params, *chosen))
    outputs = [
        Meta.of(m.shape, tuple([s * out_step for s in m.strides]), m.dtype, GPU) for m in found.outputs
    ]
    return Launch(op.kernel, tuple(outputs), found.inputs, found.params, capability=(9, 0)), arrays


def check(launch: Launch, arrays: list[Any], near: float = 0, tight: bool = True) -> None:
    for got, want in zip(
        emulated.emulated(launch, arrays, tight), emulated.of_host(launch, arrays), strict=True
    ):
        if near:
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), near, near)
        else:
            assert got.tobytes() == want.tobytes(), f"{launch.kernel.name} {launch.params}"


@pytest.mark.parametrize("name", EXACT)
def test_the_same_bits_as_the_host(name: str) -> None:
    op = table[name]
    kinds = KINDS | MOVED if name in EXACT[:5] else KINDS
    for launch, arrays in launches(op, kinds, operator_properties.plain):
        check(launch, arrays)
    for launch, arrays in launches(op, {"float32"}, operator_properties.reversed_dims, 2):
        check(launch, arrays, tight=False)
    for inputs, params in islice(
        op.samples(operator_properties.maker(flambeau.float32, 1), flambeau.float32), 1
    ):
        check(*launch_of(op, list(inputs), params, out_step=3))


@pytest.mark.parametrize("name", NEAR)
def test_the_hosts_values_to_rounding(name: str) -> None:
    op = table[name]
    for launch, arrays in launches(op, KINDS, operator_properties.plain):
        check(launch, arrays, near=2e-5 if launch.outputs[0].dtype is flambeau.float32 else 4e-2)
    for launch, arrays in launches(op, {"float32"}, operator_properties.with_gaps, 2):
        check(launch, arrays, near=2e-5, tight=False)


def test_a_nan_wins_and_the_first_of_equals_stays() -> None:
    x = np.array([1, 5, 5, 2, np.nan, 3, np.nan, 7, -np.inf, -np.inf], np.float32).reshape(1, 1, 10)
    check(*launch_of(table["max_pool"], [x], (Windows((3,), (1,), (1,), (1,)),)))
    check(*launch_of(table["adaptive_max_pool"], [x], ((4,),)))


@pytest.mark.parametrize(
    "how",
    (
        Windows((2, 2), (2, 2), (0, 0), (1, 1)),
        Windows((3, 3), (2, 2), (1, 1), (1, 1), True),
        Windows((3, 2), (1, 3), (1, 0), (2, 3)),
        Windows((6, 6), (2, 2), (3, 3), (1, 1)),  # more elements than are read at once
    ),
    ids=str,
)
def test_maxima_of_windows_and_their_way_back(how: Windows) -> None:
    x = np.random.default_rng(5).integers(-3, 3, (2, 3, 9, 11)).astype(np.float32)
    x[0, 0], x[1, 1, ::2, ::3] = -np.inf, np.nan
    launch, arrays = launch_of(table["max_pool"], [x], (how,))
    check(launch, arrays)
    values, places = emulated.of_host(launch, arrays)
    check(*launch_of(table["max_pool_backward"], [np.ones_like(values), places], (how, x.shape[2:])))


@pytest.mark.parametrize("size, count", (((65,), (1,)), ((9, 11), (1, 2)), ((4, 5, 7), (1, 1, 1))))
def test_long_adaptive_windows_are_folded_by_warps(size: Any, count: Any) -> None:
    x = operator_properties.maker(flambeau.float32, 3)(2, 3, *size)
    check(*launch_of(table["adaptive_avg_pool"], [x], (count,)), near=1e-6)


def test_the_last_of_those_put_to_one_place_stays() -> None:
    values = operator_properties.maker(flambeau.float32, 3)(1, 2, 6)
    index = np.array([[[0, 3, 3, 0, 5, 3], [1, 1, 1, 1, 1, 0]]])
    check(*launch_of(table["max_unpool"], [values, index], ((7,),)))


def test_places_outside_are_told() -> None:
    values, index = operator_properties.maker(flambeau.float32, 3)(1, 1, 3), np.array([[[0, 9, 2]]])
    launch, arrays = launch_of(table["max_unpool"], [values, index], ((4,),))
    with pytest.raises(AssertionError, match="invalid max index: 9"):
        emulated.emulated(launch, arrays)


def test_special_places_of_a_grid() -> None:
    at = np.array([np.nan, np.inf, -np.inf, -1, 1, 0, 1e30, 2.5], np.float32)
    grid = np.stack(np.meshgrid(at, at), -1)[None].astype(np.float32)
    x = operator_properties.maker(flambeau.float32, 3)(1, 2, 4, 5)
    for mode in ("nearest", "bilinear"):
        for padding in ("zeros", "border", "reflection"):
            check(*launch_of(table["grid_sample"], [x, grid], (mode, padding, False)))


@pytest.mark.parametrize(("size", "padding"), [(1 << 31, 0), (2, 1 << 30)])
def test_more_places_than_kernels_count_are_refused(size: int, padding: int) -> None:
    with pytest.raises(NotSupportedError, match="more than 2147483647 elements"):
        Lattice((size,), (2,), (1,), (1,), (padding,), (1,)).pack()
