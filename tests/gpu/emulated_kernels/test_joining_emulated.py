"""`cat` in one kernel, emulated beside the host body."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Launch
from flambeau.ops.op import table

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)


def launch_of(arrays: list[Any], dim: int) -> Launch:
    op = table["cat"]
    found = op.rule([emulated.meta_of(x, GPU) for x in arrays], (dim,))
    return Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


def check(arrays: list[Any], dim: int, at_once: bool = True) -> None:
    launch = launch_of(arrays, dim)
    assert isinstance(emulated.built(launch, emulated.Device()), KernelProgram) is at_once
    for tight in (False, True):
        (got,) = emulated.emulated(launch, arrays, tight)
        assert got.tobytes() == emulated.of_host(launch, arrays)[0].tobytes()


def numbers(kind: str, *shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.int64).astype(kind).reshape(shape)


@pytest.mark.parametrize("dim", (0, 1, 2, -1))
@pytest.mark.parametrize(
    "kind, width", (("uint8", 32), ("uint8", 5), ("float32", 4), ("float32", 3), ("complex128", 1))
)
def test_rows_of_any_width_along_any_dimension(dim: int, kind: str, width: int) -> None:
    shapes: list[list[int]] = [[3, 4, width] for _ in range(3)]
    for shape, size in zip(shapes, (1, 5, 2), strict=True):
        shape[dim] *= size
    check([numbers(kind, *shape) for shape in shapes], dim)


def test_inputs_longer_than_a_block_empty_ones_and_only_one() -> None:
    check([numbers("float32", 9000), numbers("float32", 4097), numbers("float32", 3)], 0)
    none = numbers("float32", 0)
    check([none, numbers("float32", 2, 3), none, none, numbers("float32", 4, 3), none], 0)
    check([numbers("float32", 2, 0), numbers("float32", 2, 3)], 1)
    check([numbers("float32", 2, 3)], 1)


def test_as_many_as_the_longest_table_and_more() -> None:
    check([numbers("int64", 2, 1 + i % 3) for i in range(256)], 1)
    check([numbers("int64", 2, 1) for _ in range(257)], 1, at_once=False)


def test_other_dtypes_and_layouts_are_copied_one_by_one() -> None:
    check([numbers("float32", 2, 3), numbers("int64", 2, 3)], 0, at_once=False)
    check([numbers("float32", 2, 3), numbers("float32", 3, 2).T], 0, at_once=False)
