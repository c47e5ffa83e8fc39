"""Compile the library of native kernels: `python -m flambeau.driver.host.kernels.native.build`.

The compiler is `$CXX`, or `c++`. Without arguments it builds the library for this CPU next to these modules, where
programs find it, unless the one that is there has the same sources. The arguments `FOLDER [LEVEL ...]` name another
folder and, on x86-64, instruction sets of `library.LEVELS`; by default all of them.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flambeau.driver.host.kernels.native.kernel_library import (
    HERE,
    INCLUDE,
    LEVELS,
    candidates,
    file_name,
    is_x86,
)
from flambeau.driver.host.kernels.native.source_generator import source

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
    text = _with_digest(source())
    return [_compile(text, folder / file_name(level), level) for level in levels or _levels()]


def build_if_changed(folder: Path) -> Path:
    """Build the library for this CPU's fastest instruction set, unless the folder has that of the same sources.

    Raises:
        RuntimeError: If there is no C++ compiler, or it fails.
    """
    level = fastest_level()
    return folder / file_name(level) if is_current(folder) else build(folder, [level])[0]


def is_current(folder: Path) -> bool:
    """Return True if a folder has the library for this CPU's fastest instruction set, of the present sources."""
    path = folder / file_name(fastest_level())
    return path.exists() and _built_from(path, source())


def fastest_level() -> str:
    """Return the fastest instruction set of this CPU, as `library.LEVELS` names it; "" for other architectures."""
    return next(level for level in _levels() if file_name(level) == candidates()[0])


def _levels() -> Sequence[str]:
    return tuple(LEVELS) if is_x86() else ("",)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _with_digest(text: str) -> str:
    return f'{text}\nEXPORT const char* const source_text = "{_digest(text)}";\n'


def _built_from(path: Path, text: str) -> bool:
    """Return True if a library was built from a source."""
    try:
        built = ctypes.c_char_p.in_dll(ctypes.CDLL(str(path)), "source_text").value or b""
    except (OSError, ValueError):
        return False
    return built.decode() == _digest(text)


def _compile(text: str, target: Path, level: str) -> Path:
    machine = [f"-march={LEVELS[level][0]}"] if level else []
    if level == "v4":
        machine.append("-mprefer-vector-width=512")
    command = [*shlex.split(os.environ.get("CXX", "c++")), *FLAGS, *machine, f"-I{INCLUDE}", "-x", "c++", "-"]
    new = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        done = subprocess.run(
            [*command, "-o", str(new), "-lm"], input=text, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise RuntimeError(
            f"no C++ compiler: {command[0]!r} is not a program; set CXX, or build without native kernels"
        ) from None
    if done.returncode:
        new.unlink(missing_ok=True)
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr[:4000]}")
    return new.replace(target)  # programs that run keep the file that they have loaded


if __name__ == "__main__":
    for built in build(Path(sys.argv[1]), sys.argv[2:]) if sys.argv[1:] else [build_if_changed(HERE)]:
        print(built)
