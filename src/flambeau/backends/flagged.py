"""`FlaggedModule`: a module some of whose attributes are process-wide flags."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from flambeau.core.flags import flags


class Flag:
    """An attribute that reads and sets the boolean flag `name`. RuntimeError: it is set to something else."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        return self if owner is None else getattr(flags, self._name)

    def __set__(self, owner: object, value: Any) -> None:
        if not isinstance(value, bool):
            raise RuntimeError(f"{self._name} expects a bool, but got {type(value).__name__}")
        setattr(flags, self._name, value)


class FlaggedModule(ModuleType):
    """A module that knows its attributes: getting or setting another raises AttributeError.

    A misspelt flag would otherwise be set and change nothing.
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
