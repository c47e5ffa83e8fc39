"""`FlaggedModule`: a module some of whose attributes are process-wide flags."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from flambeau.core.flags import flags


class Flag:
    """An attribute that reads and sets the flag `name` of a type. `setter` is PyTorch's setter, for errors.

    Raises:
        RuntimeError: If the value has another type.
    """

    def __init__(self, name: str, setter: str, kind: type = bool) -> None:
        self._name = name
        self._setter = setter
        self.kind = kind

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else getattr(flags, self._name)

    def __set__(self, owner: object, value: Any) -> None:
        self.check(value)
        setattr(flags, self._name, value)

    def check(self, value: Any) -> None:
        """Raise RuntimeError if a value does not have the flag's type."""
        if type(value) is not self.kind:
            wanted = "an int" if self.kind is int else "a bool"
            raise RuntimeError(f"{self._setter} expects {wanted}, but got {type(value).__name__}")


class Attributes:
    """An object that has only the attributes of its class; getting or setting another one raises AttributeError."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(vars(type(self)).get(name), "__set__"):
            raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")
        object.__setattr__(self, name, value)


class FlaggedModule(ModuleType):
    """A module with a fixed set of attributes; getting or setting another one raises AttributeError.

    Otherwise a misspelled flag would be set without any effect.
    """

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_unknown(self.__name__, name))

    def __setattr__(self, name: str, value: Any) -> None:
        known = name.startswith("__") or name in type(self).__dict__ or isinstance(value, ModuleType)
        if not known:
            raise AttributeError(_unknown(self.__name__, name))
        super().__setattr__(name, value)


def _unknown(module: str, name: str) -> str:
    public = module.replace("flambeau", "torch", 1)
    return f"module '{public}' has no attribute '{name}': Flambeau lacks it (PyTorch may have it)"
