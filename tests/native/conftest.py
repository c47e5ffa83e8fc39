"""The library of native kernels, built once for all processes of a session."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from flambeau.driver.host.kernels.native import build, generator
from flambeau.driver.host.kernels.native import library as libraries


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the library for the fastest instruction set of this machine."""
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("needs a C++ compiler")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    found = shared / f"native-{hashlib.sha256(generator.source().encode()).hexdigest()[:16]}"
    if not found.exists():
        made = tmp_path_factory.mktemp("native")
        build.build(made, _levels())
        try:
            made.rename(found)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return found


def _levels() -> list[str]:
    if not libraries.is_x86():
        return [""]
    fastest = libraries.candidates()[0]
    return [level for level in libraries.LEVELS if libraries.file_name(level) == fastest]


@pytest.fixture(scope="session")
def library(folder: Path) -> libraries.KernelLibrary:
    return libraries.KernelLibrary(folder / libraries.candidates()[0])
