"""`OutlineReader`: finds the storages that a pickle names, without making anything else.

# Note [Storages behind their tensors]
In PyTorch's older format the bytes of storages follow the pickle of the tensors. The indices of a sparse tensor are
checked when it is rebuilt, and the elements of a conjugate are read then. So the pickle is read twice: first for the
storages alone, and for its tensors when the storages have their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.ipc.pickle_reader import PickleReader
from flambeau.serialization import pickle_names


class _Inert:
    """An object that represents everything a pickle creates. It accepts all operations and does nothing."""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Inert:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> _Inert:
        return self

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    append = extend = add = __setstate__


def find_storage_class(module: Any, name: Any) -> Any:
    """Return a class of storages or a dtype; for other names a class whose instances do nothing."""
    are_texts = type(module) is str and type(name) is str
    return pickle_names.VALUES.get((module, name), _Inert) if are_texts else _Inert


class OutlineReader(PickleReader):
    """A reader of a pickle that works in proportion to the pickle's size and calls nothing."""

    def __init__(self, persistent_load: Callable[[Any], Any], nbytes: int, encoding: str) -> None:
        super().__init__(nbytes, encoding)
        self._persistent_load = persistent_load

    def persistent_load(self, pid: Any) -> Any:
        return self._persistent_load(pid)

    def _is_list(self, target: Any) -> bool:
        return type(target) in (list, _Inert)

    def _is_dict(self, target: Any) -> bool:
        return type(target) in (dict, _Inert)

    def _global(self, module: Any, name: Any) -> None:
        self._push(find_storage_class(module, name))

    def _reduce(self) -> None:
        self._stack[-2:] = [_Inert()]

    _new = _reduce

    def _build(self) -> None:
        self._pop()
