"""`Site`: the line of the user's program that called an operation."""

from __future__ import annotations

import linecache
import os
import sys
import warnings
from collections.abc import Callable
from types import CodeType, FrameType

Site = tuple[CodeType, int]
"""A code object and the offset of an instruction in it. Turned into file and line in reports only: the
line of an instruction is found by a walk through a table, too slow to do once per operation."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMMANDS = _PACKAGE + "cli" + os.sep
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_CALLERS = (_LIBRARY + "multiprocessing" + os.sep, _LIBRARY + "contextlib.py")  # also used by our own calls
_inside: dict[str, bool] = {}  # source file -> True if it is Flambeau's own; a cache of a pure function
# source file -> True if it is the standard library's; a cache of a pure function
_standard: dict[str, bool] = {}
_shells: list[str] = []  # folders and files of an interactive shell, whose frames are not the program's
_cell_names: list[Callable[[str], str | None]] = []  # functions: source file -> name of the notebook cell


def caller(depth: int = 1) -> Site:
    """Return the call site of the user's program: the innermost frame outside this package.

    `depth` frames, including the caller of this function, are known to be inside and are skipped. In a thread with only
    frames of this package, the outermost one is returned.
    """
    known = _inside
    try:  # the fast path: this takes a third of the race detector's time
        frame = sys._getframe(depth + 1)
        code = frame.f_code
        while known[code.co_filename]:
            frame = frame.f_back  # type: ignore[assignment]
            code = frame.f_code
        return code, frame.f_lasti
    except (KeyError, AttributeError, ValueError):
        return _slow_caller(sys._getframe(1), depth)


def _slow_caller(frame: FrameType, depth: int) -> Site:
    """Return the call site if a file was not seen before, or if there are fewer frames than expected."""
    while (depth > 0 or is_inside(frame.f_code)) and frame.f_back is not None:
        frame = frame.f_back
        depth -= 1
    return frame.f_code, frame.f_lasti


def is_within(room: str) -> bool:
    """Return True if the program's current call goes through a package (room) of this library."""
    folder, frame = _PACKAGE + room + os.sep, sys._getframe(1)
    while frame.f_back is not None and is_inside(frame.f_code):
        if os.path.abspath(frame.f_code.co_filename).startswith(folder):
            return True
        frame = frame.f_back
    return False


def is_inside(code: CodeType) -> bool:
    """Return True if a code object is this package's own, or the standard library's for processes and context
    managers.
    """
    inside = _inside.get(code.co_filename)
    if inside is None:
        path = os.path.abspath(code.co_filename)
        inside = _inside[code.co_filename] = path.startswith((_PACKAGE, *_CALLERS, *_shells))
    return inside


def enter_shell(files: list[str], cell_name: Callable[[str], str | None]) -> None:
    """Attribute calls of an interactive shell to the program's cell, and name cells by their source files.

    Args:
        files: Folders and files of the shell.
        cell_name: Returns the name of the cell that a source file is, or None.
    """
    _shells.extend(files)
    _cell_names.append(cell_name)
    _inside.clear()


def leave_shell() -> None:
    """Undo `enter_shell`."""
    _shells.clear()
    _cell_names.clear()
    _inside.clear()


def is_package(code: CodeType) -> bool:
    """Return True if a code object is Flambeau's own."""
    return os.path.abspath(code.co_filename).startswith(_PACKAGE)


def is_standard(code: CodeType) -> bool:
    """Return True if a code object is the standard library's."""
    standard = _standard.get(code.co_filename)
    return is_standard_file(code.co_filename) if standard is None else standard


def is_standard_file(file: str) -> bool:
    """Return True if a source file is the standard library's."""
    standard = _standard.get(file)
    if standard is None:
        path = os.path.abspath(file)
        installed = f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path
        standard = (path.startswith(_LIBRARY) and not installed) or file.startswith("<frozen ")
        _standard[file] = standard
    return standard


def is_program(code: CodeType) -> bool:
    """Return True if a code object is neither Flambeau's nor the standard library's."""
    return not (is_standard(code) or is_inside(code))


def program_site() -> Site:
    """Return the program's line that is running now, outside of Flambeau and of the standard library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not is_program(frame.f_code):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def program_frame() -> FrameType:
    """Return the innermost frame of the user's program; the thread's outermost one where all are of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_inside(frame.f_code):
        frame = frame.f_back
    return frame


def thread_site(ident: int | None) -> Site | None:
    """Return the call site of the program that another thread is at; None if the thread has ended."""
    frame = None if ident is None else sys._current_frames().get(ident)
    while frame is not None and frame.f_back is not None and not is_program(frame.f_code):
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


def program_stack() -> list[str]:
    """Return the frames of the user's program as tracebacks show them, without those of a command that runs it."""
    import traceback  # imported here because few programs need it

    frames = traceback.extract_stack(program_frame())
    begins = [i + 1 for i, frame in enumerate(frames) if is_command(frame.filename)]
    return traceback.format_list(frames[begins[-1] if begins else 0 :])


def is_command(filename: str) -> bool:
    """Return True if a source file belongs to a command that runs programs, such as `flambeau run`."""
    return os.path.abspath(filename).startswith(_COMMANDS)


def warn_program(text: str, category: type[Warning]) -> None:
    """Issue a warning at the program's line, however deep in this package it arises."""
    frame = program_frame()
    # the registry by which a line is warned of once
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(
        text, category, frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__"), registry
    )


def line_of(site: Site) -> int:
    """Return the line number of a site."""
    code, offset = site
    found = code.co_firstlineno
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            found = line
    return found


def place(site: Site) -> str:
    """Return `train.py:14`, the place of a site."""
    return line_place(site[0].co_filename, line_of(site))


def line_place(path: str, line: int) -> str:
    """Return `train.py:14`: the file relative to the working directory, or its name alone if it lies elsewhere.

    In a notebook: `In [3], line 14`.
    """
    for cell_name in _cell_names:
        if name := cell_name(path):
            return f"{name}, line {line}"
    if os.path.isabs(path):
        below = os.path.relpath(path)
        path = os.path.basename(path) if below.startswith(os.pardir) else below
    return f"{path}:{line}"


def file_of(site: Site) -> str:
    """Return the absolute path of a site's file, or a name such as `<string>` where its code has none."""
    name = site[0].co_filename
    return name if name.startswith("<") else os.path.abspath(name)


def launched_at(site: Site | None) -> str:
    """Return the suffix of a device's error that names the line which launched the work; "" if it is unknown."""
    if site is None:
        return ""
    text = source(site)
    return f" It was launched at {place(site)}{f' ({text})' if text else ''}."


def source(site: Site) -> str:
    """Return the text of the line, stripped; empty where the file cannot be read."""
    return linecache.getline(site[0].co_filename, line_of(site)).strip()
