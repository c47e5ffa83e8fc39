"""PyTorch's modules that exist only to be imported, and such names of other modules: every use of a name raises.

names.txt lists them, in the words of PyTorch; tools/absent_modules.py writes it. A block is the name of a
module and lines of names: "class", "error" (a class of exceptions) and "def" name what raises when it is used, "from"
names what another module has, and "NAME = 1" is a constant.
"""

from __future__ import annotations

import sys
from ast import literal_eval
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.absent_names import advice_for_module
from flambeau.core.public_names import lacking


@cache
def read_blocks() -> dict[str, str]:
    """Return the lines of each module of names.txt: module -> lines of names."""
    blocks = Path(__file__).with_name("names.txt").read_text().rstrip("\n").split("\n\n")
    return {module: lines for module, _, lines in (block.partition("\n") for block in blocks)}


@cache
def read_names(module: str) -> dict[str, tuple[str, str]]:
    """Return the names that a module is listed with: name -> kind, and the value or the module that has the name.

    Args:
        module: PyTorch's name of the module.
    """
    names = {}
    for line in read_blocks().get(module, "").splitlines():
        kind, _, rest = line.partition(" ")
        if rest.startswith("= "):
            names[kind] = ("=", rest[2:])
        elif kind == "from":
            owner, _, rest = rest.partition(": ")
            names |= dict.fromkeys(rest.split(), (kind, owner))
        else:
            names |= dict.fromkeys(rest.split(), (kind, module))
    return names


def find_absent(module: str, name: str) -> Any:
    """Return what stands for a name of a module, which may be a module; None if the table lists no such name.

    Args:
        module: PyTorch's name of the module.
        name: The name.
    """
    real = f"flambeau{module.removeprefix('torch')}"
    if name not in read_names(module):
        child = f"{real}.{name}"
        return import_module(child) if f"{module}.{name}" in read_blocks() else None
    kind, value = read_names(module)[name]
    advice = f"{advice_for_module(module)}."
    if kind == "from":
        owner = f"flambeau{value.removeprefix('torch')}"
        found = getattr(import_module(owner), name)
    elif kind == "=":
        found = literal_eval(value)
    elif kind == "def":
        found = absent_function(module, name, advice)
    else:
        found = absent_class(module, name, advice, *((Exception,) if kind == "error" else ()))
    setattr(sys.modules[real], name, found)
    return found


def spec_of(fullname: str) -> ModuleSpec | None:
    """Return the spec of a module that the table lists, by Flambeau's name of it; None if it lists none."""
    if f"torch{fullname.removeprefix('flambeau')}" not in read_blocks():
        return None
    return ModuleSpec(fullname, cast(Any, AbsentLoader()), is_package=True)


class AbsentLoader:
    """A loader of modules whose names raise when they are used."""

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None: the import system creates an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        name = f"torch{module.__name__.removeprefix('flambeau')}"
        module.__doc__ = f"{name}: names that can be imported; using one raises NotSupportedError."
        module.__dict__["__all__"] = [each for each in read_names(name) if each[0] != "_"]
        module.__dict__["__getattr__"] = lacking(name)
