"""Warnings say the program's line, however deep in the package they arise."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import flambeau
from flambeau import nn
from flambeau.nn import functional
from flambeau.utils.checkpoint import checkpoint

TWO = flambeau.ones(2, 2)

PROGRAMS: list[Callable[[], Any]] = [
    lambda: flambeau.ones(2, dtype=flambeau.complex64).float(),
    lambda: TWO.clone().copy_(flambeau.ones(2, dtype=flambeau.complex64)),
    lambda: functional.mse_loss(flambeau.ones(2), TWO),
    lambda: nn.MSELoss()(flambeau.ones(2), TWO),
    lambda: nn.HuberLoss()(flambeau.ones(2), TWO),
    lambda: nn.KLDivLoss()(TWO, TWO),
    lambda: nn.MSELoss(size_average=False),
    lambda: nn.Linear(0, 2),
    lambda: nn.Softmax()(TWO),
    lambda: nn.Dropout2d()(TWO),
    lambda: nn.MultiheadAttention(2, 1)(
        TWO, TWO, TWO, key_padding_mask=flambeau.zeros(2, dtype=flambeau.bool), attn_mask=TWO
    ),
    lambda: checkpoint(flambeau.tanh, TWO, use_reentrant=True),
    lambda: flambeau.add(TWO, 1, out=flambeau.ones(3)),
    lambda: flambeau.range(0, 2),
    lambda: TWO.clone().scatter_(0, flambeau.zeros(1, 1, dtype=flambeau.int64), TWO, reduce="add"),
    lambda: TWO[flambeau.ones(2, dtype=flambeau.uint8)],
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_warning_is_of_the_programs_line(program: Callable[[], Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program()
    assert caught
    assert {told.filename for told in caught} == {__file__}
