"""`Tensor`: a meta over a storage. Its methods are defined in other modules and bound by `public.method`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.core.public_names import absence
from flambeau.tape.autograd_node import Node
from flambeau.tensor.storage import DeferredStorage, Storage, is_pending
from flambeau.tensor.tensor_core import Counter as Counter
from flambeau.tensor.tensor_core import TensorCore, use_classes
from flambeau.tensor.tensor_core import make as make
from flambeau.tensor.tensor_core import make_in as make_in
from flambeau.tensor.tensor_core import new_tensor as new_tensor

Steps = tuple[Any, Any, tuple[Any, ...]] | None
"""The derivation of a view from its base: (the steps before, view record, params)."""


if TYPE_CHECKING:  # the methods that tensor/arguments/public.py binds
    from flambeau.tensor.tensor_methods import TensorMethods
else:
    TensorMethods = object


NO_GRAD, INFERENCE, SEVERAL, CUSTOM = "no_grad", "inference", "several", "custom"
"""Views that may not be changed in place on the tape: made while nothing was recorded (and `inference_mode`), one of
several outputs of a node, or of a custom Function."""


class AutogradMeta:
    """The autograd state of a tensor. Views have a `ViewMeta`.

    Attributes:
        node, index: The tensor is output number `index` of `node`; None if it requires no gradient.
        former_leaf: The leaf that the tensor was before, with its hooks.
    """

    __slots__ = ("former_leaf", "index", "node")

    base: Tensor | None = None
    steps: Steps = None
    base_node: Node | None = None
    restriction: str | None = None
    version: int = 0

    def __init__(self, node: Node | None, index: int = 0) -> None:
        self.node = node
        self.index = index


class ViewMeta(AutogradMeta):
    """The autograd state of a view, created in tensor/autograd/autograd_meta.py.

    Attributes:
        base, steps: The base, and the view operations that lead from it to the view.
        base_node: The node of `base` when `node` was created. If the base has another node now, it was changed in place
            and `node` is out of date.
        restriction: How the view was created, if it must not be changed in place in the autograd graph.
        version: The version count of the memory when `node` was created.
    """

    __slots__ = ("base", "base_node", "restriction", "steps", "version")


class Tensor(TensorCore, TensorMethods):
    """A strided array of one dtype on one device.

    Attributes:
        meta: Shape, strides, dtype and device.
        memory: The storage, which holds the bytes.
        ptr: The address of the first element.
        history: The autograd state; None for most tensors.
    """

    __slots__ = ("__dict__", "__weakref__")

    meta: Meta
    memory: Storage
    ptr: int
    counter: Counter
    history: AutogradMeta | None

    @property
    def dtype(self) -> dtype:
        """Return the element type."""
        return self.meta.dtype

    @property
    def device(self) -> device:
        """Return the device of the tensor; a CUDA device always has an index."""
        return self.meta.device

    @property
    def ndim(self) -> int:
        return self.meta.ndim

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            """Return the address of a deferred result. Raise for absent names, and for properties that raise
            AttributeError: these say why themselves.
            """
            if name == "ptr" and isinstance(self.memory, DeferredStorage):
                self.ptr = ptr = self.memory.ptr + self.deferred_offset
                return ptr
            there = getattr(type(self), name, None)
            if isinstance(there, property) and there.fget is not None:
                return there.fget(self)
            raise absence(f"'{type(self).__name__}' object has no attribute '{name}'", name, type(self))

    @property
    def base(self) -> Tensor | None:
        """Return the tensor that this is a view of."""
        return self.history.base if self.history is not None else None

    @property
    def _version(self) -> int:
        version = self.counter.version
        if version < 0:
            raise RuntimeError("Inference tensors do not track version counter.")
        return version

    def dim(self) -> int:
        """Return the number of dimensions."""
        return self.meta.ndim

    def numel(self) -> int:
        """Return how many elements it has."""
        return self.meta.numel

    def element_size(self) -> int:
        """Return bytes per element."""
        return self.meta.itemsize

    def data_ptr(self) -> int:
        """Return the address of the first element: a simulated one on virtual GPUs."""
        self.memory.expose()  # who knows it may use it on any stream, and of the CPU's memory at any time
        return self.ptr

    def storage_offset(self) -> int:
        """Return elements from the storage's start to the first element."""
        if self.meta.sparse:
            return 0
        return (self.ptr - self.memory.ptr) // self.meta.itemsize


use_classes(Tensor, Storage)
new_object = object.__new__


def as_type(t: Tensor, kind: type[Any]) -> Any:
    """Return `t`, which must be new and not a leaf, as an instance of a subclass."""
    self = new_tensor(kind)
    self.meta, self.memory, self.ptr = t.meta, t.memory, t.ptr
    self.counter, self.history = t.counter, t.history
    return self


def make_deferred(memory: DeferredStorage, meta: Meta, offset: int = 0) -> Tensor:
    """Return the tensor of a pending call's result, or a view of it: its slot `ptr` stays empty until something reads
    it.
    """
    self = new_tensor(Tensor)
    self.meta = meta
    self.memory = self.counter = memory
    self.deferred_offset = offset
    self.history = None
    return self


def make_view(t: Tensor, meta: Meta, offset: int = 0) -> Tensor:
    """Return a tensor over the storage of `t`, `offset` bytes behind it. That of a pending result stays pending."""
    memory = t.memory
    if is_pending(memory) and meta.dtype is t.meta.dtype:
        self = make_deferred(memory, meta, t.deferred_offset + offset)
    else:
        self = make(meta, memory, t.ptr + offset if offset else t.ptr)  # a sparse tensor has no address
    self.counter = t.counter
    return self
