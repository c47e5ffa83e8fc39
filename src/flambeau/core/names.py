"""What public things say of themselves: the module that shows them; what they answer to an absent name, to who copies.

# Note [Where a class says it is from]
Classes and functions are written in rooms that programs do not know, and shown in modules that they do. Reprs,
tracebacks and pickles go by `__module__`, so that is the public module: `flambeau.cuda`, from which a pickle leads
back. Where `torch` is Flambeau (`flambeau run`) it is `torch.cuda`, as in PyTorch: see cli/import_hook.py. Elsewhere
it is not, for PyTorch itself may lie beside, and `torch.Size` would name its class, not ours.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import unwrap
from types import FunctionType
from typing import Any, NoReturn

# The rooms that programs do not name.
_INNER = {"core", "data", "driver", "observe", "ops", "runtime", "tape", "tensor"}


def publish(namespace: dict[str, Any]) -> None:
    """Let the classes and functions of inner rooms that this public module shows say that they are its own.

    So do functions to which what they say does not lead: they have other names within, or one was put around them.
    """
    for name, value in namespace.items():
        if isinstance(value, type | FunctionType) and value.__name__ == name and is_inner(value.__module__):
            value.__module__ = namespace["__name__"]
            if isinstance(value, type) and "__annotations__" in value.__dict__:
                value.__annotations__ = {}  # `typing.get_type_hints` would look for their names in the public module
        if isinstance(value, FunctionType) and name[0] != "_" and not _leads_back(value):
            value.__module__, value.__qualname__ = namespace["__name__"], name
            within = unwrap(value)
            if within.__qualname__[0] == "_":
                within.__qualname__ = name  # which errors name


def _leads_back(value: FunctionType) -> bool:
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # as it is: a module may import what is asked for
    return found is value


def is_inner(module: str) -> bool:
    """Whether a dotted name is of a room of Flambeau's that programs do not name."""
    package, _, rest = module.partition(".")
    return package == "flambeau" and rest.partition(".")[0] in _INNER


def lacking(module: str) -> Callable[[str], Any]:
    """`__getattr__` of a public module: AttributeError, so that `hasattr` is False, with the one who lacks it."""

    def absent(name: str) -> NoReturn:
        raise AttributeError(
            f"module '{module}' has no attribute '{name}': Flambeau lacks it (PyTorch may have it)", name=name
        )

    return absent


def not_copied(self: object, protocol: int) -> NoReturn:
    """`__reduce_ex__` of a class whose objects each own something of a device's: a copy would end it for both."""
    raise TypeError(f"cannot pickle '{type(self).__name__}' object")


def lacks(self: object, name: str) -> NoReturn:
    """The same of a public class."""
    raise AttributeError(
        f"'{type(self).__name__}' object has no attribute '{name}': Flambeau lacks it (PyTorch may have it)",
        name=name,
        obj=self,
    )
