"""The steps of attention's gradient beside the host body: kernels are emulated, NumPy computes products."""

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
from flambeau.core.dtype import bfloat16
from flambeau.driver.cuda.nn import attention_gradients, attention_products
from flambeau.driver.protocol import Launch
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}
OP = table["scaled_dot_product_attention_backward"]


class NamingDriver(Driver):
    """A driver that lists the kernels that it loads."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.kernels: list[str] = []

    def load(self, launch: Launch, index: int) -> Any:
        self.kernels.append(launch.kernel.name)
        return super().load(launch, index)


def check(factors: list[Any], params: Any, cores: bool = False) -> None:
    """Compare the gradient of `factors`, which are grad, query, key, value and a mask or none."""
    for got, want in both_gradients(factors, params, cores):
        near = NEAR[want.dtype.name]
        if (
            cores
        ):  # weights and slopes are rounded to 16 bits before products, so that errors are relative to sums
            assert distance(got, want) < near
        else:
            np.testing.assert_allclose(got.astype(float), want.astype(float), near, near)


def both_gradients(factors: list[Any], params: Any, cores: bool) -> list[tuple[Any, Any]]:
    """Return each gradient by the steps and by the host body."""
    grad, q, k, v, *masks = factors
    inputs = [grad, q, k, v, *outputs_of([q, k, v, *masks], params), *masks]
    found = OP.rule([meta_of(x) for x in inputs], (*params, False))
    launch = Launch(OP.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    device = Device()
    driver = NamingDriver(device)
    run = attention_gradients.backward(launch, device, driver)
    assert ("attention_by_keys" in driver.kernels) is cores
    given = [np.broadcast_to(x, meta.shape) for x, meta in zip(inputs, found.inputs, strict=True)]
    made = [np.full(meta.shape, 7, meta.dtype.numpy) for meta in found.outputs]
    run([x.ctypes.data for x in (*made, *inputs)], (), 0, 0)
    assert not device.held, "workspace was not given back"
    wanted = [np.zeros_like(x) for x in made]
    with np.errstate(all="ignore"):
        OP.kernel.host(launch)(wanted, given)
    return list(zip(made, wanted, strict=True))


def distance(got: Any, want: Any) -> float:
    """Return the norm of the difference, relative to the norm of `want`."""
    got, want = got.astype(float), want.astype(float)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def outputs_of(inputs: list[Any], params: Any) -> list[Any]:
    """Return the attention's result and the logarithms of its sums."""
    forward = table["scaled_dot_product_attention"]
    found = forward.rule([meta_of(x) for x in inputs], (*params[:2], False))
    outputs = [np.zeros(meta.shape, meta.dtype.numpy) for meta in found.outputs]
    given = [np.broadcast_to(x, meta.shape) for x, meta in zip(inputs, found.inputs, strict=True)]
    with np.errstate(all="ignore"):
        forward.kernel.host(Launch(forward.kernel, found.outputs, found.inputs, found.params))(outputs, given)
    return outputs


def factors(kind: Any, batch: tuple[int, ...], queries: int, keys: int) -> list[Any]:
    make = operator_properties.maker(kind, 2)
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
    make = operator_properties.maker(flambeau.float32, 3)
    check([*inputs, make(3, 1, 6)], (False, 0.5, True))
    check([*inputs, make(4, 6)], (False, 0.5, False))
    seen = make(2, 1, 4, 6) > 0
    seen[0, 0, 1] = False  # a query that sees nothing
    check([*inputs, seen], (False, 0.5, False))


def test_one_batch_for_many() -> None:
    grad, q, k, v = factors(flambeau.float32, (2, 3), 4, 6)
    check([grad, q, k[:1, :1], v[:, :1]], (False, 0.5, False))


@pytest.mark.parametrize(("batch", "queries", "keys"), [((), 5, 1100), ((3, 2), 9, 37), ((2,), 40, 6)])
def test_forward_by_products(batch: tuple[int, ...], queries: int, keys: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(attention_gradients, "_SCORE_BYTES", 2 * 2 * 9 * 37 * 4)
    inputs = factors(flambeau.float32, batch, queries, keys)[1:]
    make = operator_properties.maker(flambeau.float32, 3)
    seen = make(*batch, queries, keys) > 0
    seen[..., 1, :] = False  # a query that sees nothing
    forward = table["scaled_dot_product_attention"]
    for masks, causal in (([], False), ([], True), ([make(queries, keys)], False), ([seen], False)):
        given = [*inputs, *masks]
        found = forward.rule([meta_of(x) for x in given], (causal, 0.3, False))
        launch = Launch(forward.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
        device = Device()
        made = [np.full(meta.shape, 7, meta.dtype.numpy) for meta in found.outputs]
        run = attention_products.attention(launch, device, NamingDriver(device))
        run([x.ctypes.data for x in (*made, *given)], (), 0, 0)
        for got, want in zip(made, outputs_of(given, (causal, 0.3)), strict=True):
            np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    check([*factors(flambeau.float32, batch, queries, keys), seen], (False, 0.5, False))


# -- on tensor cores: 16 bits, one depth for queries, keys and values ----------------------------------------------------


def square_factors(kind: str, batch: tuple[int, ...], queries: int, keys: int, depth: int) -> list[Any]:
    make = operator_properties.maker(getattr(flambeau, kind), queries + keys)
    return [make(*batch, rows, depth) for rows in (queries, queries, keys, keys)]


@pytest.mark.parametrize("kind", ("float16", "bfloat16"))
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(
    ("queries", "keys", "depth"), [(5, 7, 16), (70, 130, 64), (150, 70, 32), (330, 330, 16), (40, 33, 128)]
)
def test_tensor_cores(kind: str, causal: bool, queries: int, keys: int, depth: int) -> None:
    check(square_factors(kind, (2,), queries, keys, depth), (causal, 0.2, False), cores=True)


def test_tensor_cores_with_masks() -> None:
    inputs = square_factors("bfloat16", (2, 2), 20, 80, 32)
    seen = np.random.default_rng(0).random((20, 80)) < 0.5
    seen[3] = False  # a query that sees nothing
    check([*inputs, seen], (False, 0.2, False), cores=True)
    added = operator_properties.maker(flambeau.bfloat16, 5)(2, 1, 20, 80)
    check([*inputs, added], (True, 0.2, False), cores=True)
    check([*inputs, added], (True, 0.2, True), cores=False)


def test_tensor_cores_with_broadcast_and_strided_factors() -> None:
    make = operator_properties.maker(flambeau.float16, 4)
    grad = np.broadcast_to(make(1, 1, 10, 1), (3, 2, 10, 32))
    q, k, v = make(3, 10, 2, 33)[..., 1:], make(1, 12, 2, 32), make(3, 12, 2, 36)[..., :32]
    check([grad, *(x.transpose(0, 2, 1, 3) for x in (q, k, v))], (True, 0.2, False), cores=True)


def test_scores_far_below_zero_do_not_overflow() -> None:
    grad, q, k, v = (x.astype(float) for x in square_factors("bfloat16", (1,), 9, 9, 16))
    inputs = [
        x.astype(bfloat16.numpy) for x in (grad, q * 0.3 + 12, k * 0.3 - 12, v)
    ]  # scores are near -144 * 16 * 0.2
    gradients = both_gradients(inputs, (False, 0.2, False), True)
    assert all(np.isfinite(got.astype(float)).all() for got, _ in gradients)
    assert distance(*gradients[2]) < NEAR["bfloat16"]
