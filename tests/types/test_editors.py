"""What editors and type checkers see: jedi completes every public name, mypy finds misspelled ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flambeau
from flambeau.cli import typings
from flambeau.core.absent_modules import read_blocks

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
    public -= {name for name in public if f"{expression}.{name}" in read_blocks()}  # modules without a file
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

EXAMPLES = [
    ROOT / "examples",
    ROOT / "examples" / "ci_without_gpu",
    ROOT / "examples" / "ci_without_gpu" / "tests",
]
FILES = [path for folder in EXAMPLES for path in sorted(folder.glob("*.py"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stubs that `flambeau types` writes, and the program with misspelled names."""
    found = tmp_path_factory.mktemp("typings")
    for path, text in typings.torch_stubs():
        (found / path).parent.mkdir(parents=True, exist_ok=True)
        (found / path).write_text(text)
    (found / "misspelled.py").write_text(MISSPELLED)
    return found


def test_mypy_finds_misspelled_names_and_no_error_in_the_examples(folder: Path) -> None:
    pytest.importorskip("mypy")
    program = folder / "misspelled.py"
    found = mypy_errors([program, *FILES], folder)
    mine = [line for line in found if line.startswith(str(program))]
    assert {int(line.split(":")[1]) for line in mine} == {5, 6, 7, 8, 9, 10}, mine
    assert [line for line in found if line not in mine] == []


def test_mypy_finds_functions_named_as_a_package_in_its_cache(folder: Path) -> None:
    """The second run reads `torch.tensor` from the cache, where `flambeau.tensor` is the name of a package, too."""
    pytest.importorskip("mypy")
    program = folder / "named.py"
    for value in (1, 2):
        program.write_text(f"import torch\nx = torch.tensor({value})\n")
        assert mypy_errors([program], folder) == []


def mypy_errors(files: list[Path], folder: Path) -> list[str]:
    command = [
        sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--ignore-missing-imports",
        "--cache-dir", str(folder / "cache"), "--config-file=", *map(str, files),
    ]  # fmt: skip
    environment = {**os.environ, "MYPYPATH": str(folder), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    assert not done.stderr, done.stderr
    return [
        os.path.normpath(folder / line) for line in done.stdout.splitlines() if re.search(r": error: ", line)
    ]


def test_pyright_finds_misspelled_names_and_no_error_in_the_examples(folder: Path) -> None:
    """CI installs pyright; elsewhere it is used where the command is found."""
    pyright = shutil.which("pyright")
    if pyright is None:
        pytest.skip("pyright is not installed")
    settings = {
        "stubPath": ".",
        "extraPaths": [str(ROOT / "src")],
        "include": ["misspelled.py", "examples/**/*.py"],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps({**settings, "exclude": ["examples/notes"]}))
    (folder / "examples").symlink_to(ROOT / "examples")
    command = [pyright, "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    found = [
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in json.loads(done.stdout)["generalDiagnostics"]
    ]
    assert {line for file, line, _ in found if file == "misspelled.py"} == {5, 6, 7, 8, 9, 10}, found
    assert [each for each in found if each[0] != "misspelled.py"] == []
