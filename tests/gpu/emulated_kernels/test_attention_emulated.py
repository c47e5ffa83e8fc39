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
from flambeau.driver.api import Launch
from flambeau.ops.op import table
from flambeau.testing import operators

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
OP = table["scaled_dot_product_attention"]
NEAR = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5}


def check(arrays: list[Any], causal: bool, cores: bool, order: int = 0, tight: bool = False) -> None:
    found = OP.rule([emulated.meta_of(x, GPU) for x in arrays], (causal, 0.4, False))
    launch = Launch(OP.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    assert ("load_matrices" in emulated.built(launch, emulated.Device()).source) is cores
    given = [np.broadcast_to(x, m.shape) for x, m in zip(arrays, found.inputs, strict=True)]
    near = NEAR[found.outputs[0].dtype.name]
    both = zip(emulated.emulated(launch, given, tight, order), emulated.of_host(launch, given), strict=True)
    for got, want in both:
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), near, near)


def factors(kind: str, queries: int, keys: int, depth: int, batch: tuple[int, ...] = (2,)) -> list[Any]:
    make = operators.maker(getattr(flambeau, kind), 2)
    return [make(*batch, queries, depth), make(*batch, keys, depth), make(*batch, keys, depth)]


@pytest.mark.parametrize("kind", ("float16", "bfloat16"))
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(
    ("queries", "keys", "depth"), [(5, 7, 16), (70, 130, 64), (130, 70, 64), (64, 64, 128)]
)
def test_tensor_cores(kind: str, causal: bool, queries: int, keys: int, depth: int) -> None:
    check(factors(kind, queries, keys, depth), causal, True, order=2)


def test_tensor_cores_with_masks() -> None:
    arrays = factors("bfloat16", 20, 80, 32, (2, 2))
    random = np.random.default_rng(0)
    seen = random.random((20, 80)) < 0.5
    seen[3] = False  # a query with nothing to look at
    check([*arrays, seen], False, True)
    added = operators.maker(flambeau.bfloat16, 5)(2, 1, 20, 80)
    check([*arrays, added], True, True)


def test_tensor_cores_of_misaligned_and_strided_rows() -> None:
    make = operators.maker(flambeau.float16, 4)
    q, k, v = make(3, 10, 2, 33)[..., 1:], make(3, 12, 2, 32), make(3, 12, 2, 36)[..., :32]
    arrays = [x.transpose(0, 2, 1, 3) for x in (q, k, v)]
    check(arrays, False, True)
    check(arrays, True, True, order=1, tight=True)


def test_multiply_adds() -> None:
    check(factors("float16", 9, 70, 20), True, False)
    check(factors("float32", 70, 9, 16), False, False)


def test_values_without_columns_give_logarithms() -> None:
    q, k, v = factors("float32", 5, 7, 16)
    check([q, k, v[..., :0]], True, False)
