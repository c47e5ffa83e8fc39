"""The signatures that arguments are compared with, against the stubs of PyTorch's parser."""

from __future__ import annotations

import ast
import inspect
import os
from typing import Any

import pytest
from support import torch

import flambeau
from flambeau.tensor.signatures import listed, renamed, signatures_of

STUBS = os.path.join(os.path.dirname(torch.__file__), "_C")
KINDS = {
    "_int": "int", "_int | SymInt": "int", "_float": "float", "_bool": "bool", "_dtype": "dtype",
    "Number | _complex": "Number", "_size": "IntTuple", "Sequence[_int | SymInt]": "IntTuple",
    "_int | _size": "IntOrTuple", "_size | _int": "IntOrTuple", "_int | SymInt | Sequence[_int | SymInt]": "IntOrTuple",
    "tuple[Tensor, ...] | list[Tensor]": "TensorList", "tuple[Tensor, ...] | list[Tensor] | None": "TensorList",
    "torch.memory_format": "memory_format", "Tensor": "Tensor", "Generator": "Generator", "str": "str",
    "Number": "Number", "memory_format": "memory_format",
}  # fmt: skip
MADE = {
    "dtype", "layout", "device", "pin_memory", "requires_grad", "memory_format", "names", "out", "generator", "self",
}  # fmt: skip
# PyTorch's stubs show what the parser does not take, or leave out what it takes.
UNLIKE_STUBS = {"nonzero", "normal", "record_stream", "requires_grad_"}
# Written in Python, by functions of the parser.
WRITTEN = {"split"}


def stubs(file: str, of_class: str = "") -> dict[str, list[ast.FunctionDef]]:
    """The overloads of each function of a stub file."""
    with open(os.path.join(STUBS, file)) as stub:
        body: Any = ast.parse(stub.read()).body
    if of_class:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == of_class).body
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


def theirs(node: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """(name, type, may be left out) of each parameter, without those of all functions that make tensors."""
    positional = [*node.args.posonlyargs, *node.args.args]
    late = len(positional) - len(node.args.defaults)
    shown = [(each, at >= late) for at, each in enumerate(positional)]
    shown += [
        (each, default is not None)
        for each, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    ]
    return [
        (each.arg.rstrip("_"), ast.unparse(each.annotation) if each.annotation else "", optional)
        for each, optional in shown
        if each.arg not in MADE
    ]


def ours(line: str) -> list[tuple[str, list[str], bool]]:
    parts = [part.partition(": ") for part in line.split(", ") if part not in ("", "*")]
    return [
        (name, kind.removesuffix("=").split(" | "), kind.endswith("="))
        for name, _, kind in parts
        if name not in MADE
    ]


FUNCTIONS = stubs("_VariableFunctions.pyi")
METHODS = stubs("__init__.pyi", "TensorBase")


def fits(line: list[tuple[str, list[str], bool]], stub: list[tuple[str, str, bool]]) -> bool:
    """Return True if a listed signature takes what an overload takes: types of it may be joined with another's."""
    if [name for name, _, _ in line] != [name for name, _, _ in stub]:
        return False
    for (_, kinds, optional), (_, annotation, leaves_out) in zip(line, stub, strict=True):
        kind = KINDS.get(annotation.removesuffix(" | None"), "")
        if optional != leaves_out or (
            kind and kind not in kinds and not (kind == "int" and "IntOrTuple" in kinds)
        ):
            return False
    return True


def of_parser(name: str) -> list[list[tuple[str, str, bool]]]:
    method = name.startswith("Tensor.")
    overloads = (METHODS if method else FUNCTIONS).get(name.removeprefix("Tensor."), [])
    spread = "size", "dim", "dims", "shape", "repeats", "indices"
    return [
        theirs(node)
        for node in overloads
        if not (node.args.vararg and node.args.vararg.arg in spread)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [name for name in listed if name not in WRITTEN and not name.startswith(("F.", "linalg_", "special_"))],
)
def test_each_listed_signature_is_one_of_the_parser(name: str) -> None:
    overloads = of_parser(name)
    assert overloads, f"PyTorch's parser has no {name}"
    if name in UNLIKE_STUBS:
        return
    for line in listed[name]:
        assert any(fits(ours(line), stub) for stub in overloads), f"{name}({line}) is none of {overloads}"


@pytest.mark.parametrize("method", [False, True])
def test_functions_without_a_line_have_the_parsers_parameters(method: bool) -> None:
    """Names of parameters beside the first; further ones, `*args` and `**given`, are left to the function."""
    differing = {}
    owner = flambeau.Tensor if method else flambeau
    for name, overloads in (METHODS if method else FUNCTIONS).items():
        define = getattr(owner, name, None)
        if (
            name.startswith("_")
            or not inspect.isfunction(define)
            or signatures_of(name, method)
            or len(overloads) > 1
        ):
            continue
        parameters = [*inspect.signature(define).parameters.values()][1:]
        own = [
            p.name
            for p in parameters
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in MADE
        ]
        if any(p.kind is p.VAR_POSITIONAL for p in parameters):
            continue
        expected = [name for name, _, _ in theirs(overloads[0])][0 if method else 1 :]
        if own != expected and name not in renamed.keys() | UNLIKE_STUBS:
            differing[name] = (own, expected)
    assert differing == {}
