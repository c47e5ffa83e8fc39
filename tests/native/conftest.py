"""The library of native kernels: the one next to the package if it has these sources, else one for the session."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from flambeau.driver.host.kernels.native import build
from flambeau.driver.host.kernels.native import kernel_library as libraries


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the library for the fastest instruction set of this machine."""
    if build.is_current(libraries.HERE):
        return libraries.HERE
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("needs a C++ compiler")
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    return build.build_if_changed(shared / "native").parent


@pytest.fixture(scope="session")
def library(folder: Path) -> libraries.KernelLibrary:
    return libraries.KernelLibrary(folder / libraries.candidates()[0])
