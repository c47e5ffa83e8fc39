"""Copies and pickles of tensors: `copy.copy`, `copy.deepcopy`, `pickle`; checkpoints use the same parts.

# Note [What a pickled tensor is]
As in PyTorch: a call of `rebuild` with the public storage object, offset, size and stride. A checkpoint's pickler
replaces the storage object by an id and writes its bytes to a separate record (serialization/pickle_writer.py); a plain
pickle includes the `Storage` and its bytes. All tensors over one storage refer to the same `Storage` object, so the
memo of the pickle or of `deepcopy` keeps them over one storage.
"""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from copyreg import _slotnames  # type: ignore[attr-defined]
from pickle import PickleBuffer
from typing import Any

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.brief import brief
from flambeau.core.device import CPU, META
from flambeau.core.dtype import dtype
from flambeau.core.errors import type_name
from flambeau.core.meta import Meta
from flambeau.tensor import dispatch, layout_functions
from flambeau.tensor.arguments.extents import require_layout
from flambeau.tensor.arguments.options import place
from flambeau.tensor.arguments.public import method
from flambeau.tensor.call import empty
from flambeau.tensor.exchange.data import over
from flambeau.tensor.exchange.interop import numpy
from flambeau.tensor.exchange.transfer import on_host, write
from flambeau.tensor.storage import ForeignStorage, Storage
from flambeau.tensor.storages import Face, TypedStorage, face, over_storage
from flambeau.tensor.subclasses import make_subclass
from flambeau.tensor.tensor import Tensor, make
from flambeau.tensor.tensor_core import TensorCore

# Dtypes without a storage class in PyTorch. Such a tensor is saved as bytes, with its dtype.
NEW_KINDS = (
    dtypes.uint16, dtypes.uint32, dtypes.uint64, dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.complex32,
)  # fmt: skip


# -- tensors ----------------------------------------------------------------------------------------------


@method
def __reduce_ex__(self: Tensor, protocol: Any) -> Any:
    """Return the function and arguments that rebuild the tensor, with Python attributes, without history."""
    define, arguments = _recipe(self)
    if type(self) is Tensor and not self.__dict__:
        return define, arguments
    own = type(self).__getstate__ is not object.__getstate__
    return rebuild_subclass, (define, type(self), arguments, self.__getstate__() if own else _state(self))


def _recipe(t: Tensor) -> tuple[Any, tuple[Any, ...]]:
    meta = t.meta
    if meta.sparse:
        return rebuild_sparse, layout_functions.find("recipe")(t)
    kind = meta.dtype
    if meta.device is META:
        return rebuild_meta, (kind, meta.shape, meta.strides, t.requires_grad)
    layout: tuple[Any, ...] = (t.storage_offset(), meta.shape, meta.strides, t.requires_grad, OrderedDict())
    if kind in NEW_KINDS:
        return rebuild_as, (t.untyped_storage(), *layout, kind)
    return rebuild, (t.storage(), *layout)


def rebuild_sparse(layout: Any, data: Any) -> Tensor:
    """Return a sparse tensor of its layout and parts.

    Raises:
        RuntimeError or TypeError: If they do not fit together.
    """
    made: Tensor = layout_functions.find("rebuild")(layout, data)
    return made


def rebuild(
    storage: TypedStorage, storage_offset: int, size: Any, stride: Any, requires_grad: bool = False,
    backward_hooks: Any = None, metadata: Any = None,
) -> Tensor:  # fmt: skip
    """Return a tensor over a storage. Raises TypeError or RuntimeError if it exceeds the storage."""
    if not isinstance(storage, TypedStorage):
        raise TypeError(f"a tensor is rebuilt over a TypedStorage, not over {type_name(storage)}")
    return rebuild_as(
        storage, storage_offset, size, stride, requires_grad, backward_hooks, storage.dtype, metadata
    )


def rebuild_as(
    storage: Face, storage_offset: int, size: Any, stride: Any, requires_grad: bool, backward_hooks: Any,
    dtype: dtype, metadata: Any = None,
) -> Tensor:  # fmt: skip
    """Return a tensor of a dtype over a storage. Raises TypeError or RuntimeError if it exceeds the storage."""
    if not isinstance(storage, Face):
        raise TypeError(f"a tensor is rebuilt over a storage, not over {type_name(storage)}")
    if not (isinstance(size, list | tuple) and isinstance(stride, list | tuple)):
        raise TypeError(f"size and stride must be tuples, not {type_name(size)} and {type_name(stride)}")
    if not isinstance(dtype, dtypes.dtype):
        raise TypeError(f"dtype must be torch.dtype, not {type_name(dtype)}")
    if not isinstance(requires_grad, bool):
        raise RuntimeError("requires_grad must be a bool")
    row = apply_bits(storage._row, dtype, metadata) if metadata else storage._row
    made = over_storage(row, dtype, storage_offset, tuple(size), tuple(stride))
    if requires_grad:
        made.requires_grad_(True)
    return made


def apply_bits(row: Tensor, dtype: dtype, metadata: Any) -> Tensor:
    """Return a copy of a storage with elements conjugated or negated, which PyTorch stores as bits."""
    known = isinstance(metadata, dict) and metadata.keys() <= {"conj", "neg"}
    if not known or not all(type(bit) is bool for bit in metadata.values()):
        raise RuntimeError(f'metadata of a tensor must be a dict of "conj" and "neg", not {brief(metadata)}')
    if metadata.get("conj") and not dtype.is_complex:
        raise RuntimeError(f"a tensor of {dtype} cannot be a conjugate")
    count = row.memory.nbytes // dtype.itemsize
    made: Any = over_storage(row, dtype, 0, (count,), (1,))
    made = made.conj() if metadata.get("conj") else made
    made = -made if metadata.get("neg") else made
    return made


def rebuild_meta(dtype: dtype, size: Any, stride: Any, requires_grad: bool) -> Tensor:
    """Return a tensor on the meta device. Raises TypeError unless the arguments are a dtype, sizes and strides."""
    if not isinstance(dtype, dtypes.dtype):
        raise TypeError(f"dtype must be torch.dtype, not {type_name(dtype)}")
    if not (isinstance(size, list | tuple) and isinstance(stride, list | tuple)):
        raise TypeError(f"size and stride must be tuples, not {type_name(size)} and {type_name(stride)}")
    require_layout(tuple(size), tuple(stride))
    made = empty(Meta.of(tuple(size), tuple(stride), dtype, META))
    if requires_grad:
        made.requires_grad_(True)
    return made


def rebuild_subclass(define: Any, kind: Any, arguments: Any, state: Any) -> Any:
    """Return the tensor that `define(*arguments)` creates, as a subclass with Python attributes."""
    made = _of_class(define(*arguments), kind)
    if not hasattr(kind, "__setstate__"):
        return _restore_state(made, state)
    made.__setstate__(state)
    return made


@method
def __copy__(self: Tensor) -> Tensor:
    """Return a tensor over the same memory."""
    define, arguments = _recipe(self)
    return _restore_state(_of_class(define(*arguments), type(self)), _state(self))


@method
def __deepcopy__(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return a leaf over a copy of the storage, with copies of its gradient and attributes.

    Tensors that share memory share the copy.

    Raises:
        RuntimeError: If the tensor is not a leaf.
    """
    if id(self) in memo:
        found: Tensor = memo[id(self)]
        return found
    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the "
            "moment.  If you were attempting to deepcopy a module, this may be because of a "
            "torch.nn.utils.weight_norm usage, see https://github.com/pytorch/pytorch/pull/103001"
        )
    if self.meta.sparse or type(self) in dispatch.classes:
        made = self.detach().clone()
    else:
        storage: Storage = deepcopy(self.memory, memo)
        made = make(self.meta, storage, storage.ptr + self.ptr - self.memory.ptr)
    made.requires_grad_(self.requires_grad)
    made = memo[id(self)] = made if type(made) is type(self) else _of_class(made, type(self))
    if type(self) in dispatch.classes:
        return made
    if self.grad is not None:
        made.grad = deepcopy(self.grad, memo)
    return _restore_state(made, deepcopy(_state(self), memo))


def _of_class(made: Tensor, kind: type[Any]) -> Any:
    return made if type(made) is kind else make_subclass(kind, made, made.requires_grad)


def _state(t: Tensor) -> Any:
    """Return the tensor's Python attributes, and those in slots of its class if it has any."""
    names = [
        name for name in _slotnames(type(t)) if name not in TensorCore.__annotations__ and hasattr(t, name)
    ]
    return (t.__dict__, {name: getattr(t, name) for name in names}) if names else t.__dict__


def _restore_state(made: Any, state: Any) -> Any:
    attributes, in_slots = state if isinstance(state, tuple) else (state, None)
    made.__dict__.update(attributes or {})
    for name, value in (in_slots or {}).items():
        setattr(made, name, value)
    return made


# -- storages ---------------------------------------------------------------------------------------------


def row_of(storage: Storage) -> Tensor:
    """Return a storage's bytes as a tensor."""
    return make(Meta.contiguous_of((storage.nbytes,), dtypes.uint8, storage.device), storage, storage.ptr)


def _copy_of_storage(self: Storage, memo: dict[int, Any]) -> Storage:
    row = row_of(self)
    made = empty(row.meta)
    write(made, row)
    return made.memory


def _reduce_storage(self: Storage, protocol: Any) -> Any:
    """Return the storage's bytes, out of band from protocol 5 on, and the name of its device."""
    if self.device is META:
        return meta_storage_of, (self.nbytes,)
    array: Any = numpy(on_host(row_of(self)))
    return storage_of, (PickleBuffer(array) if protocol >= 5 else array.tobytes(), str(self.device))


def meta_storage_of(nbytes: int) -> Storage:
    """Return a storage of the meta device.

    Raises:
        TypeError or ValueError: If the size is not an int, or is negative.
    """
    if type(nbytes) is not int:
        raise TypeError(f"the size of a storage must be int, not {type_name(nbytes)}")
    if nbytes < 0:
        raise ValueError(f"the size of a storage must not be negative, got {nbytes}")
    return empty(Meta.contiguous_of((nbytes,), dtypes.uint8, META)).memory


def storage_of(data: Any, where: str) -> Storage:
    """Return a storage of bytes. A writable out-of-band buffer is used without a copy and kept alive."""
    window = np.frombuffer(data, np.uint8)
    if place(where) is CPU and window.flags.writeable:
        return over(window, dtypes.uint8, Storage if isinstance(data, bytearray) else ForeignStorage).memory
    made = empty(Meta.contiguous_of(window.shape, dtypes.uint8, place(where)))
    write(made, over(window, dtypes.uint8))
    return made.memory


Storage.__reduce_ex__ = _reduce_storage  # type: ignore[assignment, method-assign]
Storage.__deepcopy__ = _copy_of_storage  # type: ignore[attr-defined]


def _reduce_face(self: Face, protocol: Any) -> Any:
    kind = self.dtype if isinstance(self, TypedStorage) else dtypes.uint8
    return face_of, (type(self), self._row.memory, kind)


def face_of(cls: Any, storage: Storage, kind: dtype) -> Any:
    """Return a `TypedStorage` or an `UntypedStorage` over a storage."""
    row = make(
        Meta.contiguous_of((storage.nbytes // kind.itemsize,), kind, storage.device), storage, storage.ptr
    )
    return face(cls, row)


Face.__reduce_ex__ = _reduce_face  # type: ignore[assignment, method-assign]
