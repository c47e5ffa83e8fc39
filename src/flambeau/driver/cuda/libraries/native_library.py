"""`NativeLibrary`: a shared library of NVIDIA, loaded by ctypes, with functions declared by short signatures."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

from flambeau.core.errors import DriverError, NotSupportedError


class Id(ctypes.Structure):
    """An identifier of 128 bytes that is passed by value."""

    _fields_ = (("bytes", ctypes.c_char * 128),)


_TYPES = {
    "p": ctypes.c_void_p, "i": ctypes.c_int, "l": ctypes.c_int64, "z": ctypes.c_size_t, "d": ctypes.c_double,
    "f": ctypes.c_float, "u": Id,
}  # fmt: skip


def load_library(name: str, title: str, extra: str) -> ctypes.CDLL:
    """Return a library by the pathfinder's name. NotSupportedError names the missing library and the extra that
    installs it.
    """
    try:
        return ctypes.CDLL(import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name).abs_path)
    except (RuntimeError, OSError, ImportError) as error:
        raise NotSupportedError(f"{title} is not on this machine: pip install 'flambeau[{extra}]'") from error


class NativeLibrary:
    """A library of NVIDIA, loaded from its Python package or from the CUDA toolkit.

    Args:
        name: Its name for NVIDIA's pathfinder.
        title: Its name in messages.
        extra: The extra of this package that installs it.
        statuses: Status code -> name.

    Raises:
        NotSupportedError: If the library is not installed.
    """

    def __init__(self, name: str, title: str, extra: str, statuses: dict[int, str]) -> None:
        self.title = title
        self._statuses = statuses
        self._dll = load_library(name, title, extra)

    def function(self, name: str, signature: str) -> Callable[..., None]:
        """Return a call that raises where it fails. NotSupportedError: the library has no such function.

        `signature` has a letter per argument: p a pointer, i an int, l an int64, z a size_t, d a double, f a float,
        u an Id.
        """
        try:
            call = getattr(self._dll, name)
        except AttributeError:
            raise NotSupportedError(f"{self.title} has no {name} on this machine: it is too old") from None
        call.argtypes = [_TYPES[letter] for letter in signature]

        def call_checked(*args: Any) -> None:
            status = call(*args)
            if status:
                raise self.failure(name, status)

        return call_checked

    def failure(self, name: str, status: int) -> Exception:
        """Return the exception for a status code of a call."""
        return DriverError(f"{self.title}: {name}: {self._statuses.get(status, f'status {status}')}")

    def text(self, name: str) -> str:
        """Return the text that a function returns for a null pointer."""
        call = getattr(self._dll, name)
        call.argtypes, call.restype = [ctypes.c_void_p], ctypes.c_char_p
        return (call(None) or b"").decode(errors="replace").strip()
