"""`histc` and `bincount` emulated, beside the host body and NumPy."""

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


def launch_of(name: str, inputs: list[Any], params: Any) -> Launch:
    op = table[name]
    metas = [emulated.meta_of(x, GPU) if isinstance(x, np.ndarray) else type(x) for x in inputs]
    found = op.rule(metas, params)
    return Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


@pytest.mark.parametrize("kind", (np.float32, np.float64))
@pytest.mark.parametrize("bins, low, high", ((7, -1.0, 1.5), (5000, -2.0, 2.0)))
def test_bins_of_floats(kind: Any, bins: int, low: float, high: float) -> None:
    x = np.append(np.random.default_rng(0).standard_normal(3000), [np.nan, np.inf, low, high]).astype(kind)
    inputs = [x, low, high]
    launch = launch_of("histc", inputs, (bins,))
    np.testing.assert_array_equal(emulated.emulated(launch, inputs)[0], emulated.of_host(launch, inputs)[0])


@pytest.mark.parametrize("kind", (np.uint8, np.int8, np.int16, np.int32, np.int64))
def test_bins_of_integers(kind: Any) -> None:
    info = np.iinfo(np.int32 if kind is np.int64 else kind)
    x = np.random.default_rng(0).integers(info.min, info.max, 500, dtype=kind, endpoint=True)
    inputs = [x, -100, 90]
    inside = [int(v) for v in x if -100 <= v <= 90]
    want = np.bincount(np.array([min((v + 100) * 7 // 190, 6) for v in inside], np.int64), minlength=7)
    (got,) = emulated.emulated(launch_of("histc", inputs, (7,)), inputs)
    np.testing.assert_array_equal(got, want.astype(kind))


def test_places_and_weights() -> None:
    random = np.random.default_rng(0)
    inputs = [random.integers(0, 9, 2000), random.integers(0, 4, 2000).astype(np.float32)]
    for given in (inputs[:1], inputs):
        launch = launch_of("bincount", given, (9,))
        np.testing.assert_array_equal(emulated.emulated(launch, given)[0], emulated.of_host(launch, given)[0])
