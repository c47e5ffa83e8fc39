"""`torch.Tensor(...)`, and the legacy types of tensors and storages: `torch.FloatTensor`, `torch.cuda.LongStorage`."""

from __future__ import annotations

import warnings
from array import array
from typing import Any

import numpy as np

from flambeau.core.device import CPU, device
from flambeau.core.dtype import DTYPES, dtype
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.ops import view as records
from flambeau.runtime import current
from flambeau.tensor.arguments import public
from flambeau.tensor.arguments.options import place, shape_of
from flambeau.tensor.arguments.public import function, method
from flambeau.tensor.arguments.typing import parse_type
from flambeau.tensor.autograd.autograd_meta import run
from flambeau.tensor.call import empty
from flambeau.tensor.deterministic_fill import filled_if_wanted
from flambeau.tensor.exchange.data import new as made_of
from flambeau.tensor.promotion import set_default_dtype
from flambeau.tensor.storages import Face, TypedStorage, face, new_row, no_storage, row_as, wrapped_row
from flambeau.tensor.tensor import Tensor, as_type
from flambeau.tensor.wrappers import note_instance


def _construct(kind: dtype, where: device, args: tuple[Any, ...]) -> Tensor:
    """Return the result of a legacy constructor: an uninitialized tensor of given sizes, or a tensor of data or a
    storage.
    """
    if not args:
        return empty(Meta.contiguous_of((0,), kind, where))
    data = args[0]
    if len(args) == 1 and isinstance(data, Tensor):
        return run(records.alias, data)
    if len(args) == 1 and isinstance(data, Face):
        return _over(data, kind, where)
    if len(args) == 1 and (isinstance(data, (list, np.ndarray)) or data.__class__ is tuple):
        return made_of(data, kind, where)
    if len(args) == 1 and isinstance(data, (range, array)):
        return made_of(list(data), kind, where)
    if len(args) == 1 and isinstance(data, float):
        raise TypeError(f"new(): data must be a sequence (got {type(data).__name__})")
    sizes = (tuple(data),) if isinstance(data, tuple) else args
    return filled_if_wanted(empty(Meta.contiguous_of(shape_of(sizes, "new"), kind, where)))


def _over(storage: Face, kind: dtype, where: device) -> Tensor:
    if isinstance(storage, TypedStorage) and storage.dtype is not kind:
        raise RuntimeError(
            f"Expected a Storage of type {kind.torch_name} or an UntypedStorage, but got type "
            f"{storage.dtype.torch_name} for argument 1 'storage'"
        )
    _require_kind_of_device(where.type, storage.device)
    return row_as(storage._row, kind)


def _new_tensor(cls: type[Tensor], *args: Any, device: Any = None) -> Tensor:
    """Create a tensor of the default dtype.

    `torch.Tensor(2, 3)` is uninitialized, `torch.Tensor([2, 3])` holds 2 and 3.
    """
    where = CPU if device is None else place(device)
    _require_kind_of_device("cpu", where)
    made = _construct(flags.default_dtype, CPU, args)
    if cls is Tensor:
        return made
    return note_instance(as_type(made, cls))


def _require_kind_of_device(wanted: str, where: device) -> None:
    if where.type != wanted:
        raise RuntimeError(
            f"legacy constructor expects device type: {wanted} but device type: {where.type} was passed"
        )


Tensor.__new__ = _new_tensor  # type: ignore[method-assign, assignment]


class _Constructor(type):
    """The metaclass of the legacy tensor types: instances are the tensors of their dtype and kind of device."""

    kind: dtype
    where: str

    def __instancecheck__(cls, obj: Any) -> bool:
        return isinstance(obj, Tensor) and obj.meta.dtype is cls.kind and obj.meta.device.type == cls.where


def _modules_of(where: str) -> tuple[str, str]:
    """Return the module of a kind of device's legacy types, under PyTorch's name and as it is imported here."""
    return ("torch", "flambeau") if where == "cpu" else ("torch.cuda", "flambeau.cuda")


def _old_type(kind: dtype, where: str) -> Any:
    room, module = _modules_of(where)
    name = f"{kind.torch_name}Tensor"

    def construct(cls: Any, *args: Any, device: Any = None) -> Tensor:
        at = place(where if device is None else device)
        _require_kind_of_device(where, at)
        if len(args) == 1 and isinstance(args[0], Tensor) and not isinstance(args[0], cls):
            raise TypeError(f"expected {room}.{name} (got {args[0].type()})")
        return _construct(kind, at, args)

    members = {
        "__new__": construct, "__module__": module, "dtype": kind, "is_cuda": where == "cuda",
        "torch_type_name": f"{room}.{name}", "__doc__": f"A legacy type: {where} tensors of {kind.name}.",
    }  # fmt: skip
    made = _Constructor(name, (), members)
    made.kind, made.where = kind, where
    return made


class _StorageType(type):
    """The metaclass of the legacy storage types: instances are the storages of their dtype and kind of device."""

    kind: dtype
    where: str

    def __instancecheck__(cls, obj: Any) -> bool:
        return isinstance(obj, TypedStorage) and obj.dtype is cls.kind and obj.device.type == cls.where


def _storage_type(kind: dtype, where: str) -> Any:
    """Return the legacy storage type of a dtype.

    `torch.FloatStorage(3)` is uninitialized, `torch.FloatStorage([1, 2])` holds 1 and 2.
    """
    room, module = _modules_of(where)
    name = f"{kind.torch_name}Storage"
    function = f"{room}.{name}.__new__"

    def construct(cls: Any, *args: Any, wrap_storage: Any = None) -> TypedStorage:
        if wrap_storage is None:
            row = new_row(args, kind, place(where), function)
        else:
            row = wrapped_row(wrap_storage, kind, function)
            if args or row.meta.device.type != where:
                raise no_storage(function, f"'wrap_storage' goes alone and lies on {where}")
        made: TypedStorage = face(TypedStorage, row)
        return made

    def from_buffer(*args: Any, **named: Any) -> TypedStorage:
        """Return a storage of this dtype from a buffer; see `TypedStorage.from_buffer`."""
        return TypedStorage.from_buffer(*args, dtype=kind, **named)

    members = {
        "__new__": construct, "__module__": module, "dtype": kind, "torch_type_name": f"{room}.{name}",
        "__doc__": f"A legacy type: {where} storages of {kind.name}.",
    }  # fmt: skip
    if where == "cpu":
        members["from_buffer"] = staticmethod(from_buffer)
    made = _StorageType(name, (), members)
    made.kind, made.where = kind, where
    return made


@method
def new(self: Tensor, *args: Any, device: Any = None) -> Tensor:
    """Return a tensor with this tensor's dtype and device, uninitialized or from data, like `torch.Tensor(...)`."""
    where = self.meta.device if device is None else place(device)
    _require_kind_of_device(self.meta.device.type, where)
    return _construct(self.meta.dtype, where, args)


@function
def set_default_tensor_type(t: Any) -> None:
    """Set the default dtype and device of new tensors by a legacy type, "torch.cuda.FloatTensor".

    Raises TypeError for a type of integers, or for a value that is not a type of tensors.
    """
    try:
        kind, where = parse_type(t if isinstance(t, str) else t.torch_type_name)
    except (AttributeError, ValueError):
        raise TypeError(
            "invalid type object: only floating-point types are supported as the default type"
        ) from None
    set_default_dtype(kind)
    current.default.set_fallback(where)
    warnings.warn(
        "torch.set_default_tensor_type() is deprecated as of PyTorch 2.1, please use torch.set_default_dtype() and "
        "torch.set_default_device() as alternatives.",
        UserWarning,
        stacklevel=2,
    )


_NAMES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
_COMPLEX = ("complex64", "complex128")
_OLD = [d for d in DTYPES if d.name in _NAMES]
public.functions.update({f"{d.torch_name}Tensor": _old_type(d, "cpu") for d in _OLD})
cuda_types: dict[str, Any] = {f"{d.torch_name}Tensor": _old_type(d, "cuda") for d in _OLD}
"""The types of tensors of `torch.cuda`, by name."""

_OLD_STORAGES = [d for d in DTYPES if d.name in _NAMES + _COMPLEX]
public.functions.update({f"{d.torch_name}Storage": _storage_type(d, "cpu") for d in _OLD_STORAGES})
cuda_storages: dict[str, Any] = {f"{d.torch_name}Storage": _storage_type(d, "cuda") for d in _OLD_STORAGES}
"""The types of storages of `torch.cuda`, by name."""
