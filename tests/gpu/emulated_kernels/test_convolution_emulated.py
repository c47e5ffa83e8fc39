"""Small convolutions in one kernel, emulated beside the host body."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
from test_convolution_steps import cases

import flambeau
from flambeau.core.dtype import bfloat16, float16, float32, float64
from flambeau.driver.cuda.nn import direct_convolution
from flambeau.driver.protocol import Launch
from flambeau.ops.nn.convolution import Geometry
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
OP = table["convolution"]
EXACT = ["tf32" not in name for name in OP.flags]  # of the flags: cuDNN enabled, TF32 not allowed


def launch_of(arrays: list[Any], how: Any) -> Launch:
    found = OP.rule([emulated.meta_of(x, GPU) for x in arrays], (how, *EXACT))
    return Launch(OP.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulated, "built", direct_convolution.convolution)


def check(arrays: list[Any], how: Any, near: float = 1e-5) -> None:
    launch = launch_of(arrays, how)
    (got,) = emulated.emulated(launch, arrays, tight=True)
    (want,) = emulated.of_host(launch, arrays)
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), near, near)


@pytest.mark.parametrize(
    "layout", (operator_properties.plain, operator_properties.reversed_dims, operator_properties.with_gaps)
)
@pytest.mark.parametrize(
    "kind, near", ((float32, 1e-5), (float64, 1e-12), (float16, 2e-2), (bfloat16, 1e-1)), ids=str
)
def test_samples_in_any_layout(kind: Any, near: float, layout: Any) -> None:
    for inputs, (how, *_) in OP.samples(operator_properties.maker(kind, 0), kind):
        if not how.transposed:
            check([layout(x)[1] for x in inputs], how, near)


def test_groups_strides_dilations_and_biases() -> None:
    ran = 0
    for x, weight, bias, how in cases():
        if not how.transposed and x.dtype == np.float32:
            ran += 1
            check([x, weight] if bias is None else [x, weight, bias], how)
    assert ran > 3


def test_what_is_large_or_transposed_goes_to_a_library() -> None:
    make, how = operator_properties.maker(float32, 0), Geometry((1, 1), (0, 0), (1, 1))
    turned = Geometry((1, 1), (0, 0), (1, 1), True, (0, 0))
    taken = [
        direct_convolution.convolution(launch_of([make(*x), make(*weight)], case), None) is not None
        for x, weight, case in (
            ((1, 8, 16, 16), (8, 8, 3, 3), how),
            ((1, 60, 16, 16), (8, 60, 3, 3), how),
            ((4, 8, 130, 130), (8, 8, 3, 3), how),
            ((1, 8, 16, 16), (8, 8, 3, 3), turned),
        )
    ]
    assert taken == [True, False, False, False]
