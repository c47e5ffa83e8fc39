"""The package as a whole: what importing it does and does not, its version, names that it lacks."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

import flambeau as torch


def run(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_opens_no_driver_and_imports_nothing_heavy() -> None:
    loaded = run(
        "import sys, flambeau\n"
        "roots = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(roots & {'torch', 'cupy', 'jax', 'scipy', 'cuda', 'nvmath', 'nccl', 'cudnn', 'pytest'}))\n"
        "print(flambeau.cuda.is_initialized())\n"
        "print('flambeau.driver.virtual' in sys.modules)"
    )
    assert loaded.splitlines() == ["[]", "False", "False"]


def test_without_a_gpu_nothing_pretends() -> None:
    said = run(
        "import flambeau as torch\n"
        "print(torch.cuda.is_available(), torch.cuda.device_count(), torch.cuda.memory_allocated())\n"
        "try: torch.ones(2, device='cuda')\n"
        "except RuntimeError as error: print('flambeau.virtual' in str(error))"
    )
    assert said.splitlines() == ["False 0 0", "True"]


def test_the_version_reads_like_pytorchs() -> None:
    major, minor, *_ = torch.__version__.split(".")
    assert (int(major), int(minor)) >= (2, 0)
    assert "flambeau" in torch.__version__
    assert torch.version.__version__ == torch.__version__


@pytest.mark.parametrize("where", [torch, torch.cuda, torch.ones(1)], ids=["torch", "torch.cuda", "Tensor"])
def test_an_absent_name_says_who_lacks_it(where: object) -> None:
    assert not hasattr(where, "no_such_name")
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        where.no_such_name  # noqa: B018


VALUES = [torch.device("cuda:1"), torch.float32, torch.bool, torch.Size([2, 3]), torch.ones(1).shape]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_travel_in_pickles_and_copies(value: object) -> None:
    assert repr(value).startswith(("device(", "torch."))
    back = pickle.loads(pickle.dumps(value))
    assert back == value
    assert type(back) is type(value)
    assert copy.deepcopy(value) == value


def test_where_torch_is_flambeau_pickles_and_types_say_torch() -> None:
    said = run(
        "from flambeau.cli.finder import install; install()\n"
        "import pickle, torch\n"
        "for x in (torch.device('cuda:1'), torch.float32, torch.Size([2, 3])):\n"
        "    raw = pickle.dumps(x)\n"
        "    print(pickle.loads(raw) == x, b'torch' in raw, b'flambeau' in raw, type(x))"
    )
    kinds = ["device", "dtype", "Size"]
    assert said.splitlines() == [f"True True False <class 'torch.{kind}'>" for kind in kinds]
