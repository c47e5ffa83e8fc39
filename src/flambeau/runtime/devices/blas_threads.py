"""The number of threads of CPU operators, which is that of the BLAS libraries of NumPy and SciPy.

Reference implementations run on the calling thread; BLAS computes products and factorizations on its threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from flambeau.core.errors import NotSupportedError

_PACKAGES = ("numpy", "scipy")
_NAMES = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")


def count() -> int:
    """Return the number of BLAS threads; 1 if no library reports it."""
    return max([int(get()) for get in _functions("get_num_threads")], default=1)


def limit(threads: int) -> None:
    """Set the number of BLAS threads.

    Raises:
        RuntimeError: For fewer than 1.
        NotSupportedError: If the library has no call for it.
    """
    if threads <= 0:
        raise RuntimeError("Expected positive number of threads")
    found = list(_functions("set_num_threads"))
    if not found:
        raise NotSupportedError(
            "set_num_threads: NumPy's BLAS is not the OpenBLAS of its wheels; set its threads in the environment"
        )
    for put in found:
        put(threads)


def _functions(verb: str) -> Iterator[Callable[..., Any]]:
    """Yield OpenBLAS's function for `verb` from each loaded library that has it."""
    for path in _libraries():
        library = ctypes.CDLL(path)  # a library that is loaded already is not loaded twice
        for name in _NAMES:
            found = getattr(library, name.format(verb), None)
            if found is not None:
                yield found
                break


def _libraries() -> Iterator[str]:
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        home = os.path.dirname(spec.origin)
        for folder in (os.path.join(os.path.dirname(home), f"{package}.libs"), os.path.join(home, ".dylibs")):
            if os.path.isdir(folder):
                yield from [os.path.join(folder, n) for n in sorted(os.listdir(folder)) if "openblas" in n]
