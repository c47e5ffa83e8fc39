"""`FrameScope`: a running frame of the program, searched for expressions that refer to a stream.

No code of the program is called: attributes are read from the dictionaries and slots of instances, never
through properties.

# Note [Locals of a frame] Before Python 3.13 `frame.f_locals` copies a function's variables into a
dictionary that the frame keeps. It would keep tensors alive that the function drops later, so the
dictionary is copied and emptied.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator
from functools import cached_property
from types import FrameType, FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from flambeau.core.callsite import Site, is_command, is_inside, program_frame
from flambeau.observe.reporting.spots import is_comprehension, is_simple, spot_of

_DEPTH, _ITEMS, _VALUES = 2, 4_096, 10_000  # limits of a search: depth, items of a container, values
_FOREIGN = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
_PACKAGES = ("flambeau", "torch")
_PLAIN = (type, FunctionType, str, bytes, int, float)  # values that hold no streams

Wanted = Callable[[Any], bool]


class FrameScope:
    """One frame of the program's stack, valid while a race is reported. It must not be kept.

    Attributes:
        site: Its position, at present or when it issued the second access.
        spot: The position in its text; None if the text cannot be read, or belongs to a library.
    """

    def __init__(self, frame: FrameType | None, site: Site) -> None:
        self._frame = frame
        self.site = site
        self.spot = spot_of(site) if is_own_file(site[0].co_filename) else None
        self.globals = frame.f_globals if frame is not None else {}
        if self.spot is not None and not self.spot.source.names_torch:
            self.spot.source.names_torch = _names_torch(self.globals)
        self.is_function = bool(site[0].co_flags & inspect.CO_OPTIMIZED)

    @property
    def is_live(self) -> bool:
        """Return True if the frame still runs, so that its variables can be read."""
        return self._frame is not None

    @cached_property
    def locals(self) -> dict[str, Any]:
        """Return the frame's variables; see Note [Locals of a frame]."""
        if self._frame is None:
            return {}
        held = self._frame.f_locals
        found = dict(held)
        if self.is_function and sys.version_info < (3, 13):
            held.clear()
        return found

    def value_of(self, node: ast.expr) -> Any:
        """Return the value of a simple expression in this scope.

        Raises:
            LookupError: If it has none.
        """
        if isinstance(node, ast.Name):
            return self.locals[node.id] if node.id in self.locals else self.globals[node.id]
        if isinstance(node, ast.Attribute):
            return attributes(self.value_of(node.value))[node.attr]
        if isinstance(node, ast.Subscript) and is_simple(node):
            holder = self.value_of(node.value)
            key = (
                self.value_of(node.slice)
                if isinstance(node.slice, ast.Name)
                else ast.literal_eval(node.slice)
            )
            if type(holder) in (list, tuple, dict):
                return holder[key]
        raise LookupError(ast.unparse(node))

    def names_of(self, wanted: Wanted) -> Iterator[str]:
        """Yield expressions for a value: those with fewer parts first, and among these local before global
        ones.
        """
        seen: set[int] = set()
        level = [(name, value) for name, value in self.locals.items() if self._is_bound(name)]
        if self.is_function:
            level += [(name, value) for name, value in self.globals.items() if name not in self.locals]
        level = [(name, value) for name, value in level if _is_given_by_a_person(name)]
        for depth in range(_DEPTH + 1):
            yield from [text for text, value in level if wanted(value)]
            if depth < _DEPTH:
                level = [pair for text, value in level for pair in _parts(text, value, seen)][:_VALUES]

    def _is_bound(self, name: str) -> bool:
        return self.spot is not None and self.spot.is_bound(name, self.site[0])


def _names_torch(names: dict[str, Any]) -> list[str]:
    """Return the names of `torch` in a file that does not import it, such as a cell of a notebook."""
    return [
        name for name, value in names.items() if isinstance(value, ModuleType) and value.__name__ in _PACKAGES
    ]


def is_own_file(path: str) -> bool:
    """Return True if a file belongs to the program, and not to a library or a command that runs programs."""
    return not path.startswith(_FOREIGN) and "site-packages" not in path and not is_command(path)


def live_scopes(second: Site | None = None) -> Iterator[FrameScope]:
    """Yield the program's frames of this thread, innermost first, without those of comprehensions.

    Args:
        second: The former call site of a frame that has moved on since.
    """
    frame: FrameType | None = program_frame()
    while frame is not None:
        if not is_inside(frame.f_code) and not is_comprehension(frame.f_code):
            is_second = second is not None and second[0] is frame.f_code
            yield FrameScope(
                frame, second if second is not None and is_second else (frame.f_code, frame.f_lasti)
            )
        frame = frame.f_back


def attributes(value: Any) -> dict[str, Any]:
    """Return an instance's attributes by name, without running its code. Submodules are attributes, too."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except (AttributeError, TypeError):
        found = {}
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if isinstance(member, MemberDescriptorType) and not name.startswith("__"):
                try:
                    found.setdefault(name, member.__get__(value))
                except AttributeError:  # an empty slot
                    continue
    submodules = found.pop("_modules", None)
    if type(submodules) is dict:
        found.update(submodules)
    return found


def has_method(value: Any, name: str) -> bool:
    """Return True if an instance's class, or a base of it, defines a name."""
    return any(name in vars(kind) for kind in type(value).__mro__)


def _is_given_by_a_person(name: str) -> bool:
    """Return True for names that the program's author chose: not `__builtins__`, nor an interpreter's `_`, `_1`,
    `.0`.
    """
    return name.isidentifier() and not name.startswith("__") and bool(name.strip("_0123456789"))


def _parts(text: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the items of a container, or the attributes of an instance: (expression, value)."""
    if id(value) in seen or isinstance(value, _PLAIN):
        return
    seen.add(id(value))
    if type(value) in (list, tuple):
        yield from [(f"{text}[{i}]", item) for i, item in enumerate(value[:_ITEMS])]
    elif type(value) is dict:
        items = list(value.items())[:_ITEMS]
        yield from [(f"{text}[{key!r}]", item) for key, item in items if type(key) in (int, str)]
    else:
        private = text in ("self", "cls")
        for name, item in _public(value).items():
            if name.isidentifier() and (private or not name.startswith("_")):
                yield f"{text}.{name}", item


def _public(value: Any) -> dict[str, Any]:
    """Return the attributes of an instance or module that the program set; for Flambeau's own instances, the
    submodules.
    """
    if isinstance(value, ModuleType):
        path = getattr(value, "__file__", None) or ""
        own = path and is_own_file(path) and value.__name__.partition(".")[0] not in _PACKAGES
        return vars(value) if own else {}
    if type(value).__module__.partition(".")[0] not in _PACKAGES:
        return attributes(value)
    submodules = getattr(value, "__dict__", {}).get("_modules")
    return submodules if type(submodules) is dict else {}
