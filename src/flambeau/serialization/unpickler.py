"""`weights_only=False`: Python's unpickler, with errors that say which byte of which file is damaged.

# Note [Damaged pickles]
Problem: Python's unpickler, in C, raises whatever a damaged instruction leads to, TypeError or MemoryError say.
A memo number of 4 bytes makes it fill an array of that many places: 64 GiB for one wrong byte.
Rule: the instructions are followed first, without being run. Lengths, names and memo numbers must lie within the file.
An error of the unpickler, or of a function of Flambeau or of Python's library that the pickle calls, means damage.
Errors of the user's own classes, and names that cannot be imported, stay as they are, with a note.
Consequences: this is not a protection. A pickle that is well-formed runs what it names.
"""

from __future__ import annotations

import pickle
import re
import sys
import traceback
from collections.abc import Callable
from io import BytesIO
from types import FrameType, ModuleType
from typing import Any

from flambeau.core.brief import brief_text
from flambeau.core.ipc.pickle_reader import Refused
from flambeau.serialization import pickle_names
from flambeau.serialization.outline import find_storage_class

PersistentLoad = Callable[[Any], Any]
_WINDOW = 1 << 16  # bytes of a file that are looked at first
_FIXED = re.compile(
    rb"(?:[0-2()NQRabdelostu\]}\x81\x85-\x89\x8f-\x94\x97\x98]|[Khq\x80\x82].|[M\x83]..|[Jj\x84]....|G.{8})*+",
    re.DOTALL,
)
"""Instructions whose length is known. `\\x80` names the protocol, `\\x82` to `\\x84` a registered extension."""
_SIZED = {b"U": 1, b"C": 1, b"\x8c": 1, b"\x8a": 1, b"X": 4, b"B": 4, b"T": 4, b"\x8b": 4,
          b"\x8d": 8, b"\x8e": 8, b"\x96": 8, b"\x95": 8}  # fmt: skip
"""Instructions with a length -> how many bytes the length has. `\\x95` is a frame, whose instructions follow."""
_LINES = {b"c": 2, b"i": 2, b"I": 1, b"L": 1, b"F": 1, b"S": 1, b"V": 1, b"P": 1, b"g": 1, b"p": 1}
"""Instructions with text -> how many lines."""


def unpickler(module: ModuleType, options: dict[str, Any]) -> Callable[[Any, PersistentLoad], Any]:
    """Return a function that reads a pickle from a file by the Unpickler of `module`."""

    class Unpickler(module.Unpickler):  # type: ignore[misc, name-defined]
        def __init__(self, file: Any, persistent_load: PersistentLoad) -> None:
            super().__init__(file, **options)
            self._persistent_load = persistent_load

        def persistent_load(self, pid: Any) -> Any:
            return self._persistent_load(pid)

        def find_class(self, module: str, name: str) -> Any:
            if module.partition(".")[0] == "torch":
                return pickle_names.find(module, name)
            return super().find_class(module, name)

    if not issubclass(Unpickler, (pickle.Unpickler, pickle._Unpickler)):  # reads a format other than pickle's
        return lambda file, persistent_load: Unpickler(file, persistent_load).load()

    return lambda file, persistent_load: _read(Unpickler, file, persistent_load)


def outline_unpickler(options: dict[str, Any]) -> Callable[[Any, PersistentLoad], Any]:
    """Return a function that reads a pickle from a file for the storages that it names, and imports nothing."""

    class OutlineUnpickler(pickle.Unpickler):
        def __init__(self, file: Any, persistent_load: PersistentLoad) -> None:
            super().__init__(file, **options)
            self._persistent_load = persistent_load

        def persistent_load(self, pid: Any) -> Any:
            return self._persistent_load(pid)

        def find_class(self, module: str, name: str) -> Any:
            return find_storage_class(module, name)

    return lambda file, persistent_load: _read(OutlineUnpickler, file, persistent_load)


def _read(unpickler: Callable[[Any, PersistentLoad], Any], file: Any, persistent_load: PersistentLoad) -> Any:
    source = BytesIO(take_pickle(file))
    try:
        return unpickler(source, persistent_load).load()
    except Exception as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if _is_damage(error, frames[1:]):
            raise _damage_error(error, source.tell()) from error
        error.add_note(f"while the pickle was read, before byte {source.tell()}")
        raise


def _is_damage(error: Exception, frames: list[FrameType]) -> bool:
    """Return True for an error of the unpickler or of functions that it calls, except functions of the user.

    Args:
        error: The error.
        frames: The functions in Python that the unpickler has called, the one that raised last.
    """
    if isinstance(error, RuntimeError) and not isinstance(error, (RecursionError, NotImplementedError)):
        return False
    ours = {frame.f_code.co_name for frame in frames if frame.f_code.co_filename == __file__}
    if "persistent_load" in ours:  # a storage that is missing, or the user's map_location
        return isinstance(error, pickle.UnpicklingError)
    if "find_class" in ours:
        return not isinstance(error, (ImportError, AttributeError))
    rooms = {str(frame.f_globals.get("__name__")).partition(".")[0] for frame in frames}
    return rooms <= {"flambeau", *sys.stdlib_module_names}


def _damage_error(error: Exception, position: int) -> Refused:
    if isinstance(error, Refused):
        refused = error
    else:
        kind = "" if isinstance(error, pickle.UnpicklingError) else f"{type(error).__name__}: "
        refused = Refused(f"the pickle is damaged: {kind}{brief_text(str(error))}")
    refused.position = position
    return refused


def take_pickle(file: Any) -> bytes:
    """Return the bytes of the pickle at which a file stands. Leaves the file behind it.

    Raises:
        UnpicklingError: If these are not the instructions of a pickle.
        EOFError: If nothing is left.
    """
    begin, data = file.tell(), b""
    while True:
        more = file.read(max(_WINDOW, len(data)))
        data += more
        end = _end_of(data, last=not more)
        if end:
            file.seek(begin + end)
            return data[:end]


def _end_of(data: bytes, last: bool) -> int:
    """Return the position at which a pickle ends; 0 if it continues after `data`, which is not the `last` of the
    file.
    """
    at, size = 0, len(data)
    while True:
        at = _FIXED.match(data, at).end()  # type: ignore[union-attr]
        code = data[at : at + 1]
        if code == b".":
            return at + 1
        begin = at
        if code in _SIZED:
            width = _SIZED[code]
            at += 1 + width
            if code != b"\x95":
                at += int.from_bytes(data[begin + 1 : at], "little")
        elif code in _LINES:
            for _ in range(_LINES[code]):
                at = data.find(b"\n", at) + 1 or size + 1
        elif code == b"r":
            at += 5
        elif code not in b"KMJGjhq\x80\x82\x83\x84":
            raise _refusal(f"the pickle is damaged: invalid load key, {repr(code)[1:]}.", begin)
        else:
            at = size + 1
        if at > size:
            if not last:
                return 0
            if not data:
                raise EOFError("Ran out of input")
            raise _refusal("the pickle ends early", begin)
        if code in (b"r", b"p") and _memo_number(data[begin + 1 : at]) > size:
            raise _refusal("the pickle is damaged: it numbers more objects than it has bytes", begin)


def _memo_number(argument: bytes) -> int:
    if len(argument) == 4 and not argument.endswith(b"\n"):
        return int.from_bytes(argument, "little")
    return int(argument) if argument.strip().isdigit() and len(argument) < 20 else 1 << 64


def _refusal(text: str, position: int) -> Refused:
    refused = Refused(text)
    refused.position = position
    return refused
