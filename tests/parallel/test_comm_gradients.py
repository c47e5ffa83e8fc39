"""The copies of `torch.cuda.comm` on the tape: their gradients are each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpus import either, gpus

import flambeau as torch
from flambeau.nn.parallel._functions import Broadcast, Gather, ReduceAddCoalesced, Scatter

pytestmark = either


@pytest.fixture(autouse=True)
def gpus_3() -> Iterator[None]:
    with gpus(devices=3):
        yield


def test_broadcast_adds_gradients_up() -> None:
    x, y = (torch.full((2,), v, device="cuda:1", requires_grad=True) for v in (3.0, 4.0))
    frozen = torch.ones(2, device="cuda:1")
    copies = Broadcast.apply([0, 1, 2], x, frozen, y)
    assert [c.get_device() for c in copies] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [c.requires_grad for c in copies] == [True, False, True] * 3
    total = sum(((i + 1) * copies[3 * i] * copies[3 * i + 2]).sum().cpu() for i in range(3))
    total.backward()
    assert x.grad.tolist() == [24, 24] and y.grad.tolist() == [18, 18]
    assert x.grad.device == x.device
    with pytest.raises(AssertionError, match="not implemented for CPU tensors"):
        Broadcast.apply([0], torch.ones(1))


def test_reduce_add_coalesced_hands_gradients_out() -> None:
    given = [torch.ones(2, device=f"cuda:{i}", requires_grad=True) for i in (0, 0, 1, 1)]
    sums = ReduceAddCoalesced.apply(0, 2, *given)
    (sums[0].sum() + 5 * sums[1].sum()).backward()
    assert [t.grad.tolist() for t in given] == [[1, 1], [5, 5]] * 2
    assert [t.grad.device for t in given] == [t.device for t in given]


@pytest.mark.parametrize("where", ["cpu", "cuda:0", "cuda:2"])
def test_scatter_and_gather_undo_each_other(where: str) -> None:
    x = torch.arange(12.0).reshape(3, 4).to(where).requires_grad_()
    parts = Scatter.apply([0, 1, 2], [1, 2, 1], 1, x)
    assert [p.shape for p in parts] == [(3, 1), (3, 2), (3, 1)]
    whole = Gather.apply("cpu" if where == "cpu" else int(where[-1]), 1, *parts)
    assert whole.device == x.device and whole.tolist() == x.tolist()
    (whole * x.detach()).sum().backward()
    assert x.grad.tolist() == x.tolist() and x.grad.device == x.device


def test_gather_of_scalars_warns_and_gives_a_vector() -> None:
    losses = [torch.tensor(float(i), device=f"cuda:{i}", requires_grad=True) for i in range(2)]
    with pytest.warns(UserWarning, match="all input tensors were scalars; will instead unsqueeze"):
        whole = Gather.apply(0, 0, *losses)
    assert whole.tolist() == [0, 1]
    (whole * torch.tensor([3.0, 7.0], device="cuda:0")).sum().backward()
    assert [loss.grad.item() for loss in losses] == [3, 7]
    with pytest.raises(AssertionError, match="not implemented for CPU tensors"):
        Gather.apply(0, 0, torch.ones(1))


def test_second_derivatives_go_through() -> None:
    x = torch.tensor([1.0, 2.0, 3.0], device="cuda:0", requires_grad=True)
    parts = Scatter.apply([0, 1], [1, 2], 0, x)
    whole = Gather.apply(0, 0, *[p**3 for p in parts])
    (first,) = torch.autograd.grad(whole.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert first.tolist() == [3, 12, 27] and second.tolist() == [6, 12, 18]
