"""Attention's kernels emulated beside the host body: on tensor cores and by multiply-adds."""

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
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
OP = table["scaled_dot_product_attention"]
PLAIN, WARPS, WARPGROUPS = "plain", "warps", "warpgroups"
CAPABILITIES = {PLAIN: (9, 0), WARPS: (8, 0), WARPGROUPS: (9, 0)}
NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}


def check(
    arrays: list[Any],
    causal: bool,
    form: str,
    order: int = 0,
    tight: bool = False,
) -> None:
    """Compare a launch with the host body. `form`: PLAIN (multiply-adds), WARPS or WARPGROUPS."""
    found = OP.rule([emulated.meta_of(x, GPU) for x in arrays], (causal, 0.4, False))
    launch = Launch(OP.kernel, found.outputs, found.inputs, found.params, capability=CAPABILITIES[form])
    source = emulated.built(launch, emulated.Device()).source
    products = {WARPS: "load_matrices(r", WARPGROUPS: "begin_product(X{}"}
    assert [name for name, text in products.items() if text in source] == [form] * (form in products)
    given = [np.broadcast_to(x, m.shape) for x, m in zip(arrays, found.inputs, strict=True)]
    near = NEAR[found.outputs[0].dtype.name]
    both = zip(emulated.emulated(launch, given, tight, order), emulated.of_host(launch, given), strict=True)
    for got, want in both:
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), near, near)


def factors(kind: str, queries: int, keys: int, depth: int, batch: tuple[int, ...] = (2,)) -> list[Any]:
    make = operator_properties.maker(getattr(flambeau, kind), 2)
    return [make(*batch, queries, depth), make(*batch, keys, depth), make(*batch, keys, depth)]


@pytest.mark.parametrize("kind", ("float16", "bfloat16"))
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(
    ("queries", "keys", "depth"), [(5, 7, 16), (70, 130, 64), (130, 70, 64), (64, 64, 128)]
)
def test_tensor_cores(kind: str, causal: bool, queries: int, keys: int, depth: int) -> None:
    check(factors(kind, queries, keys, depth), causal, WARPS, order=2)


# The emulated GPU has four multiprocessors: with more than four items, blocks take several.
@pytest.mark.parametrize(
    ("queries", "keys", "depth", "samples"),
    [(5, 7, 16, 2), (70, 130, 64, 6), (200, 300, 64, 1), (130, 70, 96, 3), (140, 270, 128, 2)],
)
def test_warpgroups(queries: int, keys: int, depth: int, samples: int) -> None:
    kind = "float16" if depth == 96 else "bfloat16"
    for order, causal in enumerate((False, True)):
        check(factors(kind, queries, keys, depth, (samples,)), causal, WARPGROUPS, order=2 - order)


def test_warps_compute_what_warpgroups_of_hopper_do_not() -> None:
    arrays = factors("bfloat16", 20, 80, 32)
    for params, capability in (((False, -0.4, False), (9, 0)), ((False, 0.4, False), (10, 0))):
        found = OP.rule([emulated.meta_of(x, GPU) for x in arrays], params)
        launch = Launch(OP.kernel, found.outputs, found.inputs, found.params, capability=capability)
        assert "begin_product" not in emulated.built(launch, emulated.Device()).source


def test_tensor_cores_with_masks() -> None:
    arrays = factors("bfloat16", 20, 80, 32, (2, 2))
    random = np.random.default_rng(0)
    seen = random.random((20, 80)) < 0.5
    seen[3] = False  # a query with nothing to look at
    check([*arrays, seen], False, WARPS)
    added = operator_properties.maker(flambeau.bfloat16, 5)(2, 1, 20, 80)
    check([*arrays, added], True, WARPS)


@pytest.mark.parametrize("form", (WARPS, WARPGROUPS))
def test_tensor_cores_of_misaligned_and_strided_rows(form: str) -> None:
    make = operator_properties.maker(flambeau.float16, 4)
    q, k, v = make(3, 10, 2, 33)[..., 1:], make(3, 12, 2, 32), make(3, 12, 2, 36)[..., :32]
    arrays = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    check(arrays, False, form)
    check(arrays, True, form, order=1, tight=True)


def test_multiply_adds() -> None:
    check(factors("float16", 9, 70, 20), True, PLAIN)
    check(factors("float32", 70, 9, 16), False, PLAIN)


def test_values_without_columns_give_logarithms() -> None:
    q, k, v = factors("float32", 5, 7, 16)
    check([q, k, v[..., :0]], True, PLAIN)
