"""The stubs of type checkers: they are what the generator writes, and have the parameters of PyTorch's stubs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import stubs

THEIRS = Path(torch.__file__).parent / "_C"

Overload = tuple[tuple[str, ...], frozenset[str]]
"""The names of the parameters by position, those by keyword only."""


def overloads_of(path: Path, of_class: str = "") -> dict[str, list[ast.FunctionDef]]:
    body: Any = ast.parse(path.read_text()).body
    if of_class:
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == of_class)
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


def parameters_of(node: ast.FunctionDef) -> Overload:
    arguments = node.args
    placed = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg:
        placed.append(f"*{arguments.vararg.arg}")
    return tuple(placed), frozenset(each.arg for each in arguments.kwonlyargs)


def is_comparable(node: ast.FunctionDef) -> bool:
    """Return False for overloads of named dimensions, which Flambeau lacks, and of orders that PyTorch deprecates."""
    names = [each.arg for each in node.args.args]
    factor = next((at for at, name in enumerate(names) if name in ("alpha", "beta", "value")), len(names))
    deprecated = OPERANDS.intersection(names[factor:])
    return (
        not deprecated and "EllipsisType" not in ast.unparse(node) and "names" not in ast.unparse(node.args)
    )


OPERANDS = {"self", "other", "tensor1", "batch1", "mat1", "mat", "vec1"}
DOCUMENTED = "the documentation's name; calls take the parser's, too"
OUT = "an `out` of methods, which only the stub of PyTorch has"
BY_KEYWORD = "PyTorch's parser refuses by position what its stub has by position"
DIFFERENT = {
    **dict.fromkeys(("cholesky_inverse", "hsmm", "lu_solve", "orgqr", "ormqr", "result_type", "triangular_solve"), DOCUMENTED),
    "set_num_threads": "PyTorch's runtime calls it `int`",
    "set_num_interop_threads": "PyTorch's runtime calls it `int`",
    **dict.fromkeys(("dequantize", "Tensor.to_mkldnn"), "can be named and raise when used"),
    "Tensor.add": OUT, "Tensor.floor_divide": OUT, "Tensor.mul": OUT, "Tensor.sub": OUT, "Tensor.true_divide": OUT,
    "Tensor.subtract_": "deprecated order",
    "Tensor.contiguous": BY_KEYWORD, "Tensor.cpu": BY_KEYWORD, "Tensor.is_contiguous": BY_KEYWORD,
    "Tensor.new_ones": BY_KEYWORD, "Tensor.new_tensor": BY_KEYWORD,
    "Tensor.cuda": BY_KEYWORD,
    "Tensor.hash_tensor": "PyTorch's parser refuses the several dimensions of its stub",
    "Tensor._make_subclass": "Flambeau lacks dispatch",
    "Tensor._make_wrapper_subclass": "Flambeau lacks policies of dispatch",
    "dequantize": "of one tensor", "Tensor.to_mkldnn": "raises",
    "Tensor.__new__": "a class method", "Tensor.new": "a class method",
    **dict.fromkeys(("Tensor.map_", "Tensor.ormqr", "Tensor.orgqr", "Tensor.record_stream", "Tensor.requires_grad_"), DOCUMENTED),
    **dict.fromkeys(("Tensor.__pow__", "Tensor.__rpow__"), "names of operators' operands do not matter"),
}  # fmt: skip
"""Functions with other parameters than PyTorch's stubs have, and why."""


NAMESPACE = overloads_of(stubs.PACKAGE / "__init__.pyi"), overloads_of(THEIRS / "_VariableFunctions.pyi")
METHODS = (
    overloads_of(stubs.PACKAGE / "tensor" / "tensor_methods.pyi", "TensorMethods"),
    overloads_of(THEIRS / "__init__.pyi", "TensorBase"),
)


def test_the_stubs_are_what_the_generator_writes() -> None:
    """In a process of its own, as tests import modules that make further names."""
    program = [sys.executable, str(stubs.ROOT / "tools" / "stubs.py"), "--check"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"run python tools/stubs.py: {done.stdout}{done.stderr}"


def takes(own: Overload, their: Overload, only_names: bool) -> bool:
    """Return True if a call of their overload is one of ours: of the further parameters none is required."""
    placed, named = their
    return (own[0][: len(placed)] == placed or not only_names) and named <= {*own[1], *own[0][len(placed) :]}


@pytest.mark.parametrize(
    ("owner", "ours", "theirs"), [("", *NAMESPACE), ("Tensor.", *METHODS)], ids=["torch", "Tensor"]
)
def test_pytorchs_overloads_have_the_same_parameters(owner: str, ours: Any, theirs: Any) -> None:
    differing = {}
    for name in ours.keys() & theirs.keys():
        own = [parameters_of(node) for node in ours[name]]
        for node in filter(is_comparable, theirs[name]):
            placed, named = parameters_of(node)
            if not owner:
                placed = tuple("input" if each == "self" else each for each in placed)
            if not any(takes(mine, (placed, named), not node.args.posonlyargs) for mine in own):
                differing[f"{owner}{name}"] = ast.unparse(node.args), own
    assert differing.keys() == {name for name in DIFFERENT if name.startswith("Tensor.") == bool(owner)}, (
        differing
    )
