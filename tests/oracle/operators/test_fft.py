"""torch.fft against PyTorch; half precision, plan caches and bits on virtual GPUs."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, to_torch, torch

import flambeau
from flambeau.ops.linalg import fft as ops
from flambeau.testing.operator_properties import cases, check_virtual

ONE = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
TWO = ("fft2", "ifft2", "rfft2", "irfft2", "hfft2", "ihfft2")
MANY = ("fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn")
KINDS = ("bool", "int32", "float16", "float32", "float64", "complex64", "complex128")
NORMS = (None, "backward", "forward", "ortho", "other")


@st.composite
def signals(draw: Any) -> Any:
    """A PyTorch tensor: 0-dim, transposed, stepped, expanded, of sizes 1 to 6."""
    kind = getattr(torch, draw(st.sampled_from(KINDS)))
    shape = draw(st.lists(st.integers(1, 6), max_size=3))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    x = torch.from_numpy(np.asarray(rng.uniform(-3, 3, shape)))
    if kind.is_complex:
        x = x + 1j * torch.from_numpy(np.asarray(rng.uniform(-3, 3, shape)))
    x = x.to(kind)
    form = draw(st.sampled_from(("plain", "transposed", "stepped", "expanded")))
    if form == "transposed" and x.ndim > 1:
        x = x.transpose(0, -1)
    if form == "stepped" and x.ndim:
        x = torch.stack([x, x], -1)[..., 0]
    if form == "expanded" and x.ndim:
        x = x.unsqueeze(0).expand(2, *x.shape)
    return x


def ours_of(x: Any) -> Any:
    return from_torch(x) if isinstance(x, torch.Tensor) else x


def agree(run: Any, *args: Any, narrow: bool = False) -> None:
    """The same dtype, shape and values (to rounding), or the same error and text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = run(torch, *args)
        except Exception as error:  # the oracle's refusal is the expectation
            if "MKL" in str(error) or "Found dtype" in str(error):  # its libraries', not the interface's
                return
            with pytest.raises(type(error)) as caught:
                run(flambeau, *[ours_of(x) for x in args])
            if not isinstance(error, TypeError):
                assert str(caught.value).splitlines()[0] == str(error).splitlines()[0]
            return
        ours = run(flambeau, *[ours_of(x) for x in args])
    close(ours, theirs, narrow)


def close(ours: Any, theirs: Any, narrow: bool) -> None:
    assert repr(ours.dtype) == repr(theirs.dtype)
    assert tuple(ours.shape) == tuple(theirs.shape)
    if not theirs.numel():
        return
    narrow = narrow or theirs.dtype in (torch.float32, torch.complex64)
    a, b = (t.to(torch.complex128) for t in (to_torch(ours), theirs))
    scale, error = 1 + b.abs().max().item(), (a - b).abs().max().item()
    assert error <= (3e-6 if narrow else 1e-14) * scale


sizes = st.none() | st.integers(-1, 8)
dims = st.integers(-4, 3)


@given(signals(), st.sampled_from(ONE), sizes, dims, st.sampled_from(NORMS))
def test_along_a_dimension(x: Any, name: str, n: Any, dim: int, norm: Any) -> None:
    agree(lambda room, t: getattr(room.fft, name)(t, n, dim, norm), x)


@given(
    signals(), st.sampled_from(TWO + MANY), st.none() | st.lists(st.integers(-1, 7), max_size=4),
    st.none() | st.lists(dims, max_size=3), st.sampled_from(NORMS),
)  # fmt: skip
def test_over_dimensions(x: Any, name: str, s: Any, dim: Any, norm: Any) -> None:
    given_dim = {} if dim is None else {"dim": dim}
    agree(lambda room, t: getattr(room.fft, name)(t, s, norm=norm, **given_dim), x)


@given(signals(), st.sampled_from(MANY), st.lists(st.integers(0, 2), max_size=3, unique=True), st.data())
def test_over_dimensions_that_there_are(x: Any, name: str, dim: list[int], data: Any) -> None:
    dim = [d for d in dim if d < x.ndim]
    s = data.draw(st.none() | st.lists(st.integers(1, 7) | st.just(-1), min_size=len(dim), max_size=len(dim)))
    agree(lambda room, t: getattr(room.fft, name)(t, s, dim), x)


@given(
    signals(),
    st.sampled_from(ONE + TWO + MANY),
    st.sampled_from(("float32", "float64", "complex64", "complex128")),
)
def test_out(x: Any, name: str, kind: str) -> None:
    def run(room: Any, t: Any) -> Any:
        out = room.empty(0, dtype=getattr(room, kind))
        result = getattr(room.fft, name)(t, out=out)
        assert result is out
        return result

    agree(run, x, narrow=True)


@pytest.mark.parametrize("name", ["fftfreq", "rfftfreq"])
@pytest.mark.parametrize("n", [-1, 0, 1, 4, 5, 9, 2.5])
@pytest.mark.parametrize("d", [1.0, 0.25, -3, 0])
def test_frequencies(name: str, n: Any, d: Any) -> None:
    for kind in ("float32", "float64", "int32"):
        agree(
            lambda room, kind=kind: torch_nan(room, getattr(room.fft, name)(n, d, dtype=getattr(room, kind)))
        )
    if n >= 0:
        agree(
            lambda room: torch_nan(room, getattr(room.fft, name)(n, d, out=room.empty(0, dtype=room.float64)))
        )


def torch_nan(room: Any, t: Any) -> Any:
    return room.nan_to_num(t, 7.0, 8.0, 9.0)


@given(signals(), st.sampled_from(("fftshift", "ifftshift")), st.none() | dims | st.lists(dims, max_size=3))
def test_shifts(x: Any, name: str, dim: Any) -> None:
    agree(lambda room, t: getattr(room.fft, name)(t, dim), x)


BAD = [
    ("fft", ([1, 2],), {}), ("fft", ("x", 2.5), {}), ("fft", ("x", 2, "a"), {}), ("fft", ("x",), {"norm": 3}),
    ("rfftn", ("x",), {"s": (2, 2), "dim": (1,)}), ("fft2", ("x",), {"s": 3}), ("irfft", ("x",), {"n": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "given"), BAD)
def test_arguments_that_do_not_fit(name: str, args: Any, given: Any) -> None:
    x = torch.ones(3, 4)
    agree(lambda room, t: getattr(room.fft, name)(*[t if a == "x" else a for a in args], **given), x)


# -- virtual GPUs ---------------------------------------------------------------------------------------------


@pytest.fixture
def gpus() -> Any:
    with flambeau.virtual(devices=2, profile="a100-40g"):
        yield


@pytest.mark.parametrize("name", [ops.c2c.name, ops.r2c.name, ops.c2r.name])
def test_a_virtual_device_computes_the_same_bits(name: str, gpus: Any) -> None:
    where = flambeau.device("cuda:0")
    assert sum(check_virtual(op, kind, where) for op, kind in cases() if op.name == name) >= 8


def test_half_precision_on_a_gpu(gpus: Any) -> None:
    """PyTorch's rule: sizes that are powers of two; computed in float32 and rounded once."""
    x = torch.linspace(-2, 3, 32).reshape(2, 16).half()
    theirs = torch.fft.fft(x.float())
    ours = flambeau.fft.fft(from_torch(x).cuda())
    assert ours.dtype is flambeau.complex32
    assert (to_torch(ours).to(torch.complex64) - theirs).abs().max() <= 2e-3 * theirs.abs().max()
    back = flambeau.fft.ifft(ours)
    assert (to_torch(back.real).float() - x.float()).abs().max() < 1e-2
    assert flambeau.fft.irfft(flambeau.fft.rfft(from_torch(x).cuda())).dtype is flambeau.float16
    with pytest.raises(RuntimeError, match="powers of two when computing in half precision"):
        flambeau.fft.fft(from_torch(x).cuda(), 12)


def caches() -> Any:
    return flambeau.backends.cuda.cufft_plan_cache


def test_transforms_on_a_gpu_fill_its_plan_cache(gpus: Any) -> None:
    """SPEC I01, I04: one plan for each geometry and configuration; a second run takes the plan that is there."""
    assert caches().size == 0
    x = flambeau.ones(4, 6, device="cuda")
    for count, run in enumerate(
        (
            lambda: flambeau.fft.rfft(x), lambda: flambeau.fft.rfft(x, dim=0), lambda: flambeau.fft.rfft(x.t()),
            lambda: flambeau.fft.fftn(x), lambda: flambeau.fft.ifftn(x), lambda: flambeau.fft.irfft(x, 9),
        ),
        1,
    ):  # fmt: skip
        run()
        run()
        assert caches().size == count
    assert caches()[1].size == 0
    flambeau.fft.fft(flambeau.ones(4, device="cuda:1"))
    assert (caches()[1].size, caches().size) == (1, count)


def test_transforms_on_the_cpu_leave_the_plan_caches_alone(gpus: Any) -> None:
    flambeau.fft.fft(flambeau.ones(8))
    assert caches().size == 0


def test_the_least_recently_used_plan_gives_way(gpus: Any, monkeypatch: Any) -> None:
    """SPEC I02, I03: the capacity holds at once; what gave way is loaded anew."""
    loaded = counted(monkeypatch)
    caches().max_size = 2
    a, b, c = (flambeau.ones(n, device="cuda", dtype=flambeau.complex64) for n in (4, 5, 6))
    for x in (a, b, a, c, a):  # b gives way to c
        flambeau.fft.fft(x)
    assert (len(loaded), caches().size) == (3, 2)
    flambeau.fft.fft(b)
    assert (len(loaded), caches().size) == (4, 2)
    caches().max_size = 0
    assert caches().size == 0
    assert flambeau.fft.fft(a).cpu().tolist() == [4, 0, 0, 0]
    assert (len(loaded), caches().size) == (5, 0)


def test_clear_drops_and_unloads(gpus: Any, monkeypatch: Any) -> None:
    """SPEC I05."""
    loaded = counted(monkeypatch)
    dropped = counted(monkeypatch, "unload")
    x = flambeau.ones(4, device="cuda", dtype=flambeau.complex64)
    flambeau.fft.fft(x)
    caches().clear()
    assert (caches().size, len(loaded), len(dropped)) == (0, 1, 1)
    flambeau.fft.fft(x)
    assert (caches().size, len(loaded), len(dropped)) == (1, 2, 1)


def counted(monkeypatch: Any, name: str = "load") -> list[Any]:
    """The FFT launches that the driver loads, or unloads."""
    driver = flambeau.runtime.system.context_of(flambeau.device("cuda:0")).driver
    seen: list[Any] = []
    plain = getattr(driver, name)

    def count(what: Any, *more: Any) -> Any:
        kernel = getattr(what, "launch", what).kernel
        if kernel.name.startswith("_fft"):
            seen.append(what)
        return plain(what, *more)

    monkeypatch.setattr(driver, name, count)
    return seen


# -- windows and frames ---------------------------------------------------------------------------------------

WINDOWS = ("hann_window", "hamming_window", "blackman_window", "bartlett_window", "kaiser_window")


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("n", [-1, 0, 1, 2, 5, 16, 2.5])
def test_windows(name: str, n: Any) -> None:
    agree(lambda room: getattr(room, name)(n))
    agree(lambda room: getattr(room, name)(n, False, dtype=room.float64))
    agree(lambda room: getattr(room, name)(n, periodic=True, dtype=room.float64))
    if name == "hamming_window":
        agree(lambda room: room.hamming_window(n, True, 0.5, 0.4, dtype=room.float64))
    if name == "kaiser_window":
        agree(lambda room: room.kaiser_window(n, False, 3.5, dtype=room.float64))
    with pytest.raises(RuntimeError, match=f"{name} expects floating point dtypes"):
        getattr(flambeau, name)(4, dtype=flambeau.int64)


def signal(seed: int, shape: Any, is_complex: bool = False) -> Any:
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.uniform(-1, 1, shape))
    return x + 1j * torch.from_numpy(rng.uniform(-1, 1, shape)) if is_complex else x


@given(
    st.sampled_from(((40,), (2, 31))), st.sampled_from((8, 9)), st.sampled_from((None, 3, 8)),
    st.sampled_from((None, 6)), st.booleans(), st.booleans(),
    st.sampled_from(("reflect", "constant", "replicate", "circular", "other")),
    st.booleans(), st.sampled_from((None, True, False)), st.booleans(), st.sampled_from((None, True, False)),
)  # fmt: skip
def test_stft(
    shape: Any, n: int, hop: Any, length: Any, windowed: bool, center: bool, mode: str, normalized: bool, onesided: Any,
    is_complex: bool, return_complex: Any,
) -> None:  # fmt: skip
    x = signal(n, shape, is_complex)
    window = [torch.hann_window(length or n, dtype=torch.float64)] if windowed else []

    def run(room: Any, t: Any, *windows: Any) -> Any:
        return room.stft(
            t, n, hop, length, *(windows or [None]), center=center, pad_mode=mode, normalized=normalized,
            onesided=onesided, return_complex=return_complex,
        )  # fmt: skip

    agree(run, x, *window)


@given(
    st.sampled_from(((40,), (2, 31))), st.sampled_from((8, 9)), st.sampled_from((2, 3)), st.booleans(), st.booleans(),
    st.booleans(), st.booleans(), st.sampled_from((None, 20, 60)), st.booleans(),
)  # fmt: skip
def test_istft(
    shape: Any, n: int, hop: int, windowed: bool, center: bool, normalized: bool, onesided: bool, length: Any,
    is_complex: bool,
) -> None:  # fmt: skip
    window = torch.hamming_window(n, dtype=torch.float64) if windowed else torch.ones(n, dtype=torch.float64)
    how = {"center": center, "normalized": normalized, "onesided": onesided and not is_complex}
    x = torch.stft(signal(n, shape, is_complex), n, hop, window=window, return_complex=True, **how)
    agree(
        lambda room, t, w: room.istft(t, n, hop, None, w, length=length, return_complex=is_complex, **how),
        x,
        window,
    )


ABOUT = torch.ones(5, 21, dtype=torch.complex64)
FRAMES = [
    lambda room, x: room.stft(x.real, 8), lambda room, x: room.stft(x.real, 80, return_complex=True),
    lambda room, x: room.stft(x.real[0], 80, center=False, return_complex=True),
    lambda room, x: room.stft(x.real, 8, 0, return_complex=True),
    lambda room, x: room.stft(x.real, 8, None, 9, return_complex=True),
    lambda room, x: room.stft(x.real, 8, window=x[0].real, return_complex=True),
    lambda room, x: room.stft(x, 8, onesided=True), lambda room, x: room.stft(x, 8, align_to_window=True),
    lambda room, x: room.istft(x.real, 8), lambda room, x: room.istft(x, 10), lambda room, x: room.istft(x, 8, 9),
    lambda room, x: room.istft(x, 8, return_complex=True), lambda room, x: room.istft(x[:, :0], 8),
    lambda room, x: room.istft(x, 8, win_length=9), lambda room, x: room.istft(x, 8, window=x[0].real),
    lambda room, x: room.istft(x, 8, window=room.hann_window(8), center=False),
    lambda room, x: room.istft(x[None, None], 8),
    lambda room, x: room.istft(x, 8, onesided=False),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FRAMES)))
def test_frames_that_do_not_fit(number: int) -> None:
    agree(FRAMES[number], ABOUT)


def test_frames_on_a_gpu(gpus: Any) -> None:
    x, window = from_torch(signal(0, (2, 40))), flambeau.hann_window(8, dtype=flambeau.float64)
    here = flambeau.stft(x, 8, window=window, return_complex=True)
    there = flambeau.stft(x.cuda(), 8, window=window.cuda(), return_complex=True)
    assert bool((here == there.cpu()).all())
    back = flambeau.istft(
        there, 8, window=flambeau.hann_window(8, dtype=flambeau.float64, device="cuda"), length=40
    )
    assert float((back.cpu() - x).abs().max().item()) < 1e-12
