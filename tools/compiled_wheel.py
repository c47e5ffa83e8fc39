"""The build hook of hatchling that makes a wheel a compiled one: see docs/design.md, "The compiled build"."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))

import compiled_build


def native_kernels(sources: Path, folder: Path) -> dict[str, str]:
    """Build the library of native kernels in a folder and return its files, with their paths in the wheel."""
    sys.path.insert(0, str(sources))
    module = "flambeau.driver.host.kernels.native"
    build = import_module(f"{module}.build").build
    return {str(file): f"{module.replace('.', '/')}/{file.name}" for file in build(folder)}


class CompiledWheel(BuildHookInterface[Any]):
    """Adds compiled modules and native kernels to a wheel, which then fits one platform and version of Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules into a temporary folder."""
        self.folder = tempfile.TemporaryDirectory()
        target = Path(self.folder.name)
        files = compiled_build.build(target)
        build_data["force_include"] |= {str(target / file): str(file) for file in files}
        build_data["force_include"] |= native_kernels(Path(self.root) / "src", target / "native")
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder, because the wheel is complete."""
        self.folder.cleanup()
