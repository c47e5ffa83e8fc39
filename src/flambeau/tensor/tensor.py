"""`Tensor`: a meta over a storage. Its methods live beside what they do, bound by `public.method`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.tensor.storage import Storage


class Counter(Protocol):
    """Counts in-place changes. A tensor shares its storage's, but for `.data`, which has its own."""

    version: int


class Tensor:
    """A strided array of one dtype on one device.

    `meta` says all but the bytes: the storage `memory` holds them, `ptr` is the address of the first element.
    """

    __slots__ = ("__dict__", "__weakref__", "base", "counter", "memory", "meta", "ptr")

    meta: Meta
    memory: Storage
    ptr: int
    counter: Counter
    base: Tensor | None  # the tensor that this is a view of

    if TYPE_CHECKING:  # most methods are bound by tensor/public.py

        def __add__(self, other: Any) -> Any: ...
        def __lt__(self, other: Any) -> Any: ...

    @property
    def dtype(self) -> dtype:
        """The element type."""
        return self.meta.dtype

    @property
    def device(self) -> device:
        """Where the tensor lies; always with an index on CUDA."""
        return self.meta.device

    @property
    def ndim(self) -> int:
        return self.meta.ndim

    def __getattr__(self, name: str) -> Any:
        """Called for names that are nowhere, and for properties that raise AttributeError: these say why themselves."""
        there = getattr(type(self), name, None)
        if isinstance(there, property) and there.fget is not None:
            return there.fget(self)
        raise AttributeError(
            f"'Tensor' object has no attribute '{name}': Flambeau lacks it (PyTorch may have it)"
        )

    @property
    def _version(self) -> int:
        return self.counter.version

    def dim(self) -> int:
        return self.meta.ndim

    def numel(self) -> int:
        """How many elements it has."""
        return self.meta.numel

    def element_size(self) -> int:
        """Bytes per element."""
        return self.meta.itemsize

    def data_ptr(self) -> int:
        """The address of the first element: a simulated one on virtual GPUs."""
        return self.ptr

    def storage_offset(self) -> int:
        """Elements from the storage's start to the first element."""
        return (self.ptr - self.memory.ptr) // self.meta.itemsize


new_object = object.__new__


def make(meta: Meta, storage: Storage, ptr: int) -> Tensor:
    """A tensor over a storage. What every creation ends in."""
    self = new_object(Tensor)
    self.meta = meta
    self.memory = storage
    self.ptr = ptr
    self.counter = storage
    self.base = None
    return self


def view_of(base: Tensor, meta: Meta, ptr: int) -> Tensor:
    """A view: another meta over the same storage, sharing the version counter."""
    self = new_object(Tensor)
    self.meta = meta
    self.memory = base.memory
    self.ptr = ptr
    self.counter = base.counter
    self.base = base if base.base is None else base.base
    return self
