"""Deterministic programs that read memory before they write it: torch.utils.deterministic, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch as oracle

import flambeau as torch

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "complex64", "complex128", "int8", "uint8", "int16", "int32", "int64",
    "uint16", "uint32", "uint64", "bool",
)  # fmt: skip


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    modules = (torch, oracle)
    for module in modules:
        module.use_deterministic_algorithms(True)
    with torch.virtual(devices=1, poison=True):
        yield
    for module in modules:
        module.use_deterministic_algorithms(False)
        module.utils.deterministic.fill_uninitialized_memory = True


def _values(t: Any) -> Any:
    if "bfloat16" in str(t.dtype):
        t = t.float()
    return np.asarray(t.cpu().contiguous().numpy()).tolist()


MADE: dict[str, Callable[[Any, Any], Any]] = {
    "empty": lambda m, d: m.empty(2, 3, device=d),
    "empty of a dtype": lambda m, d: m.empty((4,), dtype=m.int16, device=d),
    "empty_like": lambda m, d: m.empty_like(m.ones(2, 3, device=d).t()),
    "empty_strided": lambda m, d: m.as_strided(m.empty_strided((2, 2), (1, 2), device=d), (4,), (1,)),
    "empty_permuted": lambda m, d: m.empty_permuted((2, 3), (1, 0), device=d),
    "new_empty": lambda m, d: m.ones(2, dtype=m.int8, device=d).new_empty(3),
    "new_empty_strided": lambda m, d: m.ones(2, device=d).new_empty_strided((2,), (1,)),
    "requires_grad": lambda m, d: m.empty(3, requires_grad=True, device=d).detach(),
    "out": lambda m, d: m.empty(3, out=m.ones(3, device=d)),
    "resize_": lambda m, d: m.arange(3.0, device=d).resize_(5),
    "resize_ of a view": lambda m, d: m.arange(6.0, device=d)[2:4].resize_(6),
    "resize_ to fewer": lambda m, d: m.arange(6.0, device=d).resize_(2, 2),
    "resize_ of nothing": lambda m, d: m.empty(0, dtype=m.uint8, device=d).resize_(2, 2),
    "resize_as_": lambda m, d: m.ones(2, device=d).resize_as_(m.ones(4)),
    "out= of an operator": lambda m, d: m.add(m.ones(2, device=d), 1, out=m.empty(0, device=d)),
}


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("name", MADE)
def test_new_memory_holds_what_pytorch_s_holds(name: str, where: str) -> None:
    ours, theirs = MADE[name](torch, where), MADE[name](oracle, "cpu")
    np.testing.assert_array_equal(_values(ours), _values(theirs))
    assert ours._version == 0 or name.startswith(("resize", "out"))


@pytest.mark.parametrize("name", DTYPES)
def test_of_each_dtype(name: str) -> None:
    wanted = _values(oracle.empty(3, dtype=getattr(oracle, name)))
    for where in ("cpu", "cuda"):
        np.testing.assert_array_equal(
            _values(torch.empty(3, dtype=getattr(torch, name), device=where)), wanted
        )


def test_constructors_of_old() -> None:
    for made in (torch.Tensor(2), torch.FloatTensor(2), torch.ones(1).new(2), torch.cuda.FloatTensor(2)):
        assert made.isnan().all()
    assert torch.LongTensor(2).tolist() == oracle.LongTensor(2).tolist()
    assert torch.empty(4, pin_memory=True).isnan().all()


def test_only_while_it_is_asked_for() -> None:
    torch.full((7,), 5.0)
    assert torch.empty(7).isnan().all()
    torch.utils.deterministic.fill_uninitialized_memory = False
    assert not torch.utils.deterministic.fill_uninitialized_memory
    x = torch.full((7,), 5.0)
    del x
    assert not torch.empty(7).isnan().any()
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.empty(7).isnan().all()
    torch.use_deterministic_algorithms(False)
    x = torch.full((7,), 5.0)
    del x
    assert not torch.empty(7).isnan().any()
    torch.set_deterministic_debug_mode("warn")
    assert torch.empty(7).isnan().all() and torch.is_deterministic_algorithms_warn_only_enabled()


def test_what_it_takes() -> None:
    for module in (torch, oracle):
        for wrong in (1, "a", None):
            with pytest.raises(RuntimeError, match="expected a bool, but got"):
                module.utils.deterministic.fill_uninitialized_memory = wrong
        assert module.utils.deterministic.fill_uninitialized_memory is True


def test_values_that_are_written_stay() -> None:
    x = torch.arange(4.0, device="cuda", requires_grad=True)
    (x * x).sum().backward()
    assert x.grad.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert torch.zeros(3).tolist() == [0.0] * 3 and torch.full((2,), 3).tolist() == [3, 3]
    assert torch.cat([torch.ones(2), torch.empty(1)])[:2].tolist() == [1.0, 1.0]
