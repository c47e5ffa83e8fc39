"""The types that the program declared safe to load: `add_safe_globals` and related functions. Owner of that list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_declared: dict[str, Any] = {}  # by full name


def add_safe_globals(safe_globals: Iterable[Any]) -> None:
    """Let `torch.load(weights_only=True)` use these functions and types, as far as it needs them.

    Each is a thing, or a pair of a thing and the full name that checkpoints have for it. Calling it, making
    objects of it and setting their attributes is then allowed: declare only what you trust with any arguments.
    """
    _declared.update(_name_and_value(one) for one in safe_globals)


def get_safe_globals() -> list[Any]:
    """Return the functions and types that are declared safe now."""
    return [thing if full == _full_name(thing) else (thing, full) for full, thing in _declared.items()]


def clear_safe_globals() -> None:
    """Declare nothing safe any more."""
    _declared.clear()


class safe_globals:  # PyTorch's public name
    """A context manager in which these functions and types are declared safe."""

    def __init__(self, safe_globals: Iterable[Any]) -> None:
        self._things = list(safe_globals)
        self._outer: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._outer.append(dict(_declared))
        add_safe_globals(self._things)

    def __exit__(self, *error: object) -> None:
        _declared.clear()
        _declared.update(self._outer.pop())


def declared_globals() -> dict[str, Any]:
    """Return the declared things by full name."""
    return _declared


def _name_and_value(one: Any) -> tuple[str, Any]:
    if not isinstance(one, tuple):
        return _full_name(one), one
    if len(one) != 2 or not isinstance(one[1], str):
        raise ValueError(f"Expected a tuple of a thing and its full name, a str, but got {one!r}")
    return one[1], one[0]


def _full_name(thing: Any) -> str:
    try:
        return f"{thing.__module__}.{thing.__qualname__}"
    except AttributeError:
        raise TypeError(
            f"add_safe_globals takes functions and classes, not {thing!r}: it has no name"
        ) from None
