"""The parameters of functions that PyTorch writes in Python, compared with PyTorch's signatures."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

MODULES = (
    "", ".accelerator", ".amp", ".autograd", ".autograd.functional", ".compiler", ".cuda", ".cuda.comm", ".cuda.memory",
    ".distributed", ".distributions", ".fft", ".func", ".futures", ".hub", ".jit", ".library", ".linalg",
    ".multiprocessing", ".nn", ".nn.functional", ".nn.init", ".nn.parallel", ".nn.utils", ".nn.utils.parametrize",
    ".nn.utils.rnn", ".optim", ".optim.lr_scheduler", ".overrides", ".profiler", ".random", ".serialization", ".sparse",
    ".special", ".storage", ".testing", ".utils.checkpoint", ".utils.data",
)  # fmt: skip
UNLIKE = {
    ".Size": "the parameter of a class is positional",
    ".cuda.CUDAPluggableAllocator": "an object in Python needs no names of functions",
    ".cuda.memory.CUDAPluggableAllocator": "the same",
    ".serialization.StorageType": "the class has other uses",
}
"""Functions and classes with other parameters, and why."""


def parameters(function: Callable[..., Any]) -> tuple[list[tuple[str, str]], set[tuple[str, str]]] | None:
    """Return names and defaults: in order, and of keywords. Return None if the signature does not state them."""
    try:
        found = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError):
        return None
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in found):
        return None
    placed, named = [], set()
    for each in found:
        if each.kind is each.KEYWORD_ONLY and each.name[0] != "_":
            named.add((each.name, default_text(each.default)))
        elif each.kind is not each.KEYWORD_ONLY and each.name != "self":
            placed.append(
                (each.name if each.kind is each.POSITIONAL_OR_KEYWORD else "", default_text(each.default))
            )
    return placed, named


def default_text(default: Any) -> str:
    """Return a text that is equal for the defaults of both packages; "" for an object of one of them."""
    if isinstance(default, tuple):
        return repr(tuple(default))
    plain = default is inspect.Parameter.empty or type(default) in (bool, int, float, str, type(None))
    return repr(default) if plain else ""


def agree(theirs: Callable[..., Any], ours: Callable[..., Any]) -> bool:
    """Return True if calls of one fit the other. What PyTorch takes by position only may have any name."""
    expected, found = parameters(theirs), parameters(ours)
    if expected is None or found is None or "NoReturn" in str(inspect.signature(ours).return_annotation):
        return True
    placed = [
        (name if wanted else "", default if compared else "")
        for (wanted, compared), (name, default) in zip(expected[0], found[0], strict=False)
    ]
    return placed == expected[0] and expected[1] <= found[1]


@pytest.mark.parametrize("module", MODULES)
def test_functions_written_in_python_have_pytorchs_parameters(module: str) -> None:
    theirs, ours = (importlib.import_module(package + module) for package in ("torch", "flambeau"))
    differing = {}
    for name in getattr(theirs, "__all__", dir(theirs)):
        pair = getattr(theirs, name, None), getattr(ours, name, None)
        if (
            name[0] != "_"
            and f"{module}.{name}" not in UNLIKE
            and all(map(callable, pair))
            and not agree(*pair)
        ):
            differing[name] = [str(inspect.signature(each)) for each in pair]
    assert differing == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda room: room.result_type(scalar1=1, scalar2=2.0),
        lambda room: room.tril_indices(2, 3, requires_grad=False),
        lambda room: room.triu_indices(2, 3, requires_grad=False),
        lambda room: room.norm(room.ones(4), 2, None, False, None, room.float64),
        lambda room: room.ones(4).norm(2, None, False, room.float64),
    ],
)
def test_keywords_and_places_of_built_in_functions(call: Callable[[Any], Any]) -> None:
    theirs, ours = (call(importlib.import_module(name)) for name in ("torch", "flambeau"))
    assert str(getattr(ours, "dtype", ours)) == str(getattr(theirs, "dtype", theirs))
    assert getattr(ours, "tolist", int)() == getattr(theirs, "tolist", int)()
