"""`sdpa_kernel` and the switches of torch.backends.cuda: on the CPU beside PyTorch, on a virtual GPU by PyTorch's rules."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import flambeau

BACKENDS = ("ERROR", "MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "OVERRIDEABLE")


@pytest.fixture(autouse=True)
def _as_at_first() -> Iterator[None]:
    yield
    for library in (torch, flambeau):
        cuda = library.backends.cuda
        assert cuda.flash_sdp_enabled() and cuda.math_sdp_enabled() and cuda.mem_efficient_sdp_enabled()
    assert flambeau.core.flags.flags.attention_order == tuple(torch._C._get_sdp_priority_order())


def heads(lib: Any, shape: tuple[int, ...], kind: str = "float32", **made: Any) -> Any:
    numbers = np.random.default_rng(3).standard_normal((3, *shape)).astype(np.float32)
    return [lib.from_numpy(x).to(getattr(lib, kind)).to(**made) for x in numbers]


def outcome(lib: Any, names: tuple[str, ...], shape: tuple[int, ...], **how: Any) -> Any:
    """The result, or the error."""
    ways = [getattr(lib.nn.attention.SDPBackend, name) for name in names]
    try:
        with warnings.catch_warnings(), lib.nn.attention.sdpa_kernel(ways):
            warnings.simplefilter("ignore")
            return lib.nn.functional.scaled_dot_product_attention(*heads(lib, shape), **how).numpy()
    except RuntimeError as error:
        return " ".join(str(error).split())


@pytest.mark.parametrize("names", [(name,) for name in BACKENDS] + [(), BACKENDS[1:3], BACKENDS[3:]], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 4, 8), (3, 4, 8)], ids=str)
def test_on_the_cpu_as_pytorch(names: tuple[str, ...], shape: tuple[int, ...]) -> None:
    want, got = (outcome(lib, names, shape, is_causal=True) for lib in (torch, flambeau))
    if isinstance(want, str):
        assert got == want
    else:
        np.testing.assert_allclose(got, want, 1e-5, 1e-6)


@pytest.mark.parametrize("kind", ("float32", "float16", "bfloat16"))
def test_products(kind: str) -> None:
    """With masks, of which one row hides all."""
    for how in ("causal", "seen", "added", "reduced"):
        results = []
        for lib in (torch, flambeau):
            q, k, v = heads(lib, (2, 5, 8), kind)
            seen = lib.ones(5, 5, dtype=lib.bool).tril(1)
            seen[2] = False
            mask = {"seen": seen, "added": lib.zeros(5, 5).masked_fill(~seen, -float("inf")).to(q.dtype)}.get(
                how
            )
            lib.backends.cuda.allow_fp16_bf16_reduction_math_sdp(how == "reduced")
            with lib.nn.attention.sdpa_kernel(lib.nn.attention.SDPBackend.MATH):
                out = lib.nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=how == "causal")
            lib.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
            results.append(out.double().numpy())
        np.testing.assert_allclose(
            *results, 3e-2 if kind != "float32" else 1e-5, 2e-2 if kind != "float32" else 1e-6
        )


def test_products_write_the_scores_to_memory_and_the_kernel_does_not() -> None:
    with flambeau.virtual(devices=1):
        cuda, peaks = flambeau.cuda, {}
        q, k, v = heads(flambeau, (1, 1, 256, 16), "float16", device="cuda")
        for name in ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
            cuda.reset_peak_memory_stats()
            before = cuda.memory_allocated()
            with flambeau.nn.attention.sdpa_kernel(getattr(flambeau.nn.attention.SDPBackend, name)):
                flambeau.nn.functional.scaled_dot_product_attention(q, k, v)
            peaks[name] = cuda.max_memory_allocated() - before
        # the result in 16 bits, and a logarithm in 32 for each query, as PyTorch's kernels return; three blocks of 512
        # bytes for what they take while they run: a seed, an offset and a flag
        assert peaks["FLASH_ATTENTION"] == peaks["EFFICIENT_ATTENTION"] == 256 * 16 * 2 + 256 * 4 + 3 * 512
        assert peaks["MATH"] > 256 * 256 * 4


@pytest.mark.parametrize(
    ("name", "kind", "shape", "how", "reason"),
    [
        ("FLASH_ATTENTION", "float32", (1, 1, 4, 8), {}, "dtype: {Half, BFloat16}. Got Query dtype: Float"),
        ("FLASH_ATTENTION", "float16", (1, 1, 4, 257), {}, "less than or equal to 256"),
        ("FLASH_ATTENTION", "float16", (1, 4, 8), {}, "4 dimensional, but got Query dim: 3"),
        ("FLASH_ATTENTION", "float16", (1, 1, 4, 8), {"dropout_p": 0.5}, "no dropout"),
        ("EFFICIENT_ATTENTION", "float64", (1, 1, 4, 8), {}, "dtype: {Half, BFloat16, Float}"),
        ("CUDNN_ATTENTION", "float16", (1, 1, 4, 8), {}, "does not use it"),
    ],
)
def test_a_gpu_says_why_not(name: str, kind: str, shape: tuple[int, ...], how: Any, reason: str) -> None:
    with flambeau.virtual(devices=1):
        q, k, v = heads(flambeau, shape, kind, device="cuda")
        backend = getattr(flambeau.nn.attention.SDPBackend, name)
        with (
            pytest.warns(UserWarning) as told,
            pytest.raises(RuntimeError, match="No available kernel"),
            flambeau.nn.attention.sdpa_kernel(backend),
        ):
            flambeau.nn.functional.scaled_dot_product_attention(q, k, v, **how)
        assert any(reason in str(each.message) for each in told)


def test_switches() -> None:
    cuda = flambeau.backends.cuda
    assert cuda.is_flash_attention_available() and not cuda.is_ck_sdpa_available()
    assert not cuda.fp16_bf16_reduction_math_sdp_allowed()
    for enable, is_enabled in (
        (cuda.enable_flash_sdp, cuda.flash_sdp_enabled), (cuda.enable_math_sdp, cuda.math_sdp_enabled),
        (cuda.enable_mem_efficient_sdp, cuda.mem_efficient_sdp_enabled),
        (cuda.enable_cudnn_sdp, cuda.cudnn_sdp_enabled),
    ):  # fmt: skip
        enable(False)
        assert not is_enabled()
        enable(True)
        assert is_enabled()
        with pytest.raises(RuntimeError, match="expects a bool, but got int"):
            enable(1)
    cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        assert cuda.fp16_bf16_reduction_math_sdp_allowed()
        with pytest.raises(
            RuntimeError, match="set_math_sdp_allow_fp16_bf16_reduction expects a bool, but got int"
        ):
            cuda.allow_fp16_bf16_reduction_math_sdp(0)
    finally:
        cuda.allow_fp16_bf16_reduction_math_sdp(False)
    with pytest.warns(FutureWarning, match="sdpa_kernel"), cuda.sdp_kernel(enable_math=False) as context:
        assert context == {} and not cuda.math_sdp_enabled() and cuda.flash_sdp_enabled()


def test_an_order_of_their_own() -> None:
    ways = flambeau.nn.attention.SDPBackend
    with flambeau.nn.attention.sdpa_kernel([ways.MATH, ways.FLASH_ATTENTION], set_priority=True):
        x = flambeau.ones(1, 1, 4, 8, requires_grad=True)
        assert (
            "Scaled"
            not in type(flambeau.nn.functional.scaled_dot_product_attention(x, x, x).grad_fn).__name__
        )


def test_what_a_call_could_use() -> None:
    cuda = flambeau.backends.cuda
    with flambeau.virtual(devices=1):
        half, single = (heads(flambeau, (1, 1, 4, 8), kind, device="cuda") for kind in ("float16", "float32"))
        of = [cuda.SDPAParams(*x, None, 0.0, False, False) for x in (half, single)]
        assert [cuda.can_use_flash_attention(p) for p in of] == [True, False]
        assert [cuda.can_use_efficient_attention(p) for p in of] == [True, True]
        assert cuda.can_use_cudnn_attention(of[0]) is False
        with pytest.warns(UserWarning, match="dtype"):
            cuda.can_use_flash_attention(of[1], True)
    on_cpu = cuda.SDPAParams(*heads(flambeau, (1, 1, 4, 8)), None, 0.0, False, False)
    assert not cuda.can_use_efficient_attention(on_cpu)


def test_names_of_backends() -> None:
    ours, theirs = flambeau.nn.attention.SDPBackend, torch.nn.attention.SDPBackend
    for name in BACKENDS:
        assert repr(getattr(ours, name)) == repr(getattr(theirs, name))
        assert int(getattr(ours, name)) == int(getattr(theirs, name))
    with pytest.raises(AssertionError, match="must be an instance of SDPBackend or a list"):
        flambeau.nn.attention.sdpa_kernel("MATH").__enter__()
