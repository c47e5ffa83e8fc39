"""docs/contents.md is generated, says what is so, and its list of names is PyTorch's."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from cli.cli_kit import environment
from support import torch

from flambeau.core.absent_names import advice_for_module
from tools.pages import contents_page

ROOT = Path(__file__).parents[3]
NAMES = ROOT / "tests" / "goldens" / "torch_modules.txt"
PATHS = ROOT / "tests" / "goldens" / "torch_module_paths.txt"
WRITE = (
    "python -m tools.pages.contents_page tests/goldens/torch_modules.txt tests/goldens/torch_module_paths.txt "
    "> docs/contents.md"
)
LISTED = [
    "amp", "autograd", "autograd.functional", "autograd.graph", "backends.cuda", "backends.cudnn", "cuda.amp",
    "distributed", "distributions", "futures", "jit", "multiprocessing", "linalg",
    "fft", "func", "nn", "nn.functional", "nn.init", "nn.parameter", "nn.utils", "nn.utils.parametrizations",
    "nn.utils.parametrize", "nn.utils.prune", "nn.utils.rnn", "optim", "optim.lr_scheduler", "optim.swa_utils",
    "random", "serialization", "special", "utils.checkpoint", "utils.data", "utils.dlpack",
]  # fmt: skip


def public(module):
    """The names that a module of PyTorch says are its own."""
    room = import_module(f"torch.{module}")
    said = getattr(room, "__all__", None)
    if said is not None:
        return sorted(set(said))
    made = [name for name, value in vars(room).items() if not name.startswith("_") and callable(value)]
    return sorted(
        n for n in made if (getattr(getattr(room, n), "__module__", "") or "").startswith(f"torch.{module}")
    )


WITH_CUDA = {"distributed.ProcessGroupNCCL"}  # what PyTorch's builds with CUDA have, and the CPU build lacks


def written():
    """The list of names, as PyTorch's CPU build has them."""
    names = [f"{module}.{name}" for module in LISTED for name in public(module)]
    return "".join(f"{name}\n" for name in names if name not in WITH_CUDA)


def test_the_list_of_names_is_pytorchs():
    assert torch.__version__
    assert NAMES.read_text() == written()


def public_paths():
    """Return the paths of PyTorch's public modules, which its files show; without its tests."""
    root = Path(torch.__file__).parent
    found = []
    for file in root.rglob("*.py"):
        *folders, name = file.relative_to(root).with_suffix("").parts
        parts = folders if name == "__init__" else [*folders, name]
        is_package = all(
            (root.joinpath(*folders[:at]) / "__init__.py").is_file() for at in range(len(folders) + 1)
        )
        if parts and is_package and not any(part.startswith("_") for part in parts) and parts[0] != "testing":
            found.append(".".join(["torch", *parts]))
    return sorted(found)


def test_the_list_of_paths_is_pytorchs():
    assert PATHS.read_text().split() == public_paths()


def test_each_missing_module_says_what_to_do_instead():
    gone = contents_page.missing_paths(PATHS.read_text().split())
    assert len(gone) > 100 and "torch.utils.collect_env" not in gone
    assert [path for path in gone if advice_for_module(path) is None] == []


@pytest.fixture(scope="module")
def page():
    return contents_page.page(NAMES.read_text().split(), PATHS.read_text().split())


def test_the_committed_page_is_the_generated_one(page):
    assert (ROOT / "docs" / "contents.md").read_text() == page, f"write it anew: {WRITE}"


def test_a_reason_stands_for_what_is_absent_and_for_nothing_else():
    gone = {module for module in contents_page.MODULES if contents_page.find_object(module) is None}
    assert gone == set(contents_page.WHY)


def test_every_page_that_is_pointed_to_is_there():
    for _, file in contents_page.NOTES:
        assert file is None or (ROOT / "docs" / file).is_file(), file


ASK = """
import importlib, sys, torch
for path in sys.argv[1:]:
    room, _, name = path.rpartition(".")
    try:
        getattr(eval({"": "torch", "Tensor": "torch.ones(1)"}.get(room, f"torch.{room}")), name)
        print("there", path)
    except AttributeError as error:
        print("Flambeau lacks it" in str(error), end=" ")
    try:
        importlib.import_module(f"torch.{path}")
    except ImportError as error:
        print(f"torch.{path}" in str(error) or f"torch.{room}" in str(error))
"""


def test_what_is_absent_raises_by_its_name():
    gone = [m for m in contents_page.MODULES if contents_page.find_object(m) is None]
    command = "import sys; from flambeau.cli.import_hook import install; install(); " + f"exec({ASK!r})"
    done = subprocess.run(
        [sys.executable, "-c", command, *gone], capture_output=True, text=True, timeout=60, env=environment()
    )
    assert done.stderr == ""
    assert done.stdout.split("\n")[:-1] == ["True True"] * len(gone)
    assert len(gone) == len(contents_page.WHY) >= 5


def test_found_gives_what_is_there_and_none_for_what_is_not():
    assert inspect.isclass(contents_page.find_object("nn.Linear"))
    assert inspect.ismodule(contents_page.find_object("utils.checkpoint"))
    assert contents_page.find_object("nn.Nothing") is None
