"""Copies between host and device that convert, against PyTorch's CPU build: every pair of dtypes, all bits but a NaN's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, same, torch
from test_copies import names, values

import flambeau
from flambeau import Tensor


@pytest.fixture(autouse=True)
def _machine() -> Iterator[None]:
    with flambeau.virtual(devices=1):
        yield


def pinned(x: Tensor, pin: bool) -> Tensor:
    return x.pin_memory() if pin else x


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("source", names)
def test_converting_copies_equal_the_cpu(source: str) -> None:
    for target in names:
        x = values(source, target)
        kind, expected = getattr(flambeau, target), x.to(getattr(torch, target))
        for non_blocking in (False, True):
            for pin in (False, True):
                moved = pinned(from_torch(x), pin).to("cuda", kind, non_blocking=non_blocking)
                same(moved.cpu(), expected)
                into = pinned(flambeau.zeros(200, dtype=kind), pin)
                into.copy_(from_torch(x).cuda(), non_blocking=non_blocking)
                flambeau.cuda.synchronize()
                same(into, expected)
            back = from_torch(x).cuda().to("cpu", kind, non_blocking=non_blocking)
            flambeau.cuda.synchronize()
            same(back, expected)


@given(st.data())
def test_copies_between_views_of_host_and_device(data: Any) -> None:
    """Targets and sources of any strides, sources broadcast, of the same dtype and of another."""
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3))
    kinds = [data.draw(st.sampled_from(["float32", "int32", "bfloat16"])) for _ in range(2)]
    order = data.draw(st.permutations(range(len(shape))))
    step = data.draw(st.integers(1, 2))
    inwards, non_blocking, pin = (data.draw(st.booleans()) for _ in range(3))
    source_shape = [1 if data.draw(st.booleans()) else n for n in shape]
    target = torch.full([n * step for n in shape], 7, dtype=getattr(torch, kinds[0]))
    source = torch.arange(1, 1 + int(torch.tensor(source_shape).prod())).view(source_shape)
    source = source.to(getattr(torch, kinds[1]))
    ours, theirs = from_torch(target), from_torch(source)
    ours, theirs = (ours.cuda(), pinned(theirs, pin)) if inwards else (pinned(ours, pin), theirs.cuda())

    def view(t: Any) -> Any:
        return t.permute(order)[tuple(slice(None, None, step) for _ in shape)]

    view(target).copy_(source.expand(shape).permute(order))
    view(ours).copy_(theirs.expand(shape).permute(order), non_blocking=non_blocking)
    flambeau.cuda.synchronize()
    same(ours.cpu(), target)
