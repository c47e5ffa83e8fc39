"""LDL factors, compared with PyTorch's: results, strides, statuses, and what wrong arguments raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, to_torch, torch

import flambeau

KINDS = ("float32", "float64", "complex64", "complex128")
DEVICES = ("cpu", "cuda")


def matrices(kind: str, batch: tuple[int, ...], n: int, hermitian: bool, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    a = rng.normal(0, 1, (*batch, n, n)).astype(kind)
    if a.dtype.kind == "c":
        a += 1j * rng.normal(0, 1, a.shape)
    turned = a.swapaxes(-1, -2)
    return torch.from_numpy(a + (turned.conj() if hermitian else turned))


@given(
    kind=st.sampled_from(KINDS),
    batch=st.lists(st.integers(0, 3), max_size=2).map(tuple),
    n=st.integers(0, 9),
    hermitian=st.booleans(),
    device=st.sampled_from(DEVICES),
    seed=st.integers(0, 99),
)
def test_factors_and_solutions(kind, batch, n, hermitian, device, seed):
    a = matrices(kind, batch, n, hermitian, seed)
    b = matrices(kind, batch, max(n, 3), hermitian, seed + 1)[..., :n, :3]
    theirs = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
    solution = torch.linalg.ldl_solve(theirs.LD, theirs.pivots, b, hermitian=hermitian)
    with flambeau.virtual(1):
        ours = flambeau.linalg.ldl_factor_ex(from_torch(a).to(device), hermitian=hermitian)
        found = flambeau.linalg.ldl_solve(ours.LD, ours.pivots, from_torch(b).to(device), hermitian=hermitian)
        results = [to_torch(x.cpu()) for x in (*ours, found)]
    tolerance = 1e-3 if kind in ("float32", "complex64") else 1e-9
    for result, expected in zip(results, (*theirs, solution), strict=True):
        assert result.stride() == expected.stride() or not expected.numel()
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    if n:
        scale = float(results[-1].abs().max()) if results[-1].numel() else 1.0
        torch.testing.assert_close(a @ results[-1], b.clone(), rtol=0, atol=tolerance * (1 + 10 * scale))


def test_blocks_of_more_rows_than_lapack_takes_at_once():
    a = matrices("float64", (), 150, False, 0)
    theirs, ours = torch.linalg.ldl_factor(a), flambeau.linalg.ldl_factor(from_torch(a))
    torch.testing.assert_close(to_torch(ours.pivots), theirs.pivots)
    torch.testing.assert_close(to_torch(ours.LD), theirs.LD)


@pytest.mark.parametrize(
    "call",
    [
        "ldl_factor(m.ones(2, 3))",
        "ldl_factor(m.ones(3))",
        "ldl_factor(m.ones(2, 2).int())",
        "ldl_factor(m.ones(2, 2).half())",
        "ldl_factor(m.ones(2, 2), hermitian=1)",
        "ldl_factor('x')",
        "ldl_factor_ex(m.ones(2, 2), True)",
        "ldl_solve(m.ones(2, 2), m.tensor([1, 2]), m.ones(2, 2).double())",
        "ldl_solve(m.ones(2, 2), m.tensor([1, 2]), m.ones(3, 2))",
        "ldl_solve(m.ones(2, 2), m.tensor([1, 2]), m.ones(2))",
        "ldl_solve(m.ones(2, 2), m.tensor([1, 2, 3]), m.ones(2, 2))",
        "ldl_solve(m.ones(2, 2), m.tensor([1., 2]), m.ones(2, 2))",
        "ldl_solve(m.ones(2, 2), m.tensor([True, True]), m.ones(2, 2))",
        "ldl_solve(m.ones(2, 2), m.tensor([0, 1]), m.ones(2, 2))",
        "ldl_solve(m.ones(2, 2), m.tensor([-3, 1]), m.ones(2, 2))",
        "ldl_solve(m.ones(2, 2).half(), m.tensor([1, 2]), m.ones(2, 2).half())",
        "ldl_solve(m.ones(2, 3), m.tensor([1, 2]), m.ones(2, 2))",
        "ldl_solve(m.ones(2, 2), m.tensor([1, 2]), m.ones(2, 2), hermitian=None)",
        "ldl_solve(m.ones(2, 2).int(), m.tensor([1, 2]), m.ones(2, 2).int())",
        "ldl_factor(m.eye(2).requires_grad_()).LD.sum().backward()",
        "ldl_solve(m.eye(2), m.tensor([1, 2]), m.eye(2).requires_grad_()).sum().backward()",
    ],
)
def test_wrong_calls_raise_as_in_pytorch(call: str) -> None:
    errors = []
    for room in (torch, flambeau):
        with pytest.raises(Exception) as caught:
            eval(f"m.linalg.{call}", {"m": room})
        text = str(caught.value).split("\n")[0].replace("'input'", "'A'")  # PyTorch calls it A in its pages
        errors.append((type(caught.value).__name__, text))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("pivots", [[0, 1], [-3, 1]])
def test_wrong_pivots_leave_a_virtual_gpu_usable(pivots: list[int]) -> None:
    with flambeau.virtual(1):
        eye = flambeau.eye(2, device="cuda")
        with pytest.raises(RuntimeError, match="Pivots given to ldl_solve"):
            flambeau.linalg.ldl_solve(eye, flambeau.tensor(pivots, device="cuda"), eye)
        assert eye.sum().item() == 2


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_zero_of_d_is_reported(value: float) -> None:
    for room in (torch, flambeau):
        a = room.full((2, 3, 3), value)
        info = room.linalg.ldl_factor_ex(a).info.tolist()
        assert info == [1, 1] or (
            value != 0 and min(info) > 0
        )  # versions of LAPACK find NaN in another column
        with pytest.raises(RuntimeError, match="ldl_factor_ex: "):
            room.linalg.ldl_factor_ex(a, check_errors=True)
        with pytest.raises(RuntimeError, match="ldl_factor: "):
            room.linalg.ldl_factor(a)


def test_out_and_meta() -> None:
    for room in (torch, flambeau):
        into = (room.empty(0), room.empty(0, dtype=room.int32))
        found = room.linalg.ldl_factor(room.eye(3), out=into)
        assert type(found).__name__ == "linalg_ldl_factor_out" and found.LD is into[0]
        assert into[1].tolist() == [1, 2, 3]
        target = room.empty(0)
        assert room.linalg.ldl_solve(*found, room.ones(3, 2), out=target) is target
        assert target.tolist() == [[1.0, 1.0]] * 3
        meta = room.linalg.ldl_factor_ex(room.eye(3, device="meta"))
        assert [(tuple(x.shape), x.stride()) for x in meta] == [((3, 3), (1, 3)), ((3,), (1,)), ((), ())]
        assert room.linalg.ldl_factor(room.eye(3).requires_grad_()).LD.requires_grad
