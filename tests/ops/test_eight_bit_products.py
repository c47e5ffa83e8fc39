"""`_int_mm` and `_scaled_mm` against PyTorch's CPU build, and on virtual GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import torch

import flambeau


def outcome(run: Any, lib: Any) -> Any:
    try:
        return run(lib)
    except (RuntimeError, ValueError) as error:
        return type(error), str(error).split("\n", maxsplit=1)[0]


def both_of(array: np.ndarray[Any, Any], kind: str) -> list[Any]:
    return [lib.from_numpy(array).to(getattr(lib, kind)) for lib in (flambeau, torch)]


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
def test_int8_products_are_exact(n: int, k: int, m: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.integers(-128, 128, (n, k), np.int8), random.integers(-128, 128, (k, m), np.int8)
    found = flambeau._int_mm(flambeau.from_numpy(a), flambeau.from_numpy(b))
    assert found.dtype is flambeau.int32
    np.testing.assert_array_equal(found.numpy(), a.astype(np.int64) @ b.astype(np.int64))


SHAPES = [((3, 4), (5, 6), "int8"), ((3,), (3, 4), "int8"), ((3, 4), (4, 2), "int32")]


@pytest.mark.parametrize("left, right, kind", SHAPES)
def test_int8_products_refuse_what_pytorch_refuses(left: Any, right: Any, kind: str) -> None:
    def run(lib: Any) -> Any:
        return lib._int_mm(lib.ones(left, dtype=getattr(lib, kind)), lib.ones(right, dtype=lib.int8))

    assert outcome(run, flambeau) == outcome(run, torch)


@pytest.mark.parametrize("out", [None, "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kinds", [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")])
@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_float8_products_are_pytorchs(biased: bool, rowwise: bool, kinds: Any, out: str | None) -> None:
    random = np.random.default_rng(0)
    left, right = random.standard_normal((2, 16, 32)).astype(np.float32)
    scales = [np.float32([[0.5]]), np.float32([[2.0]])]
    if rowwise:
        scales = [random.random((16, 1), np.float32), random.random((1, 16), np.float32)]
    bias = random.standard_normal(16).astype(np.float32)
    results = []
    for i, lib in enumerate((flambeau, torch)):
        a, b = both_of(left, kinds[0])[i], both_of(right.T.copy(), kinds[1])[i]
        kind = None if out is None else getattr(lib, out)
        added = lib.from_numpy(bias).to(lib.bfloat16 if out != "float16" else kind) if biased else None
        scale_a, scale_b = (lib.from_numpy(scale) for scale in scales)
        results.append(lib._scaled_mm(a, b, scale_a, scale_b, bias=added, out_dtype=kind))
    assert str(results[0].dtype) == str(results[1].dtype)
    ours, theirs = (x.float().numpy() for x in results)
    step = {None: 0.26, "float32": 1e-5, "bfloat16": 1e-2, "float16": 1e-3}[out]
    np.testing.assert_allclose(ours, theirs, rtol=step, atol=step)


REFUSED = [
    ("float32", (4, 4), (), ()), ("float8_e4m3fn", (5, 4), (), ()), ("float8_e4m3fn", (4, 4), (3,), ()),
    ("float8_e4m3fn", (4, 4), (4, 1), ()), ("float8_e4m3fn", (4,), (), ()),
]  # fmt: skip


@pytest.mark.parametrize("kind, shape, scale_a, scale_b", REFUSED)
def test_float8_products_refuse_what_pytorch_refuses(
    kind: str, shape: Any, scale_a: Any, scale_b: Any
) -> None:
    def run(lib: Any) -> Any:
        a, b = lib.ones(4, 4).to(getattr(lib, kind)), lib.ones(shape).to(lib.float8_e4m3fn)
        return lib._scaled_mm(a, b, lib.ones(scale_a), lib.ones(scale_b))

    ours, theirs = outcome(run, flambeau), outcome(run, torch)
    assert ours == theirs or (ours[0], theirs[0]) == (ValueError, ValueError)


def test_products_of_8_bits_run_on_virtual_gpus() -> None:
    with flambeau.virtual(1, profile="h100"):
        a = flambeau.ones(16, 32, device="cuda")
        eight, one = a.to(flambeau.float8_e4m3fn), flambeau.ones((), device="cuda")
        assert flambeau._scaled_mm(eight, eight.t(), one, one, out_dtype=flambeau.float32)[0, 0].item() == 32
        whole = a.to(flambeau.int8)
        assert flambeau._int_mm(whole, whole.t())[3, 3].item() == 32
