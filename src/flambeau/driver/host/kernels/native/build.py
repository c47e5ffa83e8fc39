"""Compile the library of native kernels: `python -m flambeau.driver.host.kernels.native.build FOLDER [LEVEL ...]`.

The compiler is `$CXX`, or `c++`. On x86-64 one library is built for each instruction set of `library.LEVELS`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flambeau.driver.host.kernels.native.generator import source
from flambeau.driver.host.kernels.native.library import INCLUDE, LEVELS, file_name, is_x86

FLAGS = (
    "-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-fno-strict-aliasing",
    "-fno-exceptions", "-fno-rtti", "-fvisibility=hidden", "-fPIC", "-shared", "-w",
)  # fmt: skip


def build(folder: Path, levels: Sequence[str] = ()) -> list[Path]:
    """Build the library in a folder and return its files.

    Args:
        folder: The folder, which is created.
        levels: Instruction sets, as `library.LEVELS` names them; by default all of this machine's architecture.

    Raises:
        RuntimeError: If there is no C++ compiler, or it fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    text = source()
    return [_compile(text, folder / file_name(level), level) for level in levels or _levels()]


def _levels() -> Sequence[str]:
    return tuple(LEVELS) if is_x86() else ("",)


def _compile(text: str, target: Path, level: str) -> Path:
    machine = [f"-march={LEVELS[level][0]}"] if level else []
    if level == "v4":
        machine.append("-mprefer-vector-width=512")
    command = [*shlex.split(os.environ.get("CXX", "c++")), *FLAGS, *machine, f"-I{INCLUDE}", "-x", "c++", "-"]
    try:
        done = subprocess.run(
            [*command, "-o", str(target), "-lm"], input=text, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise RuntimeError(
            f"no C++ compiler: {command[0]!r} is not a program; set CXX, or build without native kernels"
        ) from None
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr[:4000]}")
    return target


if __name__ == "__main__":
    for built in build(Path(sys.argv[1]), sys.argv[2:]):
        print(built)
