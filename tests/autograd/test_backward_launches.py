"""How many kernels the backward walk of small networks launches on a GPU: none more than these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from launches import launches

import flambeau as torch
from flambeau import nn
from flambeau.nn import functional as F


def mlp() -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def cnn() -> Any:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(8, 3),
    )  # fmt: skip


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.all, self.last = nn.LayerNorm(6), nn.Linear(6, 18), nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        q, k, v = self.all(self.norm(x)).split(6, dim=-1)
        return self.last(F.scaled_dot_product_attention(q, k, v, is_causal=True)).flatten(0, 1)


@pytest.mark.parametrize(
    "make, shape, rows, most",
    ((mlp, (4, 6), 4, 13), (cnn, (4, 1, 8, 8), 4, 15), (Attends, (2, 5, 6), 10, 12)),
    ids=("mlp", "cnn", "attention"),
)
def test_launches(make: Callable[[], Any], shape: Any, rows: int, most: int) -> None:
    with torch.virtual(devices=1):
        net, x = make().to("cuda"), torch.randn(shape, device="cuda")
        target = torch.zeros(rows, dtype=torch.int64, device="cuda")
        loss = F.cross_entropy(net(x), target)
        with launches() as names:
            loss.backward()
        assert names, "nothing was counted"
        assert "copy" not in names, "a gradient was copied"
        assert len(names) <= most, names


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: F.conv2d(a.view(1, 2, 6, 6), b[:36].view(2, 2, 3, 3)),
        lambda a, b: a.view(6, 12) @ b.view(12, 6),
    ],
    ids=["conv2d", "matmul"],
)
def test_gradients_of_no_use_are_not_computed(function: Any) -> None:
    """Of a node's inputs, those that do not lead to what `autograd.grad` was asked for: PyTorch prunes them, too."""
    for i in range(2):
        inputs = [torch.rand(72, requires_grad=True) for _ in range(2)]
        out = function(*inputs)
        grad = torch.ones_like(out)
        both = torch.autograd.grad(out, inputs, grad, retain_graph=True)
        with launches() as all_names:
            torch.autograd.grad(out, inputs, grad, retain_graph=True)
        with launches() as names:
            (one,) = torch.autograd.grad(out, inputs[i : i + 1], grad, retain_graph=True)
        assert one.tolist() == both[i].tolist()
        assert len(names) < len(all_names)


@pytest.mark.parametrize("function", (torch.mul, torch.logaddexp, F.smooth_l1_loss))
def test_one_kernel_computes_the_gradients_of_a_pointwise_operator(function: Any) -> None:
    """It writes no gradient that is not asked for."""
    with torch.virtual(devices=1):
        inputs = [torch.rand(1 << 10, device="cuda", requires_grad=True) for _ in range(2)]
        out = function(*inputs)
        grad = torch.ones_like(out)
        for asked in (inputs, inputs[:1], inputs[1:]):
            torch.autograd.grad(out, asked, grad, retain_graph=True)
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            with launches() as names:
                found = torch.autograd.grad(out, asked, grad, retain_graph=True)
            assert [name for name in names if name != "div"] == [f"{function.__name__}_backward"]
            scalars = 512 * names.count("div")  # the mean's share of the gradient
            assert torch.cuda.max_memory_allocated() - before == 4096 * len(found) + scalars
            del found
