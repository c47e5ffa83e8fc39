"""torch.utils.weak: dictionaries whose keys are held weakly and compared by identity."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Generic, TypeVar

from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.tensor import Tensor

__all__ = ["TensorWeakRef", "WeakIdKeyDictionary", "WeakIdRef", "WeakTensorKeyDictionary"]

explain_absent_names(globals(), "torch.utils.weak")
V = TypeVar("V")
_MISSING: Any = object()


class WeakIdRef(weakref.ref[Any]):
    """A weak reference that is equal to another one of the same object, and whose hash is the object's identity."""

    __slots__ = ("_id",)

    _id: int

    def __init__(self, key: Any, callback: Callable[[Any], Any] | None = None) -> None:
        super().__init__(key, callback)
        self._id = id(key)

    def __call__(self) -> Any:
        """Return the object, None if it was collected."""
        return super().__call__()

    def __hash__(self) -> int:
        return self._id

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeakIdRef):
            return NotImplemented
        mine, theirs = self(), other()
        return self is other if mine is None or theirs is None else mine is theirs


class TensorWeakRef:
    """A weak reference to a tensor.

    Args:
        tensor: The tensor.

    Raises:
        AssertionError: If `tensor` is not a Tensor.
    """

    ref: WeakIdRef

    def __init__(self, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            raise AssertionError(f"expected torch.Tensor, got {type(tensor)}.")
        self.ref = WeakIdRef(tensor)

    def __call__(self) -> Tensor | None:
        """Return the tensor, None if it was collected."""
        found: Tensor | None = self.ref()
        return found


class WeakIdKeyDictionary(MutableMapping[Any, V], Generic[V]):
    """A dictionary of objects by identity, which loses an entry when the object of its key is collected.

    Args:
        dict: Entries to begin with.
        ref_type: Class of the references to keys.
    """

    def __init__(self, dict: Any = None, ref_type: type[WeakIdRef] = WeakIdRef) -> None:
        entries: dict_of_refs[V] = {}
        self.data = entries
        self.ref_type = ref_type

        def remove(ref: WeakIdRef, data: dict_of_refs[V] = entries) -> None:
            data.pop(ref, None)

        self._remove = remove
        if dict is not None:
            self.update(dict)

    def __getitem__(self, key: Any) -> V:
        return self.data[self.ref_type(key)]

    def __setitem__(self, key: Any, value: V) -> None:
        self.data[self.ref_type(key, self._remove)] = value

    def __delitem__(self, key: Any) -> None:
        del self.data[self.ref_type(key)]

    def __contains__(self, key: object) -> bool:
        try:
            return self.ref_type(key) in self.data
        except TypeError:  # the object cannot be referred to weakly
            return False

    def __iter__(self) -> Iterator[Any]:
        for ref in list(self.data):
            key = ref()
            if key is not None:
                yield key

    def __len__(self) -> int:
        return sum(ref() is not None for ref in list(self.data))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {id(self):#x}>"

    def keyrefs(self) -> list[WeakIdRef]:
        """Return the references to keys; some objects may be collected meanwhile."""
        return list(self.data)

    def copy(self) -> WeakIdKeyDictionary[V]:
        """Return another dictionary with the same entries."""
        return WeakIdKeyDictionary(self, self.ref_type)

    __copy__ = copy

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, WeakIdKeyDictionary):
            return NotImplemented
        return self.data == other.data

    __hash__ = None  # type: ignore[assignment]


dict_of_refs = dict[WeakIdRef, V]
WeakTensorKeyDictionary = WeakIdKeyDictionary
