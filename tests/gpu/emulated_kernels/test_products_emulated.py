"""Small matrix products in one kernel, emulated beside the host body."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.core.dtype import bfloat16, complex64, complex128, float16, float32, float64
from flambeau.core.meta import Meta
from flambeau.driver.cuda.linalg import direct_products
from flambeau.driver.protocol import Launch
from flambeau.ops.op import Op, table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
NEAR = {float16: 2e-3, bfloat16: 2e-2, float32: 1e-5, float64: 1e-13, complex64: 1e-5, complex128: 1e-13}  # fmt: skip
MATMUL, ADDMM = table["matmul"], table["addmm"]
LAYOUTS = [operator_properties.plain, operator_properties.reversed_dims, operator_properties.with_gaps]


def launch_of(op: Op, inputs: list[Any], tf32: bool = False) -> Launch:
    operands = [emulated.meta_of(x, GPU) if isinstance(x, np.ndarray) else type(x) for x in inputs]
    found = op.rule(operands, (*[None] * (len(op.flags) - 1), tf32))
    return Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


def check(op: Op, inputs: list[Any], near: float, tf32: bool = False) -> None:
    """`inputs` as the launch sees them: batches expanded, vectors as matrices."""
    launch = launch_of(op, inputs, tf32)
    laid = [
        as_strided(x, meta.shape, meta.byte_strides) if isinstance(meta, Meta) else x
        for x, meta in zip(inputs, launch.inputs, strict=True)
    ]
    (got,) = emulated.emulated(launch, laid, tight=True)
    (want,) = emulated.of_host(launch, laid)
    wide = np.complex128 if np.iscomplexobj(want) else np.float64
    np.testing.assert_allclose(got.astype(wide), want.astype(wide), near, near)


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(launch: Launch, device: Any) -> Any:
        program = direct_products.product(launch, bool(launch.params[-1]))
        assert program is not None
        return program

    monkeypatch.setattr(emulated, "built", small)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(list(NEAR)), batch=st.sampled_from([(), (1,), (3,), (2, 2)]), sizes=st.tuples(*[st.integers(1, most) for most in (40, 200, 40)]),
    one=st.sampled_from(LAYOUTS), other=st.sampled_from(LAYOUTS), folded=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_products_in_any_layout(
    kind: Any,
    batch: tuple[int, ...],
    sizes: tuple[int, int, int],
    one: Any,
    other: Any,
    folded: bool,
    seed: int,
) -> None:
    make, (m, k, n) = operator_properties.maker(kind, seed), sizes
    k = min(k, 128) if kind.itemsize == 2 else k  # more of 16 bits are the library's
    a, b = one(make(*batch, m, k))[1], other(make(*(() if folded else batch), k, n))[1]
    check(MATMUL, [a, b], NEAR[kind] * k)


@pytest.mark.parametrize("kind", NEAR, ids=str)
@pytest.mark.parametrize("factors", [(1, 1), (0, 2), (2, 1), (0.5, -1.5), (0.0, 1.0)])
def test_added_products(kind: Any, factors: tuple[float, float]) -> None:
    make = operator_properties.maker(kind, 3)
    for added, a, b in (
        ((33, 40), (33, 50), (50, 40)),
        ((40,), (33, 50), (50, 40)),
        ((3, 33, 1), (3, 33, 5), (3, 5, 4)),
    ):
        check(ADDMM, [make(*added), make(*a), make(*b), *factors], NEAR[kind] * 200)
    nothing = np.full((4, 4), np.nan).astype(kind.numpy)
    check(ADDMM, [nothing, make(4, 6), make(6, 4), 0, 1], NEAR[kind] * 50)  # at 0 it is not read


def test_vectors_and_dots() -> None:
    make = operator_properties.maker(float32, 5)
    for a, b in (((7,), (7,)), ((5, 7), (7,)), ((7,), (7, 5)), ((3, 5, 7), (7,))):
        check(MATMUL, [make(*a), make(*b)], 1e-5)


def test_tf32_is_the_host_bodys_rounding() -> None:
    """Factors of 24 bits: without the rounding results differ in the third digit. Infinities stay."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((40, 40)).astype(np.float32) for _ in range(2))
    a[0, 0], a[1, 1], b[3, 3] = np.inf, np.nan, np.float32(3.4e38)
    check(MATMUL, [a, b], 2e-6, tf32=True)
    rounded, exact = (emulated.of_host(launch_of(MATMUL, [a, b], tf32), [a, b])[0] for tf32 in (True, False))
    assert np.max(np.abs(rounded[2:, 4:] - exact[2:, 4:])) > 1e-4


def test_what_is_large_or_nothing_goes_to_the_library() -> None:
    def taken(a: tuple[int, ...], b: tuple[int, ...], kind: Any = np.float32, tf32: bool = False) -> bool:
        launch = launch_of(MATMUL, [np.ones(a, kind), np.ones(b, kind)])
        return direct_products.product(launch, tf32) is not None

    assert taken((64, 64), (64, 64)) and taken((4, 128, 256), (4, 256, 128))
    assert not taken((64, 257), (257, 64)) and not taken((257, 8), (8, 256)) and not taken((4, 0), (0, 4))
    assert taken((64, 128), (128, 64), np.float16) and not taken((64, 129), (129, 64), np.float16)
    assert not taken((64, 129), (129, 64), tf32=True)  # tensor cores are sooner done
