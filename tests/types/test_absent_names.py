"""AttributeErrors of misspelled names, and of names that PyTorch has and Flambeau lacks."""

from __future__ import annotations

import importlib
import pickle
import random
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flambeau as torch
from flambeau.core.absent_names import advice_for

OWNERS: list[Any] = [
    torch, torch.nn, torch.nn.functional, torch.nn.utils, torch.optim, torch.cuda, torch.linalg, torch.fft,
    torch.special, torch.autograd, torch.distributed, torch.utils.data, torch.testing, torch.ones(1),
]  # fmt: skip


def name_of(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, ModuleType) else type(owner).__name__


def error_of(owner: Any, name: str) -> AttributeError:
    with pytest.raises(AttributeError) as caught:
        getattr(owner, name)
    assert type(caught.value) is AttributeError
    assert caught.value.name == name
    return caught.value


@pytest.mark.parametrize("owner", OWNERS, ids=name_of)
def test_a_misspelled_name_suggests_the_nearest_one(owner: Any) -> None:
    """One letter more: of names of at least five letters, the nearest is the name or one as near."""
    names = [name for name in dir(owner) if re.fullmatch("[a-zA-Z]{5,}", name)]
    for name in random.Random(0).sample(names, min(10, len(names))):
        wrong = f"{name[:2]}z{name[2:]}"
        text = str(error_of(owner, wrong))
        suggested = re.search(r"has no attribute '\w+'\. Did you mean: '(\w+)'\?$", text)
        assert suggested and hasattr(owner, suggested[1]), text


def test_the_words_are_pythons() -> None:
    assert str(error_of(torch, "zeors")) == "module 'torch' has no attribute 'zeors'. Did you mean: 'zeros'?"
    assert not hasattr(torch, "zeors")


@pytest.mark.parametrize(
    ("owner", "name", "advice"),
    [
        (torch, "export", "torch.fx.symbolic_trace"),
        (torch, "quantize_per_tensor", "no quantized tensors"),
        (torch.Tensor, "dequantize", "no quantized tensors"),
        (torch, "symeig", "torch.linalg.eigh"),
        (torch.utils.data, "datapipes", "IterableDataset"),
    ],
)
def test_names_of_pytorch_say_what_to_use_instead(owner: Any, name: str, advice: str) -> None:
    """Without asking the owner, as Flambeau may have got the name since."""
    assert advice in (advice_for(owner, name) or "")


def test_advice_is_only_for_modules_that_have_the_name() -> None:
    text = str(error_of(torch.version, "export"))
    assert text.endswith("has no attribute 'export': Flambeau lacks it (PyTorch may have it)")
    assert advice_for(torch.cuda, "fork") is None


def test_the_error_can_be_pickled() -> None:
    assert str(pickle.loads(pickle.dumps(error_of(torch, "zeors")))).endswith("Did you mean: 'zeros'?")


def test_each_absent_name_of_the_coverage_page_has_advice() -> None:
    """Check the lines of modules that Flambeau has, and the rows of the table of modules."""
    page = (Path(__file__).parents[2] / "docs" / "contents.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `(torch[\w.]*)` \| yes \| (.*?) \|$|^- `(torch[\w.]*)`: (.*)$", page, re.MULTILINE
    )
    absent = [(a or b, name) for a, names, b, more in rows for name in re.findall(r"`(\w+)`", names or more)]
    assert absent
    silent = [
        f"{module}.{name}"
        for module, name in absent
        if advice_for(importlib.import_module(module.replace("torch", "flambeau", 1)), name) is None
    ]
    assert silent == []
