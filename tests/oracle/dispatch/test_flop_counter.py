"""`FlopCounterMode`: operations by module and operator equal PyTorch's, forward and backward."""

from __future__ import annotations

from typing import Any

import pytest
from support import torch

import flambeau
import flambeau.utils.flop_counter

if torch is not None:
    import torch.utils.flop_counter

pytestmark = pytest.mark.skipif(torch is None, reason="needs PyTorch")


def _mlp(t: Any) -> Any:
    return t.nn.Sequential(t.nn.Linear(8, 16), t.nn.ReLU(), t.nn.Linear(16, 4)), t.randn(5, 8)


def _cnn(t: Any) -> Any:
    net = t.nn.Sequential(
        t.nn.Conv2d(3, 8, 3, padding=1), t.nn.BatchNorm2d(8), t.nn.ReLU(), t.nn.MaxPool2d(2),
        t.nn.Conv2d(8, 8, 3, stride=2, groups=2), t.nn.ConvTranspose2d(8, 4, 2), t.nn.AdaptiveAvgPool2d(1),
        t.nn.Flatten(), t.nn.Linear(4, 2),
    )  # fmt: skip
    return net, t.randn(2, 3, 16, 16)


def _transformer(t: Any) -> Any:
    layer = t.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    return t.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), t.randn(2, 6, 16)


def _rnn(t: Any) -> Any:
    class Last(t.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cell = t.nn.RNNCell(4, 8)

        def forward(self, x: Any) -> Any:
            return self.cell(x)

    return Last(), t.randn(3, 4)


def _batched_products(t: Any) -> Any:
    class Products(t.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            scores = t.baddbmm(t.zeros(2, 5, 5), x, x.transpose(1, 2))
            return t.einsum("bij,bjk->bik", scores.softmax(-1), x) @ x.transpose(1, 2)

    return Products(), t.randn(2, 5, 3, requires_grad=True)


def _count(library: Any, make: Any) -> Any:
    library.manual_seed(0)
    module, x = make(library)
    counter = library.utils.flop_counter.FlopCounterMode(display=False)
    with counter:
        module(x).sum().backward()
    counts = {
        name: {str(operator): count for operator, count in each.items()}
        for name, each in counter.get_flop_counts().items()
    }
    return counter.get_total_flops(), counts


@pytest.mark.parametrize("make", [_mlp, _cnn, _transformer, _rnn, _batched_products])
def test_counts_equal(make: Any) -> None:
    ours, theirs = _count(flambeau, make), _count(torch, make)
    assert ours[0] == theirs[0] > 0
    assert ours[1] == theirs[1]


def test_attention_on_gpu_is_counted() -> None:
    """PyTorch does not count its kernel for the CPU; on a GPU it counts scores and sums."""
    with flambeau.virtual(devices=1):
        q = flambeau.randn(2, 3, 4, 8, device="cuda", requires_grad=True)
        with flambeau.utils.flop_counter.FlopCounterMode(display=False) as counter:
            flambeau.nn.functional.scaled_dot_product_attention(q, q, q).sum().backward()
        forward, backward = counter.get_flop_counts()["Global"].values()
    assert forward == 2 * (2 * 3) * 4 * 4 * 8 * 2
    assert backward == 2 * (2 * 3) * 4 * 4 * 8 * 5


def test_own_formulas() -> None:
    def add(a: Any, b: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return int(flambeau.Size(out_shape).numel())

    aten = flambeau.ops.aten
    counter = flambeau.utils.flop_counter.FlopCounterMode(display=False, custom_mapping={aten.add: add})
    with counter:
        flambeau.ones(3, 4) + 1
    assert counter.get_total_flops() == 12
    assert [line.split() for line in counter.get_table().splitlines()] == [
        ["Module", "FLOP", "%", "Total"],
        ["-" * 11, "-" * 6, "-" * 7],
        ["Global", "12.000", "100.00%"],
        ["-", "aten.add", "12.000", "100.00%"],
    ]
