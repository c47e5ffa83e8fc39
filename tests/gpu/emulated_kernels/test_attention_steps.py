"""The steps of attention's gradient: our kernels emulated, products by NumPy, beside the host body."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
from library_kit import Device
from test_convolution_steps import Driver, meta_of

import flambeau
from flambeau.driver.api import Launch
from flambeau.driver.cuda.nn import attention_gradients
from flambeau.ops.op import table
from flambeau.testing import operators

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}
OP = table["scaled_dot_product_attention_backward"]


def check(inputs: list[Any], params: Any) -> None:
    found = OP.rule([meta_of(x) for x in inputs], (*params, False))
    launch = Launch(OP.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    device = Device()
    run = attention_gradients.backward(launch, device, Driver(device))
    given = [np.broadcast_to(x, meta.shape) for x, meta in zip(inputs, found.inputs, strict=True)]
    made = [np.full(meta.shape, 7, meta.dtype.numpy) for meta in found.outputs]
    run([x.ctypes.data for x in (*made, *inputs)], (), 0, 0)
    assert not device.held, "workspace was not given back"
    wanted = [np.zeros_like(x) for x in made]
    with np.errstate(all="ignore"):
        OP.kernel.host(launch)(wanted, given)
    near = NEAR[found.outputs[0].dtype.name]
    for got, want in zip(made, wanted, strict=True):
        np.testing.assert_allclose(got.astype(float), want.astype(float), near, near)


def factors(kind: Any, batch: tuple[int, ...], queries: int, keys: int) -> list[Any]:
    make = operators.maker(kind, 2)
    shapes = ((queries, 3), (queries, 5), (keys, 5), (keys, 3))
    return [make(*batch, *shape) for shape in shapes]


@pytest.mark.parametrize("kind", ("float32", "float64", "float16", "bfloat16"))
@pytest.mark.parametrize("causal", (False, True))
def test_in_parts(kind: str, causal: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(attention_gradients, "_SCORE_BYTES", 2 * 2 * 6 * 37 * 4)
    check(factors(getattr(flambeau, kind), (5, 2), 6, 37), (causal, 0.3, False))


def test_no_batch_and_any_layout() -> None:
    check(factors(flambeau.float32, (), 40, 6), (True, 0.3, False))
    inputs = [
        np.ascontiguousarray(x.swapaxes(0, 1)).swapaxes(0, 1) for x in factors(flambeau.float32, (2, 3), 4, 5)
    ]
    check(inputs, (False, 0.5, False))


def test_masks() -> None:
    inputs = factors(flambeau.float32, (2, 3), 4, 6)
    make = operators.maker(flambeau.float32, 3)
    check([*inputs, make(3, 1, 6)], (False, 0.5, True))
    check([*inputs, make(4, 6)], (False, 0.5, False))
    seen = make(2, 1, 4, 6) > 0
    seen[0, 0, 1] = False  # a query that sees nothing
    check([*inputs, seen], (False, 0.5, False))


def test_one_batch_for_many() -> None:
    grad, q, k, v = factors(flambeau.float32, (2, 3), 4, 6)
    check([grad, q, k[:1, :1], v[:, :1]], (False, 0.5, False))
