"""Random sparse tensors through all operators that take them, beside PyTorch. See sparse_hunt.py."""

from __future__ import annotations

import warnings

import pytest
from sparse_hunt import KNOWN, hunt, table

import flambeau


@pytest.mark.parametrize("device", ("cpu", "cuda"))
@pytest.mark.parametrize("seed", (11, 12))
def test_random_calls_agree_with_pytorch(seed: int, device: str) -> None:
    with flambeau.virtual(devices=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not hunt(seed, 3 * len(table()) if device == "cpu" else len(table()), device)


def test_known_differences_name_operators() -> None:
    assert {name.split()[-1] for name in KNOWN} <= set(table())
