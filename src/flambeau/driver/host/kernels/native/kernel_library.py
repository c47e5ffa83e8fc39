"""The shared library of native kernels: where it is, whether it belongs to these sources, and its functions.

By default it is the one next to this module, where compiled wheels have it and `make native` builds it. If there is
none, or it was built from other sources, NumPy computes everything. `FLAMBEAU_NATIVE` is "on" to require it, "off" to
compute with NumPy, or the folder of another library.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flambeau.driver.host.kernels.native import STEM, VARIABLE, chosen_library

HERE = Path(__file__).parent
INCLUDE = HERE / "include"
PRELUDE = HERE.parents[2] / "cuda" / "include" / "prelude.cuh"

LEVELS: dict[str, tuple[str, frozenset[str]]] = {
    "v4": ("x86-64-v4", frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"))),
    "v3": ("x86-64-v3", frozenset(("avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"))),
    "v2": ("x86-64-v2", frozenset(("sse4_2", "ssse3", "popcnt"))),
}
"""For x86-64, the instruction sets by suffix of the library: the compiler's name, and flags of /proc/cpuinfo.

The libraries for v3 and v4 compute the same bits: they contain the same IEEE operations, and compilers contract none.
v2 has no fused multiplication and addition, which the polynomials of include/cpu.h use.
"""


class KernelLibrary:
    """A loaded library.

    Attributes:
        path: Its file.
        run_elements, run_transpose, run_lists, run_fold: `run(plan, words)` runs a plan on the operands of a call. The
            words are their addresses and scalars.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._functions = ctypes.CDLL(str(path))
        self._check_sources()
        self.run_elements, self.run_transpose = self.runner("run_elements"), self.runner("run_transpose")
        self.run_lists, self.run_fold = self.runner("run_lists"), self.runner("run_fold")

    def runner(self, name: str, result: Any = None) -> Callable[[int, bytes], Any]:
        """Return a function `run(plan, words)` that the library has, with a result of this ctypes type."""
        function: Any = getattr(self._functions, name)
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_char_p), result
        runner: Callable[[int, bytes], Any] = function
        return runner

    def rows(self, name: str) -> Callable[[int, bytes], int]:
        """Return a kernel of rows. It returns 0, or 1 if there is no memory."""
        return self.runner(name, ctypes.c_int64)

    def _check_sources(self) -> None:
        built = ctypes.c_char_p.in_dll(self._functions, "sources").value or b""
        if built.decode() != digest():
            raise ImportError(
                f"{self.path} was built from other sources than this flambeau. Build it again (`make native`), or set "
                f"{VARIABLE}=off to compute with NumPy."
            )

    def find(self, symbol: str) -> int:
        """Return the address of a function, or 0 if the library does not have it."""
        try:
            return ctypes.cast(getattr(self._functions, symbol), ctypes.c_void_p).value or 0
        except AttributeError:
            return 0


def digest() -> str:
    """Return a digest of the files that make the source, which must be equal in the library and the package.

    The formulas of operators are not among them: the name of each kernel depends on its formula.
    """
    paths = (PRELUDE, HERE / "source_generator.py", HERE / "kernel_names.py", *sorted(INCLUDE.iterdir()))
    texts = [path.read_bytes() for path in paths]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


class LibraryChoice(NamedTuple):
    """The library of a process.

    Attributes:
        library: None to compute with NumPy.
        reason: Why NumPy computes everything; "" if it does not.
    """

    library: KernelLibrary | None
    reason: str = ""


@cache
def choice() -> LibraryChoice:
    """Return the library that `FLAMBEAU_NATIVE` selects. A process decides once.

    Raises:
        ImportError: If the library is required and missing, or was built from other sources.
    """
    chosen = chosen_library()
    if chosen == "off":
        return LibraryChoice(None, f"{VARIABLE}=off")
    folder = HERE if chosen in ("", "on") else Path(chosen)
    try:
        return LibraryChoice(_library_in(folder))
    except ImportError as error:
        if chosen:
            raise
        return LibraryChoice(None, str(error))


def library() -> KernelLibrary | None:
    """Return the library of `choice`."""
    return choice().library


def _library_in(folder: Path) -> KernelLibrary:
    """Return the library in a folder.

    Raises:
        ImportError: If there is none, or it was built from other sources.
    """
    paths = [path for path in [folder / name for name in candidates()] if path.exists()]
    if not paths:
        raise ImportError(
            f"{folder} has no library of native kernels for this CPU ({', '.join(candidates())}). Compiled wheels "
            "contain it; `make native` builds it in a checkout."
        )
    return KernelLibrary(paths[0])


def file_name(level: str) -> str:
    """Return the name of the library for an instruction set; "" for machines that have one."""
    return f"{STEM}{'_' if level else ''}{level}{'.dylib' if sys.platform == 'darwin' else '.so'}"


def candidates() -> list[str]:
    """Return the names of the libraries that this CPU can run, the fastest first."""
    if not is_x86():
        return [file_name("")]
    flags = _cpu_flags()
    return [file_name(level) for level, (_, needed) in LEVELS.items() if needed <= flags]


def is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _cpu_flags() -> frozenset[str]:
    """Return what the CPU supports. Systems without /proc (macOS) are assumed to support what all x86-64 Macs do."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return LEVELS["v2"][1]
    line: Any = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())
