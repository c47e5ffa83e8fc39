"""What a Fourier transform asks of cuFFT, run by a NumPy stand-in for the library and for the kernels: no GPU needed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import flambeau
from flambeau.core.dtype import from_numpy
from flambeau.core.host_arrays import array_at
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch
from flambeau.ops.linalg import fft

pytestmark = pytest.mark.skipif(not find_spec("cuda"), reason="cuda-bindings is not installed")
GPU = flambeau.device("cuda", 0)


def at(ptr: int, meta: Meta) -> Any:
    return array_at(ptr, meta.shape, meta.dtype.numpy, meta.byte_strides)


class Library:
    """cuFFT's plans as its documentation describes them."""

    def __init__(self) -> None:
        self.plans = 0

    def plan(self, _: Any, sizes: Any, source: Any, target: Any, batch: int) -> Any:
        library = self
        self.plans += 1
        assert 1 <= len(sizes) <= 3 and batch >= 1 and source.distance >= 1 and target.distance >= 1

        def window(ptr: int, side: Any, points: Any) -> Any:
            assert len(side.embed) == len(points) and all(
                a >= b for a, b in zip(side.embed, points, strict=True)
            )
            steps = [side.stride]
            for size in reversed(side.embed[1:]):
                steps.insert(0, steps[0] * size)
            strides = [n * side.kind.itemsize for n in (side.distance, *steps)]
            return array_at(ptr, (batch, *points), side.kind.numpy, strides)

        class Plan:
            def launch(self, read: int, write: int, direction: int, device: Any, native: Any) -> None:
                axes = tuple(range(1, len(sizes) + 1))
                half = (*sizes[:-1], sizes[-1] // 2 + 1)
                real = not source.kind.is_complex, not target.kind.is_complex
                x = window(read, source, half if real[1] else sizes)
                out = window(write, target, half if real[0] else sizes)
                if real[0]:
                    found = np.fft.rfftn(x, axes=axes)
                elif real[1]:
                    found = np.fft.irfftn(x, sizes, axes=axes, norm="forward")
                elif direction == -1:
                    found = np.fft.fftn(x, axes=axes)
                else:
                    found = np.fft.ifftn(x, axes=axes, norm="forward")
                out[...] = found
                if real[1]:
                    x[...] = np.nan  # the library destroys it

            def close(self) -> None:
                library.plans -= 1

        return Plan()


class Driver:
    """Runs the steps' kernels, on the host's memory."""

    def load(self, launch: Launch, index: int) -> Launch:
        return launch

    def launch(self, launch: Launch, ptrs: Any, scalars: Any, stream: int) -> None:
        out, x = (at(ptr, meta) for ptr, meta in zip(ptrs, launch.operands, strict=True))
        if launch.kernel.name == "scaled":
            out[...] = x * launch.params[0]
            return
        half, mirrored, middle, scale = launch.params
        x = np.array(x)
        for column in {0, middle} - {-1}:
            part = np.moveaxis(x, half, 0)
            turned = np.array(part[column])
            dims = [d for d in range(x.ndim) if d != half]
            for axis, d in enumerate(dims):
                if mirrored[d]:
                    turned = np.roll(np.flip(turned, axis), 1, axis)
            part[column] = (part[column] + turned.conj()) / 2
        out[...] = x * scale


class Device:
    def __init__(self) -> None:
        self.index = 0
        self.libraries = {"cufft": None}
        self.held: dict[int, Any] = {}

    def take(self, nbytes: int, native: Any) -> int:
        memory = np.full(nbytes, 0xFF, np.uint8)
        self.held[memory.ctypes.data] = memory
        return int(memory.ctypes.data)

    def give(self, ptr: int, native: Any) -> None:
        del self.held[ptr]


def meta_of(x: Any) -> Meta:
    return Meta.of(x.shape, tuple([step // x.itemsize for step in x.strides]), from_numpy(x.dtype), GPU)


def run(monkeypatch: Any, op: Any, x: Any, params: Any, out: Any = None) -> Any:
    """The operator on a real GPU's path; `out` gives a layout of the output."""
    from flambeau.driver.cuda.kernel_builder import find_function
    from flambeau.driver.cuda.linalg import fft as transforms

    library, device = Library(), Device()
    monkeypatch.setattr(transforms, "FftPlan", library.plan)
    signature = op.rule([meta_of(x)], params)
    out = np.empty(signature.outputs[0].shape, signature.outputs[0].dtype.numpy) if out is None else out
    launch = Launch(op.kernel, (meta_of(out),), (meta_of(x),), params)
    routine = find_function(op.kernel.cuda.library)(launch, device, Driver())
    before = np.array(x)
    routine((out.ctypes.data, x.ctypes.data), (), 0, 0)
    assert np.array_equal(x, before), "the input was changed"
    assert not device.held
    routine.close()
    assert library.plans == 0
    return out


def layouts(x: Any) -> list[Any]:
    padded = np.zeros([2 * n for n in x.shape], x.dtype)[tuple([slice(None, None, 2)] * x.ndim)]
    padded[...] = x
    return [
        x,
        np.array(x.T).T,
        padded,
        np.array(np.moveaxis(x, 0, -1), order="C").transpose(-1, *range(x.ndim - 1)),
    ]


SHAPES = [((6,), [(0,)]), ((4, 6), [(0,), (1,), (0, 1), (1, 0)]), ((3, 1, 4), [(1,), (0, 1), (2, 1)]),
          ((3, 4, 5), [(1,), (0, 2), (2, 0, 1)]), ((20, 4, 2), [(1,), (0,)]),
          ((2, 3, 2, 3, 4), [(0, 1, 2, 3, 4), (1, 2, 3, 4), (0, 1, 3, 4), (4, 3, 2, 0)])]  # fmt: skip
CASES = [(shape, dims) for shape, all_dims in SHAPES for dims in all_dims]


def random(shape: Any, kind: Any, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape)
    return (x + 1j * generator.standard_normal(shape) if np.dtype(kind).kind == "c" else x).astype(kind)


@pytest.mark.parametrize(("shape", "dims"), CASES)
def test_complex(monkeypatch: Any, shape: Any, dims: Any) -> None:
    for x in layouts(random(shape, np.complex128)):
        for forward, scale, norm in (
            (True, fft.NONE, None),
            (True, fft.ROOT, "ortho"),
            (False, fft.WHOLE, None),
        ):
            want = (np.fft.fftn if forward else np.fft.ifftn)(x, axes=dims, norm=norm)
            np.testing.assert_allclose(run(monkeypatch, fft.c2c, x, (dims, scale, forward)), want, atol=1e-12)
    for out in layouts(np.empty(shape, np.complex128)):
        run(monkeypatch, fft.c2c, x, (dims, fft.NONE, True), out)
        np.testing.assert_allclose(out, np.fft.fftn(x, axes=dims), atol=1e-12)


@pytest.mark.parametrize(("shape", "dims"), CASES)
def test_from_real(monkeypatch: Any, shape: Any, dims: Any) -> None:
    for x in layouts(random(shape, np.float64)):
        for scale, norm in ((fft.NONE, None), (fft.ROOT, "ortho"), (fft.WHOLE, "forward")):
            want = np.fft.rfftn(x, axes=dims, norm=norm)
            np.testing.assert_allclose(run(monkeypatch, fft.r2c, x, (dims, scale)), want, atol=1e-12)
    for out in layouts(np.empty_like(want)):
        run(monkeypatch, fft.r2c, x, (dims, fft.WHOLE), out)
        np.testing.assert_allclose(out, want, atol=1e-12)


@pytest.mark.parametrize(("shape", "dims"), CASES)
@pytest.mark.parametrize("odd", (0, 1))
def test_to_real(monkeypatch: Any, shape: Any, dims: Any, odd: int) -> None:
    """Of half a spectrum that no real numbers have: the library reads it as a transform of one dim after another."""
    points = 2 * shape[dims[-1]] - 2 + odd
    if points < 1:
        return
    for x in layouts(random(shape, np.complex128)):
        part = np.fft.ifftn(x, axes=dims[:-1]) if dims[:-1] else x
        want = np.fft.irfft(part, points, axis=dims[-1])
        np.testing.assert_allclose(run(monkeypatch, fft.c2r, x, (dims, fft.WHOLE, points)), want, atol=1e-12)
    for out in layouts(np.empty_like(want)):
        run(monkeypatch, fft.c2r, x, (dims, fft.WHOLE, points), out)
        np.testing.assert_allclose(out, want, atol=1e-12)


def test_real_numbers_that_no_complex_could_take_the_place_of_are_staged(monkeypatch: Any) -> None:
    memory = np.zeros(9)
    base = memory.ctypes.data % 16 // 8
    for start in (base, base + 1) if base == 0 else (0, 1):
        x = memory[start : start + 8]
        x[...] = random((8,), np.float64)
        np.testing.assert_allclose(run(monkeypatch, fft.r2c, x, ((0,), fft.NONE)), np.fft.rfft(x), atol=1e-12)
        spectrum = np.fft.rfft(random((8,), np.float64))
        run(monkeypatch, fft.c2r, spectrum, ((0,), fft.WHOLE, 8), x)
        np.testing.assert_allclose(x, np.fft.irfft(spectrum), atol=1e-12)
