"""torch.torch_version: version strings that compare with versions and with tuples of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["TorchVersion"]

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)[._-]?(?:(a|alpha|b|beta|rc|dev|post)\.?(\d*))?[^+]*(\+.*)?$")
_PHASES = {"dev": -4, "a": -3, "alpha": -3, "b": -2, "beta": -2, "rc": -1, None: 0, "post": 1}


def _sort_key(version: Any) -> tuple[Any, ...] | None:
    """Return what versions are ordered by; None for text that is not a version."""
    text = str(version) if isinstance(version, str) or not isinstance(version, Iterable) else None
    found = _VERSION.match(".".join(map(str, version)) if text is None else text)
    if found is None:
        return None
    release, phase, number, local = found.groups()
    numbers = [int(part) for part in release.split(".")]
    while numbers and not numbers[-1]:
        del numbers[-1]
    return tuple(numbers), _PHASES[phase], int(number or 0), local or ""


class TorchVersion(str):
    """A version string that compares with strings, `packaging` versions and tuples: `torch.__version__ >= (2, 1)`.

    Text that is not a version compares as a string.
    """

    __slots__ = ()

    def _compare(self, other: Any, method: str) -> Any:
        mine, its = _sort_key(str(self)), _sort_key(other)
        if mine is None or its is None:
            return getattr(str, method)(self, other)
        return getattr(mine, method)(its)

    def __eq__(self, other: object) -> Any:
        return self._compare(other, "__eq__")

    def __ne__(self, other: object) -> Any:
        return not self == other

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, "__lt__")

    def __le__(self, other: Any) -> Any:
        return self._compare(other, "__le__")

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, "__gt__")

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, "__ge__")

    __hash__ = str.__hash__
