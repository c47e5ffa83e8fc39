"""Groups that were issued before: what is remembered of them never serves a group that differs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import EXHAUSTIVE

import flambeau as torch
from flambeau.tensor.fusion import pending_calls

DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
NUMBERS = [2, 0.5, True, -3]


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    with torch.virtual(races="error"):
        yield


def chain(a: Any, b: Any, number: Any, kept: tuple[bool, ...]) -> list[Any]:
    """Return those of four results that are kept; the others are dead when the group is issued."""
    first = a * number
    second = first + b
    third = second.abs() if second.dtype is not torch.bool else second * first
    results = [first, second, third, third * a]
    return [r for r, keep in zip(results, kept, strict=True) if keep]


def operands(dtype: Any, shape: tuple[int, ...], layout: str, alias: str) -> tuple[Any, Any]:
    """Return two tensors, which may be one, share memory, or be laid out otherwise."""
    numel = 2 * shape[0] * shape[1]
    whole = (torch.arange(numel, device="cuda") % 7 - 3).to(dtype)
    if layout == "transposed":
        a = whole[: numel // 2].view(shape[::-1]).t()
    elif layout == "strided":
        a = whole[::2].view(shape)
    else:
        a = whole[: numel // 2].view(shape)
    if alias == "same":
        return a, a
    if alias == "overlapping":
        return a, whole[numel // 2 :].view(shape)
    return a, (torch.arange(numel // 2, device="cuda") % 5).view(shape).to(dtype)


ROUND = st.tuples(
    st.sampled_from(DTYPES),
    st.sampled_from([(3, 4), (4, 3), (64, 32)]),
    st.sampled_from(["dense", "transposed", "strided"]),
    st.sampled_from(["none", "same", "overlapping"]),
    st.sampled_from(NUMBERS),
    st.tuples(*[st.booleans()] * 4),
)


@given(rounds=st.lists(ROUND, min_size=2, max_size=6), dropped=st.booleans())
@settings(max_examples=300 if EXHAUSTIVE else 40, deadline=None)
def test_remembered_groups_equal_eager_code(rounds: list[Any], dropped: bool) -> None:
    compiled = torch.compile(chain)
    for dtype, shape, layout, alias, number, kept in [*rounds, *rounds]:
        a, b = operands(dtype, shape, layout, alias)
        want = chain(a, b, number, kept)
        if dropped:
            del a, b
            got = compiled(*operands(dtype, shape, layout, alias), number, kept)
        else:
            got = compiled(a, b, number, kept)
        for x, y in zip(got, want, strict=True):
            assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
            assert torch.equal(x, y)


def test_group_is_analyzed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(chain)
    a, b = operands(torch.float32, (5, 6), "dense", "none")
    everything = (True, True, True, True)
    compiled(a, b, 2, everything)

    def analyze(*args: Any) -> None:
        raise AssertionError("the group is analyzed again")

    monkeypatch.setattr(pending_calls, "NeededCalls", analyze)
    for x, y in zip(compiled(b, a, 3, everything), chain(b, a, 3, everything), strict=True):
        assert torch.equal(x, y)
    with pytest.raises(AssertionError, match="analyzed again"):
        compiled(a, a, 2, everything)


def test_result_of_a_failed_group_is_refused_as_an_operand(monkeypatch: pytest.MonkeyPatch) -> None:
    left = []

    def fail(x: Any) -> None:
        left.append(x * 2)
        left.append(left[0] + 1)

    def no_memory(*args: Any) -> None:
        raise torch.OutOfMemoryError("none is left")

    x = torch.ones(7, 3, device="cuda")
    with monkeypatch.context() as patch:
        patch.setattr(pending_calls.PendingGroup, "_issue", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            torch.compile(fail)(x)
    with pytest.raises(RuntimeError, match="never allocated, because the launch that computes it failed"):
        torch.compile(lambda: x + left[1])()
