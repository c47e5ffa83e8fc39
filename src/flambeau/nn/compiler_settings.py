"""CompilerSettings of PyTorch's compilers: `torch._dynamo.config`, `torch._inductor.config`, `torch.compiler.config`.

Programs set and read them. They have no effect, because Flambeau runs compiled functions eagerly. Names, types and
defaults are PyTorch's (`compiler_settings.json`), so that a name that PyTorch lacks raises here, too.
"""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from contextlib import ContextDecorator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "tuple": tuple, "set": set}
_CONTAINERS: dict[str, Callable[[Any], Any]] = {"set": set, "tuple": tuple}


@cache
def settings_of(name: str) -> CompilerSettings:
    """Return the settings of one of PyTorch's modules.

    Args:
        name: "torch._dynamo.config", "torch._inductor.config" or "torch.compiler.config".
    """
    return CompilerSettings(name, _read_table()[name])


@cache
def _read_table() -> dict[str, dict[str, Any]]:
    table: dict[str, dict[str, Any]] = json.loads(
        Path(__file__).with_name("compiler_settings.json").read_text()
    )
    return table


class CompilerSettings:
    """The values of one configuration module, by name; "triton.cudagraphs" is the name of a nested one."""

    def __init__(self, name: str, table: dict[str, Any]) -> None:
        self.name = name
        self._aliases = {k: entry["alias"] for k, entry in table.items() if isinstance(entry, dict)}
        self._types = {k: entry[0] for k, entry in table.items() if not isinstance(entry, dict)}
        self._values = {k: _default(entry[1]) for k, entry in table.items() if not isinstance(entry, dict)}
        self._defaults = copy.deepcopy(self._values)
        self.groups = {k.partition(".")[0] for k in self._types if "." in k}

    def get(self, key: str) -> Any:
        """Return the value of a setting.

        Raises:
            AttributeError: If PyTorch has no setting of this name.
        """
        settings, key = self._resolve(key)
        return settings._values[key]

    def set(self, key: str, value: Any) -> None:
        """Store the value of a setting.

        Raises:
            AttributeError: If PyTorch has no setting of this name.
        """
        settings, key = self._resolve(key)
        settings._values[key] = value

    def reset(self, key: str) -> None:
        """Restore the default value of a setting."""
        settings, key = self._resolve(key)
        settings._values[key] = copy.deepcopy(settings._defaults[key])

    def _resolve(self, key: str) -> tuple[CompilerSettings, str]:
        if key in self._aliases:
            module, _, key = self._aliases[key].rpartition(".")
            return settings_of(module)._resolve(key)
        if key not in self._values:
            raise AttributeError(f"{self.name}.{key} does not exist")
        return self, key

    def type_of(self, key: str) -> type | None:
        """Return the class that values of a setting must have; None if PyTorch does not check it."""
        return _TYPES.get(self._types[key])

    def copy(self) -> dict[str, Any]:
        """Return a copy of all values by name, without aliases."""
        return copy.deepcopy(self._values)

    def load(self, values: dict[str, Any]) -> None:
        """Store the values of `copy()`; names that PyTorch lacks are ignored, as by PyTorch."""
        for key, value in values.items():
            if key in self._values or key in self._aliases:
                self.set(key, value)


def _default(value: Any) -> Any:
    """Return a default of the table, in which `{"set": [...]}` represents a set."""
    if isinstance(value, dict) and value.keys() & _CONTAINERS.keys():
        ((kind, items),) = value.items()
        return _CONTAINERS[kind](items)
    return value


class SettingsModule(ModuleType):
    """A configuration module: its attributes are settings."""

    def __getattr__(self, name: str) -> Any:
        settings: CompilerSettings = self.__dict__["_settings"]
        if name in settings.groups:
            return SettingsGroup(settings, name)
        return settings.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("__") or name in self.__dict__:
            super().__setattr__(name, value)
        else:
            self.__dict__["_settings"].set(name, value)

    def __delattr__(self, name: str) -> None:
        self.__dict__["_settings"].reset(name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self._settings.copy() if "." not in name)]

    def patch(self, arg1: str | dict[str, Any] | None = None, arg2: Any = None, **kwargs: Any) -> Patch:
        """Return a decorator and context manager that changes settings and restores them.

        Args:
            arg1: The name of a setting, or a dict of names and values.
            arg2: The value, if `arg1` is a name.
            kwargs: Names and values, if `arg1` is None.

        Raises:
            AssertionError: If these forms are mixed.
        """
        return Patch(self.__dict__["_settings"], _changes(arg1, arg2, kwargs))

    def get_config_copy(self) -> dict[str, Any]:
        """Return a copy of all settings by name."""
        return self._settings.copy()  # type: ignore[no-any-return]

    def save_config(self) -> bytes:
        """Return all settings as a pickle for `load_config`."""
        return pickle.dumps(self._settings.copy(), protocol=2)

    def load_config(self, maybe_pickled_config: bytes | dict[str, Any]) -> None:
        """Store settings that `save_config` or `get_config_copy` returned."""
        is_dict = isinstance(maybe_pickled_config, dict)
        self._settings.load(maybe_pickled_config if is_dict else pickle.loads(maybe_pickled_config))


class SettingsGroup:
    """A part of the settings with a common prefix, such as `torch._inductor.config.triton`."""

    def __init__(self, settings: CompilerSettings, prefix: str) -> None:
        self.__dict__.update(_settings=settings, _prefix=prefix)

    def __getattr__(self, name: str) -> Any:
        return self._settings.get(f"{self._prefix}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._settings.set(f"{self._prefix}.{name}", value)

    def __delattr__(self, name: str) -> None:
        self._settings.reset(f"{self._prefix}.{name}")


class Patch(ContextDecorator):
    """A temporary change of settings.

    Attributes:
        changes: The new values by name.
    """

    def __init__(self, settings: CompilerSettings, changes: dict[str, Any]) -> None:
        self.changes = changes
        self._settings = settings
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._before.append({key: self._settings.get(key) for key in self.changes})
        self._settings.load(self.changes)

    def __exit__(self, *exception: object) -> None:
        self._settings.load(self._before.pop())


def _changes(arg1: Any, arg2: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    if arg1 is None:
        if arg2 is not None:
            raise AssertionError(
                "second positional argument is only valid when first argument is a key string"
            )
        return kwargs
    if arg2 is not None and not isinstance(arg1, str):
        raise AssertionError("first argument must be a string when passing 2 positional args to patch")
    if arg2 is None and not isinstance(arg1, dict):
        raise AssertionError("first argument must be a dict when passing a single positional arg to patch")
    if kwargs:
        raise AssertionError("cannot pass both positional and keyword arguments to patch")
    return arg1 if arg2 is None else {arg1: arg2}
