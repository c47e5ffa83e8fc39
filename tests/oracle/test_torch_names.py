"""The list of PyTorch's documented names, from which docs/operators.md says what is missing, is PyTorch's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import torch

NAMES = Path(__file__).parents[1] / "goldens" / "torch_names.txt"


def documented() -> list[str]:
    """Public callables with documentation, classes aside: functions of `torch`, methods of `Tensor`."""
    rooms = (("torch", torch, torch.__all__), ("Tensor", torch.Tensor, dir(torch.Tensor)))
    found = set()
    for room, owner, names in rooms:
        for name in names:
            value = getattr(owner, name)
            public = not name.startswith("_") and callable(value) and not isinstance(value, type)
            if public and (value.__doc__ or "").strip():
                found.add(f"{room}.{name}")
    return sorted(found)


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the list is PyTorch 2.13's")
def test_the_list_of_documented_names_is_pytorchs():
    assert NAMES.read_text().split() == documented(), f"write {NAMES.name} anew, then docs/operators.md"


def test_well_known_names_are_on_the_list():
    names = set(NAMES.read_text().split())
    assert {
        "torch.add",
        "torch.matmul",
        "Tensor.add_",
        "Tensor.backward",
        "torch.save",
        "torch.conv2d",
    } <= names
