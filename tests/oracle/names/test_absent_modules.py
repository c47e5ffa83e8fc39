"""Modules that can be imported and not used: PyTorch has all of them, with the same kinds of names."""

from __future__ import annotations

import importlib
import inspect
import os
import random
import subprocess
import sys
import warnings

import pytest

import flambeau
from flambeau.core.absent_modules import read_blocks, read_names
from flambeau.core.errors import NotSupportedError
from tools.pages.contents_page import has_file

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
DRAWN = sorted(read_blocks()) if EXHAUSTIVE else random.Random(23).sample(sorted(read_blocks()), 25)


def import_ours(module: str):
    return importlib.import_module(f"flambeau{module.removeprefix('torch')}")


def test_every_listed_name_is_importable():
    for module in read_blocks():
        ours = import_ours(module)
        for name in read_names(module):
            assert hasattr(ours, name), (module, name)


@pytest.mark.parametrize("module", DRAWN)
def test_listed_names_are_pytorchs_and_raise(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = importlib.import_module(module)
    ours = import_ours(module)
    for name, (kind, value) in read_names(module).items():
        there, here = getattr(theirs, name), getattr(ours, name)
        if kind == "=":
            assert repr(there) == value and here == there, name
            continue
        assert inspect.isclass(here) == inspect.isclass(there), name
        if kind == "error":
            assert issubclass(here, Exception)
        if kind != "from":
            with pytest.raises(NotSupportedError, match=f"{name} can be imported but not used"):
                here()


PROGRAM = """
import torch, torch.distributed.fsdp._common_utils, torch.onnx.symbolic_helper, torch.nn.quantized as nnq
from torch.distributed.tensor._api import DTensor
from torch.distributed.fsdp._flat_param import FlatParameter
from torch.quantization.observer import *
from torch.ao.quantization.observer import MinMaxObserver as Same
assert DTensor is torch.distributed.tensor.DTensor and MinMaxObserver is Same
assert not isinstance(torch.ones(1), (DTensor, FlatParameter))
assert torch.distributed.fsdp._common_utils.FSDP_PREFIX == "_fsdp_wrapped_module."
class Sub(nnq.Linear, torch.nn.Module): pass
assert not hasattr(torch.distributed, "no_such_name")
try:
    import torch.distributed.no_such_module
except ModuleNotFoundError as error:
    assert "torch.distributed.no_such_module" in str(error)
print("done")
"""


def test_programs_import_absent_modules_as_torch(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "flambeau", "run", "--quiet", str(tmp_path / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr


def test_generic_and_abstract_classes_derive_from_absent_ones():
    from abc import ABC, abstractmethod

    base = flambeau.distributed.checkpoint.planner.LoadPlanner
    planner = importlib.import_module("flambeau.distributed.pipelining.schedules").PipelineScheduleSingle

    class Derived(base[int], planner, ABC):
        @abstractmethod
        def run(self): ...

    with pytest.raises(NotSupportedError):
        Derived()
    assert hasattr(importlib.import_module("torch.distributed.checkpoint"), "LoadPlanner")


def test_no_name_is_listed_that_the_module_has():
    for module in read_blocks():
        present = set(getattr(import_ours(module), "__all__", ())) if has_file(module) else set()
        assert not present & read_names(module).keys(), module
