"""Recurrent cells: their kernels emulated beside the host bodies."""

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
from flambeau.ops.nn import recurrent  # its records
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
CELLS = [f"_thnn_fused_{op}" for op in ("lstm_cell", "lstm_cell_backward", "gru_cell", "gru_cell_backward")]


def check(name: str, kind: Any, layout: Any, tight: bool, near: float) -> None:
    op = table[name]
    for inputs, params in op.samples(operator_properties.maker(kind, 0), kind):
        arrays = [layout(x)[1] for x in inputs]
        if not arrays[-1].size:
            continue
        found = op.rule([emulated.meta_of(x, GPU) for x in arrays], params)
        launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
        results = zip(emulated.emulated(launch, arrays, tight), emulated.of_host(launch, arrays), strict=True)
        for got, want in results:
            np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), near, near)


@pytest.mark.parametrize("name", CELLS)
def test_the_hosts_values_to_rounding(name: str) -> None:
    assert table[name].kernel is not None and recurrent
    check(name, flambeau.float32, operator_properties.plain, True, 2e-6)
    check(name, flambeau.float64, operator_properties.plain, True, 1e-14)
    check(name, flambeau.bfloat16, operator_properties.plain, True, 1e-2)
    check(name, flambeau.float32, operator_properties.reversed_dims, False, 2e-6)
    check(name, flambeau.float32, operator_properties.with_gaps, False, 2e-6)
