"""The legacy types of sparse tensors: `torch.sparse.FloatTensor(indices, values, size)`."""

from __future__ import annotations

from typing import Any

from flambeau.core import dtype as dtypes
from flambeau.core.dtype import dtype
from flambeau.core.size import Size
from flambeau.tensor.arguments.options import place
from flambeau.tensor.sparse.construction import empty_coo, sparse_coo_tensor
from flambeau.tensor.sparse.sparse_storage import is_coo
from flambeau.tensor.tensor import Tensor

_KINDS = (
    dtypes.bfloat16, dtypes.uint8, dtypes.int8, dtypes.float64, dtypes.float32, dtypes.float16, dtypes.int32,
    dtypes.int64, dtypes.int16,
)  # fmt: skip


class _SparseConstructor(type):
    """The type of these types: instances are the COO tensors of their dtype and kind of device."""

    kind: dtype
    where: str

    def __instancecheck__(cls, obj: Any) -> bool:
        return is_coo(obj) and obj.meta.dtype is cls.kind and obj.meta.device.type == cls.where


def _construct(kind: dtype, where: str, args: tuple[Any, ...]) -> Tensor:
    """Return a COO tensor of indices, values and perhaps a size; or of a size alone, without values."""
    if args and isinstance(args[0], Tensor):
        return sparse_coo_tensor(*args)
    sizes = args[0] if len(args) == 1 and isinstance(args[0], Size | tuple | list) else args
    return empty_coo(tuple(int(n) for n in sizes) or (0,), kind, place(where))


def old_types(where: str, module: str) -> dict[str, Any]:
    """Return the types of one kind of device by name: `FloatTensor`, `LongTensor` and the others."""
    found = {}
    room = "torch.sparse" if where == "cpu" else "torch.cuda.sparse"
    for kind in _KINDS:

        def construct(cls: Any, *args: Any) -> Tensor:
            return _construct(cls.kind, cls.where, args)

        name = f"{kind.torch_name}Tensor"
        members = {
            "__new__": construct, "__module__": module, "dtype": kind, "is_cuda": where == "cuda", "is_sparse": True,
            "torch_type_name": f"{room}.{name}", "__doc__": f"A legacy type: sparse {where} tensors of {kind.name}.",
        }  # fmt: skip
        made = _SparseConstructor(name, (), members)
        made.kind, made.where = kind, where
        found[name] = made
    return found
