"""What editors and type checkers see: jedi completes every public name, mypy finds misspelled ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flambeau
from flambeau.cli import typings

ROOT = Path(__file__).parents[2]

OWNERS: dict[str, Any] = {
    "torch": flambeau,
    "torch.ones(2)": flambeau.Tensor,
    "torch.nn": flambeau.nn,
    "torch.nn.functional": flambeau.nn.functional,
    "torch.nn.utils": flambeau.nn.utils,
    "torch.optim": flambeau.optim,
    "torch.cuda": flambeau.cuda,
    "torch.linalg": flambeau.linalg,
    "torch.autograd": flambeau.autograd,
    "torch.distributed": flambeau.distributed,
    "torch.utils.data": flambeau.utils.data,
    "torch.testing": flambeau.testing,
}


@pytest.mark.parametrize("expression", OWNERS)
def test_jedi_completes_every_public_name(expression: str) -> None:
    """Names that PyTorch has, too; others are helpers that a module imports."""
    jedi = pytest.importorskip("jedi")
    theirs: Any = pytest.importorskip("torch", reason="oracle PyTorch is not installed")
    if expression == "torch.ones(2)":
        theirs = theirs.Tensor
    else:
        for part in expression.split(".")[1:]:
            theirs = getattr(theirs, part)
    public = {name for name in dir(OWNERS[expression]) if name[0] != "_" and hasattr(theirs, name)}
    public -= {"Any", "annotations", "import_module", "torch", "warnings"}
    script = jedi.Script(
        f"import flambeau as torch\n{expression}.",
        project=jedi.Project(ROOT, added_sys_path=[str(ROOT / "src")]),
    )
    completed = {completion.name for completion in script.complete()}
    assert public - completed == set()


MISSPELLED = """
import torch
from torch import nn

x = torch.zerosss(3)
y = torch.ones(3).summ()
torch.cuda.synchronise()
nn.Linaer(3, 4)
torch.zeros(3, dtyp=torch.float32)
z: int = torch.ones(3).sum()
n: int = torch.ones(3).size(0)
values, indices = torch.ones(3, 3).max(dim=1)
with torch.cuda.stream(torch.cuda.Stream()):
    w: torch.Tensor = (x + 1) @ torch.randn(3, 3, device="cuda") == 1
"""

# What mypy says of lines that name no torch: `find_spec(...).origin`, and two imports of one name.
OTHERS = re.compile(r"ModuleSpec|FileDescriptor|PathLike|already defined")


def test_mypy_finds_misspelled_names_and_no_error_in_the_examples(tmp_path: Path) -> None:
    """Programs import torch, which is the stubs that `flambeau types` writes. Examples have no annotations."""
    pytest.importorskip("mypy")
    for path, text in typings.torch_stubs():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    program = tmp_path / "misspelled.py"
    program.write_text(MISSPELLED)
    examples = [*(ROOT / "examples").glob("*.py"), ROOT / "examples" / "ci_without_gpu" / "prefetch.py"]
    found = mypy_errors([program, *examples], tmp_path)
    mine = [line for line in found if line.startswith(str(program))]
    assert {int(line.split(":")[1]) for line in mine} == {5, 6, 7, 8, 9, 10}, mine
    assert [
        line for line in found if line.startswith(str(ROOT / "examples")) and not OTHERS.search(line)
    ] == []


def mypy_errors(files: list[Path], folder: Path) -> list[str]:
    command = [
        sys.executable, "-m", "mypy", "--strict", "--allow-untyped-defs", "--allow-untyped-calls", "--no-error-summary",
        "--ignore-missing-imports", "--no-warn-unused-ignores", "--cache-dir", str(folder / "cache"), "--config-file=",
        *map(str, files),
    ]  # fmt: skip
    environment = {**os.environ, "MYPYPATH": f"{folder}{os.pathsep}{ROOT / 'src'}"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    assert not done.stderr, done.stderr
    return [
        os.path.normpath(folder / line) for line in done.stdout.splitlines() if re.search(r": error: ", line)
    ]
