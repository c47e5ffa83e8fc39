"""The storage types of old: `torch.FloatStorage`, `torch.cuda.LongStorage`."""

from __future__ import annotations

from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.dtype import dtype
from flambeau.tensor import public
from flambeau.tensor.options import place
from flambeau.tensor.storages import TypedStorage, face, new_row, no_storage, wrapped_row


class _OldStorage(type):
    """The type of the old storage types: instances are the storages of their dtype and kind of device."""

    kind: dtype
    where: str

    def __instancecheck__(cls, obj: Any) -> bool:
        return isinstance(obj, TypedStorage) and obj.dtype is cls.kind and obj.device.type == cls.where


def _old_type(kind: dtype, where: str) -> Any:
    """`torch.FloatStorage(3)` is uninitialized, `torch.FloatStorage([1, 2])` holds 1 and 2."""
    room = "torch" if where == "cpu" else "torch.cuda"
    function = f"{room}.{kind.torch_name}Storage.__new__"

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
        """As `TypedStorage.from_buffer`, of this dtype."""
        return TypedStorage.from_buffer(*args, dtype=kind, **named)

    members = {"__new__": construct, "__module__": room, "dtype": kind}
    if where == "cpu":
        members["from_buffer"] = staticmethod(from_buffer)
    made = _OldStorage(f"{kind.torch_name}Storage", (), members)
    made.kind, made.where = kind, where
    return made


_OLD = [
    d
    for d in dtypes.DTYPES
    if d.name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
        "complex128",
    )
]  # fmt: skip
public.functions.update({f"{d.torch_name}Storage": _old_type(d, "cpu") for d in _OLD})
cuda_storages: dict[str, Any] = {f"{d.torch_name}Storage": _old_type(d, "cuda") for d in _OLD}
"""The storage types of `torch.cuda`, by name."""
