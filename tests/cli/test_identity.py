"""A module of `torch` is one module with one set of classes, however it is imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# What each class must satisfy; `torch` and `prefix` (how its modules are imported) are given by the way of importing.
CHECK = """
import inspect, pickle, sys, typing
from importlib import import_module

PACKAGES = (
    "nn nn.functional nn.init nn.utils nn.parallel nn.parameter nn.attention nn.modules.module optim optim.lr_scheduler "
    "utils.data autograd autograd.function autograd.graph autograd.grad_mode cuda distributions linalg func utils "
    "serialization amp multiprocessing distributed profiler futures"
).split()
INNER = {"core", "driver", "observe", "ops", "runtime", "tape", "tensor", "cli", "report", "testing", "shim"}

def walk():
    for name in PACKAGES:
        import_module(f"{prefix}.{name}")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flambeau" and name.split(".")[1:2] not in [[x] for x in INNER]:
            for key, value in list(vars(module).items()):
                if isinstance(value, type) and key[0] != "_":
                    root, *rooms = value.__module__.split(".")
                    if root == prefix and rooms[:1] not in [[x] for x in INNER]:
                        yield value

def wrong(kind):
    try:
        typing.get_type_hints(kind)
        found = import_module(kind.__module__)
        for part in kind.__qualname__.split("."):
            found = getattr(found, part)
        if found is not kind:
            return "its module holds another"
        if inspect.getmodule(kind) is not sys.modules[kind.__module__]:
            return "inspect.getmodule"
        if pickle.loads(pickle.dumps(kind)) is not kind:
            return "pickled"
    except Exception as error:
        return repr(error)

classes = dict.fromkeys(walk())
faults = {f"{c.__module__}.{c.__qualname__}": w for c in classes if (w := wrong(c)) is not None}
assert len(classes) > 350, len(classes)
assert faults == {}, faults
for name, module in list(sys.modules.items()):
    root, dot, rest = name.partition(".")
    if root == "torch" and rest != "ops":  # flambeau.ops is the package of the operators
        assert sys.modules.get(f"flambeau{dot}{rest}", module) is module, name
        if sys.modules.get("torch") is sys.modules["flambeau"]:
            assert import_module(f"flambeau{dot}{rest}") is module, name
from importlib import import_module as again
assert again(f"{prefix}.nn.modules.module").Module is torch.nn.Module
assert again(f"{prefix}.optim.optimizer").Optimizer is torch.optim.Optimizer
assert torch.nn.Linear.__mro__[1] is torch.nn.Module
print("one identity")
"""
PLAIN = 'import flambeau as torch\nprefix = "flambeau"\n'
ALIAS = """
import sys, flambeau
sys.modules["torch"] = flambeau
from torch.nn.modules.module import Module
import torch, torch.optim.sgd, torch.utils.data.dataloader
assert torch is flambeau and Module is flambeau.nn.Module
assert torch.optim.sgd is sys.modules["flambeau.optim.sgd"]
from torch.nn.parallel import data_parallel
assert callable(data_parallel)
prefix = "flambeau"
"""
LATE = """
import flambeau as torch
import sys
sys.modules["torch"] = torch
from torch.nn.modules.module import Module
from torch.nn import Module as Again
assert Module is Again is torch.nn.Module
prefix = "flambeau"
"""
RUN = """
import flambeau
from torch.nn.modules.module import Module
import torch
assert torch is flambeau and Module is flambeau.nn.Module
assert Module.__module__ == "torch.nn.modules.module"
prefix = "torch"
"""


def _run(path: Path, *command: str) -> None:
    result = subprocess.run(
        [sys.executable, *command], cwd=path, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert "one identity" in result.stdout or "1 passed" in result.stdout


@pytest.mark.parametrize("way", [PLAIN, ALIAS, LATE], ids=["plain", "alias", "late"])
def test_classes_have_one_identity(tmp_path: Path, way: str) -> None:
    (tmp_path / "program.py").write_text(way + CHECK)
    _run(tmp_path, "program.py")


def test_classes_have_one_identity_under_run(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RUN + CHECK)
    _run(tmp_path, "-m", "flambeau", "run", "program.py")


def test_classes_have_one_identity_under_pytest(tmp_path: Path) -> None:
    body = "\n".join(f"    {line}" for line in (RUN + "exec(CHECK, globals() | locals())").splitlines())
    (tmp_path / "test_it.py").write_text(f"CHECK = {CHECK!r}\n\ndef test_it():\n{body}\n")
    _run(tmp_path, "-m", "pytest", "--virtual-gpus=1", "-q", "-p", "no:cacheprovider", "test_it.py")
