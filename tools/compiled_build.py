"""Compile modules of the package: `python tools/compiled_build.py FOLDER` writes the compiled package to a folder.

The hook of compiled wheels (tools/compiled_wheel.py) calls `build` too. See docs/design.md, "The compiled build".
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"


def modules() -> list[str]:
    """Return the modules that are compiled, as paths relative to `src`. The table is in pyproject.toml."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flambeau"]["compiled"]
    paths = {path.relative_to(SOURCES) for pattern in table["include"] for path in SOURCES.glob(pattern)}
    left = {path.relative_to(SOURCES) for pattern in table["exclude"] for path in SOURCES.glob(pattern)}
    return sorted(str(path) for path in paths - left)


def build(target: Path) -> list[Path]:
    """Compile the modules and the C files into a folder. Returns the files, relative to it.

    Args:
        target: The folder, which receives them in the package's folders.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution, Extension

    before = os.getcwd()
    os.chdir(SOURCES)  # the names of modules follow from it
    try:
        options = ["--config-file", str(ROOT / "pyproject.toml"), "--follow-imports=silent"]
        with tempfile.TemporaryDirectory() as work:
            extensions = mypycify([*options, *modules()], opt_level="3", debug_level="0", target_dir=work)
            for path in sorted(SOURCES.rglob("*.c")):
                name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
                extensions.append(Extension(name, [str(path)], extra_compile_args=["-O3"]))
            command = Distribution({"name": "flambeau", "ext_modules": extensions}).get_command_obj(
                "build_ext"
            )
            command.build_lib, command.build_temp = str(target), work
            command.ensure_finalized()
            command.run()
    finally:
        os.chdir(before)
    return sorted(path.relative_to(target) for path in target.rglob("*") if path.suffix in (".so", ".pyd"))


def main(folder: Path) -> None:
    shutil.copytree(SOURCES / "flambeau", folder / "flambeau", dirs_exist_ok=True)
    print(f"{len(build(folder))} files in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
