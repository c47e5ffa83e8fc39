"""The names of PyTorch that occur in checkpoints, and the objects of Flambeau that they denote.

A checkpoint names classes and functions as PyTorch's modules have them. Written names become PyTorch's, read
ones ours; whatever is not in the tables has the same place in both packages.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from flambeau.core.brief import brief
from flambeau.core.device import device
from flambeau.core.dtype import DTYPES, dtype
from flambeau.core.size import Size
from flambeau.nn import parameter
from flambeau.nn.functional import gelu
from flambeau.nn.parameter import Parameter
from flambeau.tensor.arguments.typing import LAYOUTS, layout, strided
from flambeau.tensor.exchange import pickling
from flambeau.tensor.tensor import Tensor


class StorageKind(NamedTuple):
    """The meaning of a storage class of PyTorch: elements of a dtype, or bytes (None)."""

    name: str
    dtype: dtype | None

    @property
    def itemsize(self) -> int:
        return 1 if self.dtype is None else self.dtype.itemsize


BYTES = StorageKind("UntypedStorage", None)
STORAGES = {d: StorageKind(f"{d.torch_name}Storage", d) for d in DTYPES if d not in pickling.NEW_KINDS}

Name = tuple[str, str]  # module and qualified name


def layout_of(name: str) -> layout:
    """Return the layout of a name such as "torch.sparse_coo".

    Raises:
        RuntimeError: If Flambeau has no tensors of it.
    """
    known = {
        str(each): each for each in (strided, *map(LAYOUTS.get, ("sparse_coo", "sparse_csr", "sparse_csc")))
    }
    if type(name) is not str or name not in known:
        raise RuntimeError(f"the checkpoint names the layout {brief(name)}: Flambeau has no tensors of it")
    return known[name]


REBUILDERS: dict[Name, Any] = {
    ("torch._utils", "_rebuild_tensor"): pickling.rebuild,
    ("torch._utils", "_rebuild_tensor_v2"): pickling.rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): pickling.rebuild_as,
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): pickling.rebuild_meta,
    ("torch._utils", "_rebuild_sparse_tensor"): pickling.rebuild_sparse,
    ("torch._tensor", "_rebuild_from_type_v2"): pickling.rebuild_subclass,
    ("torch._utils", "_rebuild_parameter"): parameter._rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): parameter._rebuild_parameter_with_state,
    ("torch.serialization", "_get_layout"): layout_of,
}
"""What builds tensors: the only functions of ours that a pickle may call."""

TYPES: dict[Name, Any] = {
    ("torch", "Tensor"): Tensor,
    ("torch", "Size"): Size,
    ("torch", "device"): device,
    ("torch.nn.parameter", "Parameter"): Parameter,
}
VALUES: dict[Name, Any] = {
    **{("torch", kind.name): kind for kind in DTYPES},
    **{("torch", kind.name): kind for kind in STORAGES.values()},
    ("torch.storage", BYTES.name): BYTES,
}
FUNCTIONS: dict[Name, Any] = {("torch._C._nn", "gelu"): gelu}
"""Functions that modules hold, where PyTorch has them in C++."""
_READ: dict[Name, Any] = REBUILDERS | TYPES | VALUES | FUNCTIONS
_WRITTEN: dict[int, Name] = {id(what): name for name, what in _READ.items()}


def find(module: str, name: str) -> Any:
    """Return the object that a name of PyTorch denotes in a checkpoint.

    Raises:
        AttributeError: If Flambeau lacks it.
    """
    found = _READ.get((module, name))
    if found is not None:
        return found
    ours = "flambeau" + module.removeprefix("torch")
    try:
        found = import_module(ours)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise AttributeError(f"the checkpoint names {module}.{name}, which Flambeau lacks: {error}") from None
    return found


def pytorch_name_of(what: Any, name: str | None) -> Name | None:
    """Return PyTorch's name for a thing of ours; None if it is not a thing of ours."""
    found = _WRITTEN.get(id(what))
    if found is not None:
        return found
    module = getattr(what, "__module__", None) or ""
    if module.partition(".")[0] != "flambeau":
        return None
    if module.startswith("flambeau.nn.functional."):
        module = "flambeau.nn.functional"  # PyTorch has one file
    return "torch" + module.removeprefix("flambeau"), name or what.__qualname__
