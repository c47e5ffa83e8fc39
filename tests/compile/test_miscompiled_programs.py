"""Programs that other compilers run wrongly, by the number of PyTorch's issue: compiled results are eager results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import flambeau as torch
from flambeau.nn import functional


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with torch.virtual(devices=1, races="error"):
        yield


def numbers(*shape: int, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(3)
    return torch.randn(shape, device="cuda").to(dtype)


def in_place_after_use(x: Any) -> Any:  # 94777
    y = torch.log(x * x)
    x.log_()
    return y


def copy_then_change(x: Any) -> Any:  # 198131, 125999
    target = torch.zeros_like(x)
    target[0:, :] = x[0:, :]
    x.add_(1)
    return target, x


def flipped_sum(x: Any) -> Any:  # 198270
    x.index_put_((torch.arange(x.size(0), device="cuda"),), x * 2.0)
    x.add_(x.flip(0))
    return x


def index_from_sum(x: Any) -> Any:  # 138908
    at = torch.zeros(1, 2, dtype=torch.int64, device="cuda") + 1
    x[at] += x[at]
    return x


def identity_of_dropout(x: Any) -> Any:  # 195422
    y = functional.dropout(x, 0.5, False)
    y += y
    return y


def slices_with_trailing_copy(x: Any) -> Any:  # 94693
    x[:, 2:4].add_(1)
    x[:, 1:3].add_(2)
    return x * 1


def lerp_before_reuse(x: Any) -> Any:  # 183575
    m = x * 0.5
    m.lerp_(x * x, 0.05)
    y = x - m * 0.01
    return m, y, (x.to(torch.bfloat16) * 2).float()


def rounded_intermediate(x: Any) -> Any:  # halves that a compiler keeps in float32
    h = x.to(torch.float16)
    return (h * 60000) / 60000, (h + 2048) - 2048


def one_memory_as_two_arguments(x: Any) -> Any:
    y = x.view(-1)[: x.numel()].view(x.shape)
    a = x * 2
    y.mul_(3)
    return a + y, x


def swapped(x: Any) -> Any:
    a, b = x[0] * 1, x[1] * 1
    x[0], x[1] = b, a
    return x + 1


def nan_and_zero(x: Any) -> Any:
    z = x * 0
    return torch.maximum(z / z, x), (-z).abs(), torch.clamp(z / z, 0, 1), torch.where(x > 0, x, z / z)


PROGRAMS = (
    in_place_after_use, copy_then_change, flipped_sum, index_from_sum, identity_of_dropout, slices_with_trailing_copy,
    lerp_before_reuse, rounded_intermediate, one_memory_as_two_arguments, swapped, nan_and_zero,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program_has_its_eager_results(program: Callable[[Any], Any]) -> None:
    x, y = numbers(4, 8), numbers(4, 8)
    eager, compiled = program(x), torch.compile(program)(y)
    pairs = zip(*[r if isinstance(r, tuple) else (r,) for r in (eager, compiled)], strict=True)
    for a, b in [*pairs, (x, y)]:
        assert torch.equal(a.isnan(), b.isnan())
        assert torch.equal(a.nan_to_num(), b.nan_to_num())
        assert a.dtype is b.dtype


def test_mutation_before_backward_still_raises() -> None:
    def wrong(w: Any) -> Any:
        y = (w * 2).exp()
        (y * 3).sum()
        y.mul_(2)
        return y.sum()

    errors = []
    for function in (wrong, torch.compile(wrong)):
        w = numbers(3).requires_grad_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as error:
            function(w).backward()
        errors.append(str(error.value))
    assert errors[0] == errors[1]


def test_partial_effects_of_an_exception_stay() -> None:
    def stops(x: Any, kept: list[Any]) -> None:
        kept.append(x * 2 + 1)
        x.add_(1)
        kept.append(x * 3)
        raise ValueError("stop")

    found = []
    for function in (stops, torch.compile(stops)):
        x, kept = numbers(5), []
        with pytest.raises(ValueError, match="stop"):
            function(x, kept)
        found.append([t.tolist() for t in (x, *kept)])
    assert found[0] == found[1]
