"""Fourier transforms on a real GPU: the CPU's numbers, to rounding, in every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_kit import GPU, needs_gpu

import flambeau
from flambeau.ops.linalg import fft as ops
from flambeau.runtime import system
from flambeau.runtime.devices.library_plans import cache_of
from flambeau.testing import operator_properties

pytestmark = needs_gpu

KINDS = (np.float32, np.float64)
RTOL = {np.float32: 2e-5, np.float64: 2e-13, np.float16: 5e-3}  # of the largest number of the result


def random(shape: Any, kind: Any, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    if np.dtype(kind).kind == "c":
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(kind)
    return generator.standard_normal(shape).astype(kind)


def close(got: Any, want: Any, kind: Any) -> None:
    got = np.asarray(got.cpu().to(flambeau.complex128 if got.is_complex() else flambeau.float64))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=RTOL[kind] * max(1, np.abs(want).max()))


def complex_of(kind: Any) -> Any:
    return {np.float32: np.complex64, np.float64: np.complex128}[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 97, 1000, 1 << 16, 100_003])
def test_sizes(kind: Any, n: int) -> None:
    x, z = random((3, n), kind), random((3, n), complex_of(kind))
    gx, gz = flambeau.tensor(x, device=GPU), flambeau.tensor(z, device=GPU)
    for norm in (None, "ortho", "forward"):
        close(flambeau.fft.fft(gz, norm=norm), np.fft.fft(z, norm=norm), kind)
        close(flambeau.fft.ifft(gz, norm=norm), np.fft.ifft(z, norm=norm), kind)
        close(flambeau.fft.rfft(gx, norm=norm), np.fft.rfft(x, norm=norm), kind)
        close(flambeau.fft.irfft(gz, n, norm=norm), np.fft.irfft(z, n, norm=norm), kind)
        close(flambeau.fft.hfft(gz, n, norm=norm), np.fft.hfft(z, n, norm=norm), kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 1), (1, 2), (2, 0), (0, 1, 2)])
@pytest.mark.parametrize(
    "layout", (operator_properties.plain, operator_properties.reversed_dims, operator_properties.with_gaps)
)
def test_dims_and_layouts(kind: Any, dims: Any, layout: Any) -> None:
    x, z = random((6, 10, 8), kind), random((6, 10, 8), complex_of(kind))
    gx, gz = (operator_properties.tensor_of(a, layout, GPU) for a in (x, z))
    close(flambeau.fft.fftn(gz, dim=dims), np.fft.fftn(z, axes=dims), kind)
    close(flambeau.fft.ifftn(gz, dim=dims), np.fft.ifftn(z, axes=dims), kind)
    close(flambeau.fft.rfftn(gx, dim=dims), np.fft.rfftn(x, axes=dims), kind)
    part = np.fft.ifftn(z, axes=dims[:-1]) if dims[:-1] else z  # of numbers that no real ones have
    for n in (8, 9):
        sizes = [z.shape[d] for d in dims[:-1]] + [n]
        half = np.take(part, range(n // 2 + 1), dims[-1]) if z.shape[dims[-1]] > n // 2 else part
        close(flambeau.fft.irfftn(gz, sizes, dim=dims), np.fft.irfft(half, n, axis=dims[-1]), kind)


def test_many_dims() -> None:
    z = random((2, 3, 4, 5, 6), np.complex128)
    g = flambeau.tensor(z, device=GPU)
    for dims in ((0, 1, 2, 3, 4), (0, 1, 3, 4), (4, 2, 1, 0)):
        close(flambeau.fft.fftn(g, dim=dims), np.fft.fftn(z, axes=dims), np.float64)
        close(flambeau.fft.rfftn(g.real, dim=dims), np.fft.rfftn(z.real, axes=dims), np.float64)
        close(
            flambeau.fft.irfftn(flambeau.fft.rfftn(g.real, dim=dims), [z.shape[d] for d in dims], dim=dims),
            z.real,
            np.float64,
        )


@pytest.mark.parametrize("n", [1, 2, 64, 4096])
def test_half_precision(n: int) -> None:
    x = random((5, n), np.float16)
    gx = flambeau.tensor(x, device=GPU)
    close(flambeau.fft.rfft(gx), np.fft.rfft(x.astype(np.float64)), np.float16)
    z = np.fft.fft(x.astype(np.float64))
    close(flambeau.fft.fft(gx.to(flambeau.complex32)), z, np.float16)
    close(
        flambeau.fft.irfft(flambeau.fft.rfft(gx, norm="ortho"), n, norm="ortho"),
        x.astype(np.float64),
        np.float16,
    )
    with pytest.raises(RuntimeError, match="powers of two"):
        flambeau.fft.rfft(flambeau.zeros(6, dtype=flambeau.float16, device=GPU))


def test_misaligned_operands() -> None:
    memory = flambeau.tensor(random((4098,), np.float32), device=GPU)
    for start in (0, 1, 2, 3):
        x = memory[start : start + 4000]
        close(flambeau.fft.rfft(x), np.fft.rfft(np.asarray(x.cpu())), np.float32)
        out = flambeau.zeros(4098, device=GPU)[start : start + 4000]
        z = flambeau.fft.rfft(x)
        flambeau.fft.irfft(z, 4000, out=out)
        close(out, np.asarray(x.cpu()), np.float32)


def test_out_and_inputs_are_left_alone() -> None:
    z = flambeau.tensor(random((4, 6, 5), np.complex64), device=GPU)
    before = z.clone()
    out = flambeau.empty(5, 6, 4, dtype=flambeau.complex64, device=GPU).permute(2, 1, 0)
    flambeau.fft.fft(z, dim=1, out=out)
    close(out, np.fft.fft(np.asarray(before.cpu()), axis=1), np.float32)
    flambeau.fft.irfftn(z, dim=(0, 1, 2))
    flambeau.fft.irfft(z)
    assert flambeau.equal(z, before)


def test_the_cache_of_plans_is_bounded() -> None:
    cache = flambeau.backends.cuda.cufft_plan_cache[0]
    kept = cache_of(system.contexts()[0])
    cache.clear()
    limit = cache.max_size
    cache.max_size = 4
    try:
        for n in range(100, 120):
            x = random((n,), np.complex64)
            close(flambeau.fft.fft(flambeau.tensor(x, device=GPU)), np.fft.fft(x), np.float32)
        assert cache.size == 4 == kept.size
        assert len(system.accelerator()._contexts.devices[0].libraries["cufft"].open) == 4  # type: ignore[attr-defined]
    finally:
        cache.max_size = limit
    cache.clear()
    assert cache.size == 0


def test_streams_and_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    x = random((64, 4096), np.complex64)
    want = np.fft.fft(x)

    def work(seed: int) -> Any:
        with flambeau.cuda.stream(flambeau.cuda.Stream()):
            g = flambeau.tensor(x, device=GPU)
            for _ in range(20):
                y = flambeau.fft.fft(g)
            return np.asarray(y.cpu())

    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(work, range(16)):
            np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


def test_large_and_batched() -> None:
    for shape, dims in (
        ((4096, 4096), (0, 1)),
        ((64, 16384), (1,)),
        ((16384, 64), (0,)),
        ((40, 512, 128), (1,)),
    ):
        z = random(shape, np.complex64)
        close(
            flambeau.fft.fftn(flambeau.tensor(z, device=GPU), dim=dims), np.fft.fftn(z, axes=dims), np.float32
        )


def test_kaiser_and_spectrograms() -> None:
    for n, periodic in ((12, True), (13, False)):
        got = flambeau.kaiser_window(n, periodic, 8.0, device=GPU)
        np.testing.assert_allclose(
            np.asarray(got.cpu()), np.asarray(flambeau.kaiser_window(n, periodic, 8.0)), rtol=1e-6
        )
    x = flambeau.tensor(random((2, 4000), np.float32))
    window = flambeau.hann_window(256)
    got = flambeau.stft(x.to(GPU), 256, window=window.to(GPU), return_complex=True)
    close(got, np.asarray(flambeau.stft(x, 256, window=window, return_complex=True)), np.float32)
    close(flambeau.istft(got, 256, window=window.to(GPU), length=4000), np.asarray(x), np.float32)


@pytest.mark.parametrize("op", [ops.c2c, ops.r2c, ops.c2r])
def test_samples(op: Any) -> None:
    from flambeau.core.device import CPU
    from flambeau.tensor.call import call

    for kind in op.dtypes:
        for inputs, params in op.samples(operator_properties.maker(kind, 0), kind):
            for layout in (
                operator_properties.plain,
                operator_properties.reversed_dims,
                operator_properties.with_gaps,
            ):
                want, got = (
                    call(op, [operator_properties.tensor_of(inputs[0], layout, place)], params)
                    for place in (CPU, GPU)
                )
                close(got, np.asarray(want), np.float32 if kind.to_real().itemsize == 4 else np.float64)
