"""Parameters that `inspect.signature` shows, against the signatures in PyTorch's docstrings."""

from __future__ import annotations

import inspect
import re
from types import FunctionType
from typing import Any

from support import torch

import flambeau
from flambeau.tensor.arguments import public

PARSER = "PyTorch's parser refuses the documented name, and takes the shown one"
EXCEPTIONS = {
    **dict.fromkeys(
        ("broadcast_to", "dequantize", "matrix_exp", "searchsorted", "smm", "true_divide", "unsafe_split"),
        PARSER,
    ),
    "concatenate": "`axis` is NumPy's name of `dim`; calls take both",
    "histogramdd": "PyTorch's parser has no `out`",
}
"""Functions that show other parameters, and why."""


def documented(function: Any, name: str) -> list[list[str]]:
    """Return the names of the parameters in each signature line of a docstring."""
    found = []
    for line in re.findall(
        rf"(?m)^\s*(?:torch\.)?{re.escape(name)}\((.*?)\)\s*(?:->.*)?$", function.__doc__ or ""
    ):
        parts = re.split(r",(?![^(\[]*[)\]])", re.sub(r"\[[^\]]*\]", "", line))
        names = [part.split(":")[0].split("=")[0].strip(" *") for part in parts]
        found.append([each for each in names if each.isidentifier()])
    return found


def test_documented_parameters_of_functions_are_shown() -> None:
    """In one of the lines that PyTorch documents, every parameter is one of ours."""
    missing = {}
    for name, define in public.functions.items():
        theirs = documented(getattr(torch, name, None), name)
        if isinstance(define, FunctionType) and theirs:
            shown = inspect.signature(getattr(flambeau, name)).parameters
            if not any(set(line) <= shown.keys() for line in theirs):
                missing[name] = theirs[0]
    assert missing.keys() == EXCEPTIONS.keys(), missing
