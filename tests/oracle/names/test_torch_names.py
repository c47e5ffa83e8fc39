"""The list of PyTorch's documented names, from which docs/operators.md says what is missing, is PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import torch

NAMES = Path(__file__).parents[2] / "goldens" / "torch_names.txt"


def documented() -> list[str]:
    """Public callables with documentation, classes aside: functions of torch and its rooms, methods of Tensor."""
    rooms = {
        "torch": (torch, torch.__all__), "Tensor": (torch.Tensor, dir(torch.Tensor)),
        "linalg": (torch.linalg, dir(torch.linalg)), "fft": (torch.fft, torch.fft.__all__),
        "special": (torch.special, torch.special.__all__),
        "nn.functional": (torch.nn.functional, dir(torch.nn.functional)),
    }  # fmt: skip
    return sorted(
        f"{room}.{name}"
        for room, (owner, names) in rooms.items()
        for name in names
        if _is_public(owner, name)
    )


_HELPERS = (
    "typing",
    "torch._jit_internal",
    "torch.overrides",
    "torch._C",
)  # whence torch.nn.functional imports


def _is_public(owner: Any, name: str) -> bool:
    value = getattr(owner, name)
    if name.startswith("_") or not callable(value) or isinstance(value, type):
        return False
    if owner is torch.nn.functional and value.__module__ in _HELPERS:
        return False
    return bool((value.__doc__ or "").strip())


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
        "nn.functional.conv2d",
        "linalg.svd",
        "fft.rfft",
        "special.erf",
    } <= names
