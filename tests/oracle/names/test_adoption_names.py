"""Names that tools and libraries look for: collect_env, signal.windows.windows, StorageWeakRef.from_weakref."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys

import pytest
import torch as oracle
from cli.cli_kit import environment
from torch.utils import collect_env as theirs

import flambeau
from flambeau.multiprocessing.reductions import StorageWeakRef
from flambeau.utils import collect_env


def test_environment_has_pytorchs_fields_and_the_packages_values() -> None:
    found = collect_env.get_env_info()
    assert found._fields == theirs.SystemEnv._fields
    assert found.torch_version == flambeau.__version__
    assert platform.python_version() in found.python_version
    assert found.is_cuda_available == "False" and found.nvidia_gpu_models == "No CUDA"
    assert found.gcc_version == _last_version(theirs.get_gcc_version(theirs.run))
    assert f"[pip3] flambeau=={flambeau.version.__version__.partition('flambeau')[2]}" in found.pip_packages


def _last_version(text: str | None) -> str | None:
    return text and text.split()[-1]


def test_environment_names_virtual_gpus_as_such() -> None:
    with flambeau.virtual(devices=2, profile="h100"):
        found = collect_env.get_env_info()
    assert found.is_cuda_available == "True"
    assert [line.rpartition(" (")[2] for line in (found.nvidia_gpu_models or "").split("\n")] == [
        "virtual: profile h100)"
    ] * 2


def test_environment_is_printed_by_the_module() -> None:
    command = [sys.executable, "-m", "flambeau.utils.collect_env"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == 0, done.stderr
    assert f"PyTorch version: {flambeau.__version__}\n" in done.stdout
    assert "None" not in done.stdout


def test_windows_are_in_their_inner_module() -> None:
    mine, inner = flambeau.signal.windows, flambeau.signal.windows.windows
    assert inner.__all__ == oracle.signal.windows.windows.__all__
    assert all(getattr(mine, name) is getattr(inner, name) for name in inner.__all__)
    assert mine.hann.__module__.endswith("signal.windows.windows")
    with pytest.raises(AttributeError, match="Did you mean: 'hann'"):
        mine.hanns  # noqa: B018


def test_a_weak_reference_is_made_from_a_living_number() -> None:
    storage = flambeau.ones(3).untyped_storage()
    first = StorageWeakRef(storage)
    second = StorageWeakRef.from_weakref(first.cdata)
    assert second == first and hash(second) == hash(first) and not second.expired()
    del first
    third = StorageWeakRef.from_weakref(second.cdata)
    del storage, second
    gc.collect()
    assert third.expired()
    number = third.cdata
    del third
    with pytest.raises(ValueError, match=f"no StorageWeakRef with cdata {number} lives"):
        StorageWeakRef.from_weakref(number)
