"""What masks choose, emulated beside the host body: counts of tiles, places, values, and values put there."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.driver.protocol import Launch
from flambeau.ops.op import table

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
SIZES = (1, 31, 33, 8191, 8192, 8193, 40_000)


def run(name: str, arrays: list[Any], params: tuple[Any, ...] = (), order: int = 0) -> list[Any]:
    """The emulated results, which are the host's."""
    op = table[name]
    found = op.rule([emulated.meta_of(x, GPU) for x in arrays], params)
    launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    got, want = emulated.emulated(launch, arrays, order=order), emulated.of_host(launch, arrays)
    for a, b in zip(got, want, strict=True):
        assert a.tobytes() == b.tobytes()
    return got


def counted(mask: Any, order: int = 0) -> tuple[int, Any]:
    total, before = run("nonzero_count", [mask], (), order)
    return int(total), before


def masks(size: int) -> list[Any]:
    some = np.random.default_rng(size).random(size) < 0.3
    return [some, np.zeros(size, bool), np.ones(size, bool)]


@pytest.mark.parametrize("size", SIZES)
def test_tiles_of_any_number(size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    for order, mask in enumerate(masks(size)):
        count, before = counted(mask, order)
        (places,) = run("nonzero", [mask, before], (count,), order)
        np.testing.assert_array_equal(places[:, 0], np.flatnonzero(mask))
        (values,) = run("masked_select", [x, mask, before], (count, False), order)
        np.testing.assert_array_equal(values, x[mask])


@pytest.mark.parametrize("kind", ("bool", "int8", "complex64"))
def test_coordinates_of_layouts(kind: str) -> None:
    whole = np.random.default_rng(0).integers(-1, 2, (7, 40, 66)).astype(kind)
    for x in (whole, whole.T, whole[::2, :, ::3], whole[:1, 0, 0], np.array(whole[0, 0, 0])):
        count, before = counted(x)
        (found,) = run("nonzero", [x, before], (count,))
        np.testing.assert_array_equal(found, np.argwhere(x != 0))


def test_values_and_masks_of_other_layouts() -> None:
    x = np.random.default_rng(1).standard_normal((90, 200)).astype(np.float32)
    for values, mask in (
        (x.T, x.T > 0),
        (x, np.broadcast_to(x[:1] > 0, x.shape)),
        (x[::3, ::2], x[::3, 1::2] > 1),
    ):
        count, before = counted(mask)
        (got,) = run("masked_select", [values, mask, before], (count, False))
        np.testing.assert_array_equal(got, values[mask])


def test_more_chosen_than_were_counted_are_not_written() -> None:
    mask = np.ones(20_000, bool)
    few = np.zeros(20_000, bool)
    few[:5] = True
    count, before = counted(few)  # another stream changed the mask in between
    op = table["nonzero"]
    found = op.rule([emulated.meta_of(x, GPU) for x in (mask, before)], (count,))
    launch = Launch(op.kernel, found.outputs, found.inputs, found.params)
    (got,) = emulated.emulated(launch, [mask, before], tight=True)
    assert got[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_source_is_scattered_in_order() -> None:
    x = np.zeros((100, 190), np.float32)
    mask = np.random.default_rng(2).random(x.shape) < 0.5
    run("masked_scatter", [x, mask, np.arange(1.0, x.size + 1, dtype=np.float32)])
    with pytest.raises(AssertionError, match="Number of elements of source < number of ones in mask"):
        run("masked_scatter", [x, mask, np.ones(3, np.float32)])


def test_repeats_of_several_tiles() -> None:
    counts = np.random.default_rng(3).integers(0, 4, 20_000)
    (total,) = run("repeats_total", [counts])
    assert int(total) == counts.sum()
    run("repeat_places", [counts], (int(total),))


@pytest.mark.parametrize("wanted", ((False, False), (True, True)), ids=str)
@pytest.mark.parametrize("consecutive", (False, True))
def test_unique_values_of_several_tiles(consecutive: bool, wanted: tuple[bool, bool]) -> None:
    x = np.repeat(np.random.default_rng(4).integers(0, 1000, 4200).astype(np.float32), 2)
    op = table["unique"]
    found = op.rule([emulated.meta_of(x, GPU)], (None, consecutive, *wanted))
    launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    values, inverse, counts, count = emulated.emulated(launch, [x])
    want = emulated.of_host(launch, [x])
    n = int(count)
    assert n == int(want[3])
    np.testing.assert_array_equal(values[:n], want[0][:n])
    np.testing.assert_array_equal(inverse, want[1])
    np.testing.assert_array_equal(counts[:n], want[2][:n])
