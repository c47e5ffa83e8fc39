"""`RemovableHandle`: the result of registering a hook, which removes the hook."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

_ids = itertools.count()


class RemovableHandle:
    """A handle that removes a hook from its `OrderedDict`, by `remove()` or at the end of a `with` block.

    Args:
        hooks_dict: Id -> hook. Only a weak reference to the dict is kept.
        extra_dict: One or several dicts that have the id as a key, too.
    """

    __slots__ = ("__weakref__", "_dicts", "id")

    def __init__(self, hooks_dict: Any, *, extra_dict: Any = None) -> None:
        extra: Sequence[Any] = (
            extra_dict if isinstance(extra_dict, list) else [extra_dict] * (extra_dict is not None)
        )
        self._dicts = [weakref.ref(d) for d in (hooks_dict, *extra)]
        self.id = next(_ids)

    def remove(self) -> None:
        """Remove the hook. The call is idempotent."""
        for reference in self._dicts:
            found = reference()
            if found is not None:
                found.pop(self.id, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def __getstate__(self) -> tuple[Any, int]:
        return [reference() for reference in self._dicts], self.id

    def __setstate__(self, state: tuple[Any, int]) -> None:
        dicts, self.id = state
        self._dicts = [weakref.ref(OrderedDict() if d is None else d) for d in dicts]
