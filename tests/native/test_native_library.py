"""`FLAMBEAU_NATIVE` selects the library; programs compute the same with it on the CPU and on virtual GPUs."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flambeau.driver.host.kernels.native import build
from flambeau.driver.host.kernels.native import kernel_library as libraries

PROGRAM = """
import flambeau as torch
from flambeau.driver.host.kernels.native.kernel_library import library

assert library() is not None
x = torch.rand(3000) - 0.5
def compute(x):
    y = torch.nn.functional.gelu(x * 2 + 1)
    y[::3] += x[::3].exp()
    return (y.half() + torch.where(x > 0, x, 0.5)).clamp(max=2).double()
with torch.virtual(devices=1, races="error", poison=True):
    assert torch.equal(compute(x.cuda()).cpu(), compute(x))
try:
    x.add_(torch.ones(4))
except RuntimeError as error:
    print(error)
"""


Choose = Callable[[str], libraries.LibraryChoice]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    def chosen(value: str) -> libraries.LibraryChoice:
        monkeypatch.setenv(libraries.VARIABLE, value)
        found: libraries.LibraryChoice = libraries.choice.__wrapped__()
        return found

    return chosen


def path_of(choice: libraries.LibraryChoice) -> Path:
    assert choice.library is not None and not choice.reason
    return choice.library.path


def test_a_program_computes_the_same_bits_on_cpu_and_virtual_gpu(folder: Path) -> None:
    environment = {**os.environ, libraries.VARIABLE: str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert "must match the size of tensor b (4)" in done.stdout, done.stderr


def test_off_selects_numpy_and_a_folder_its_library(choose: Choose, folder: Path) -> None:
    assert choose("off") == (None, "FLAMBEAU_NATIVE=off")
    assert path_of(choose(str(folder))).parent == folder


def test_the_default_is_the_library_beside_the_modules(
    choose: Choose, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = libraries.digest()
    monkeypatch.setattr(libraries, "digest", lambda: digest)  # it reads files beside the modules
    monkeypatch.setattr(libraries, "HERE", folder)
    assert path_of(choose("")) == path_of(choose("on"))


@pytest.mark.parametrize("present", [False, True])
def test_without_a_usable_library_the_default_is_numpy(
    present: bool, choose: Choose, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "HERE", folder if present else tmp_path)
    monkeypatch.setattr(libraries, "digest", lambda: "another")
    library, reason = choose("")
    assert library is None
    assert ("was built from other sources" if present else "`make native` builds it") in reason


def test_a_library_is_built_again_only_for_other_sources(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build.build_if_changed(folder)
    before = path.stat().st_mtime_ns
    assert build.build_if_changed(folder) == path and path.stat().st_mtime_ns == before
    monkeypatch.setattr(build, "source", lambda: "another")
    assert not build.is_current(folder)


def test_numpy_alone_imports_nothing_of_native_kernels() -> None:
    program = """
import sys
import flambeau as torch
assert (torch.ones(2) + 1).tolist() == [2, 2]
print([name for name in sys.modules if "kernels.native." in name])
"""
    environment = {**os.environ, libraries.VARIABLE: "off"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_required_library_that_is_missing_is_an_error(choose: Choose, tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"has no library .*make native"):
        choose(str(tmp_path))


def test_a_library_of_other_sources_is_an_error(
    choose: Choose, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "digest", lambda: "another")
    with pytest.raises(ImportError, match="built from other sources"):
        choose(str(folder))


def test_a_missing_compiler_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match="no C\\+\\+ compiler: 'no-such-compiler'"):
        build.build(tmp_path)


def test_library_releases_the_gil(library: libraries.KernelLibrary) -> None:
    assert isinstance(library._functions, ctypes.CDLL)
    assert not isinstance(library._functions, ctypes.PyDLL)
