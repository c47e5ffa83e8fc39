"""Scans and counts against PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import to_torch, torch
from test_reductions import agree, tensors

import flambeau

SCANS = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


@given(
    tensors(("bool", "uint8", "int64", "float16", "float32", "float64", "bfloat16")),
    st.sampled_from(SCANS),
    st.integers(-3, 2),
)
def test_scans(x: Any, name: str, dim: int) -> None:
    narrow = name == "logcumsumexp" and x.dtype in (torch.float16, torch.bfloat16)
    agree(lambda room, t: getattr(room, name)(t, dim), x, ulps=16 if narrow else 4)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("seed", range(5))
def test_gradients_of_products_with_zeros(kind: str, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    shape = [int(torch.randint(2, limit, (), generator=random)) for limit in (6, 70, 4)]
    dtype = getattr(torch, kind)
    x, grad, further = (torch.rand(shape, generator=random).to(dtype) + 0.5 for _ in range(3))
    x = x.where(torch.rand(shape, generator=random) > 0.1, 0).transpose(0, 2)

    def gradients(room: Any, *tensors: Any) -> tuple[Any, ...]:
        x, grad, further = (t.detach().requires_grad_() for t in tensors)
        (first,) = room.autograd.grad(x.cumprod(1), x, grad, create_graph=True)
        return first.detach(), *room.autograd.grad(first, (x, grad), further)

    near = 5e-2 if kind == "float16" else 1e-4
    arguments = (x, grad.transpose(0, 2), further.transpose(0, 2))
    ours = gradients(flambeau, *[flambeau.from_dlpack(t) for t in arguments])
    for got, want in zip(ours, gradients(torch, *arguments), strict=True):
        torch.testing.assert_close(to_torch(got.resolve_conj()), want.resolve_conj(), rtol=near, atol=near)


@given(tensors(("bool", "int64", "float32")), st.integers(0, 3), st.integers(-2, 1))
def test_diff(x: Any, n: int, dim: int) -> None:
    agree(lambda room, t: room.diff(t, n, dim), x, strides=False)


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(0, 12), st.booleans())
def test_bincount(numbers: list[int], least: int, weighted: bool) -> None:
    x, weights = torch.tensor(numbers, dtype=torch.int64), torch.arange(len(numbers), dtype=torch.float32)
    if weighted:
        agree(lambda room, t, w: room.bincount(t, w, least), x, weights)
    else:
        agree(lambda room, t: room.bincount(t, minlength=least), x)


@given(
    tensors(("float32", "float64", "float16", "bfloat16", "int32"), least=1), st.integers(0, 6), st.booleans()
)
def test_histc(x: Any, bins: int, numbers: bool) -> None:
    if numbers and x.is_floating_point():
        x = torch.nan_to_num(x).clamp(-99, 99)  # halves overflow in PyTorch's steps
    agree(lambda room, t: room.histc(t, bins), x)
    agree(lambda room, t: room.histc(t, bins, -1, 1), x)


@pytest.mark.parametrize("ends", [(2, 1), (0, float("nan")), (float("-inf"), 1), (1e10, 1e11), (1, 1)])
def test_ends_of_histc(ends: Any) -> None:
    for kind in (torch.float16, torch.bfloat16, torch.float32):
        for x in (torch.tensor([1.0, 2.0, 3.0], dtype=kind), torch.empty(0, dtype=kind)):
            agree(lambda room, t: room.histc(t, 4, *ends), x)


def test_halves_fall_in_the_bins_of_their_own_arithmetic() -> None:
    for kind in (torch.float16, torch.bfloat16):
        x = torch.linspace(-1, 2, 301).to(kind)
        agree(lambda room, t: room.histc(t, 100), x)
        agree(lambda room, t: room.histc(t, 100, -0.3, 1.7), x)


def test_histc_on_cuda_takes_integers_and_no_halves() -> None:
    with flambeau.virtual(devices=1):
        x = flambeau.tensor([1, 5, 3, 3, -7], dtype=flambeau.int8, device="cuda")
        assert x.histc(4).tolist() == [1, 0, 1, 3]
        assert x.histc(2, 1, 3).tolist() == [1, 2]
        with pytest.raises(RuntimeError, match=r"^HalfTensor is not supported$"):
            x.half().histc()
        with pytest.raises(NotImplementedError, match="\"histc\" not implemented for 'BFloat16'"):
            x.bfloat16().histc()
        with pytest.raises(RuntimeError, match=r"^range of \[-7, inf\] is not finite$"):
            x.float().histc(4, -7, float("inf"))


ANGLES = st.sampled_from((0.0, 1.0, -2.5, 700.0, float("nan")))
SIZES = st.one_of(ANGLES, st.just(float("-inf")))


@given(st.lists(st.builds(complex, SIZES, ANGLES), min_size=1, max_size=9))
def test_complex_log_sums(numbers: list[complex]) -> None:
    """To whole turns of the angle; what comes after an infinity hangs on the order."""
    want = torch.logcumsumexp(torch.tensor(numbers, dtype=torch.complex128), 0)
    found = to_torch(flambeau.logcumsumexp(flambeau.tensor(numbers, dtype=flambeau.complex128), 0))
    torch.testing.assert_close(found.real, want.real, rtol=1e-12, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(found.imag.cos(), want.imag.cos(), rtol=0, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(found.imag.sin(), want.imag.sin(), rtol=0, atol=1e-9, equal_nan=True)


@given(tensors(("int32", "float32", "complex64"), least=1))
def test_trace(x: Any) -> None:
    agree(lambda room, t: room.trace(t), x)
