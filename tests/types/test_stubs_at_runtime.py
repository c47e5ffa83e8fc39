"""mypy's `stubtest`: what the stubs name is there at runtime with these parameters, and the reverse."""

from __future__ import annotations

import sys
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import flambeau

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import stubs

pytest.importorskip("mypy")

from mypy import stubtest
from mypy.nodes import OverloadedFuncDef
from mypy.options import Options

DIFFERENT = {
    "flambeau.addmv_", "flambeau.cholesky_solve", "flambeau.linalg.norm", "flambeau.range",
    "flambeau.special.log_softmax",
}  # fmt: skip
"""Functions that show the names and defaults that PyTorch documents. Their stubs have those that its parser takes, which
test_stubs.py compares with PyTorch's own stubs."""


def test_stubs_are_what_is_there_at_runtime(tmp_path: Path) -> None:
    modules = [
        ".".join(path.relative_to(stubs.PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(stubs.PACKAGE.rglob("*.pyi"))
        if path.with_suffix(".py").exists()
    ]
    options = Options()
    options.cache_dir = str(tmp_path)
    options.ignore_errors = options.ignore_missing_imports = True
    options.mypy_path = [str(stubs.PACKAGE.parent)]
    stubtest.build_stubs(modules, options, find_submodules=False)
    errors = [error for module in modules for error in stubtest.test_module(module) if not is_expected(error)]
    wrong = {error.object_desc: error.get_description(concise=True) for error in errors}
    assert wrong.keys() == DIFFERENT, wrong


def is_expected(error: Any) -> bool:
    """Return True for an overload, for a class that no class statement made, and for what no program names."""
    *owners, name = error.object_desc.split(".")[1:]
    owner = reduce(getattr, owners, flambeau)
    made = any(isinstance(each, type) and type(each) is not type for each in (owner, error.runtime_object))
    return (
        made
        or name in ("__all__", "__dir__", "_DatasetKind")
        or isinstance(error.stub_object, OverloadedFuncDef)
    )
