"""The public functions that share memory with other processes. `sharing.py`, imported on first use, implements them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from flambeau.core.device import CPU, META
from flambeau.tensor.arguments.options import integer, place
from flambeau.tensor.arguments.public import method
from flambeau.tensor.storages import Face, UntypedStorage
from flambeau.tensor.tensor import Tensor


def announce(reductions: Callable[[], Any], *kinds: type) -> None:
    """Register these types, tensors and storages with `multiprocessing` if the program has imported it.

    If the program imports it later, it must use `flambeau.multiprocessing`, because importing it here would delay every
    program by 7 ms. `reductions` returns the module that reduces them.
    """
    if "multiprocessing.reduction" in sys.modules:
        _sharing().announce(reductions, *kinds)


def _sharing() -> Any:
    return import_module("flambeau.tensor.exchange.sharing")


def _is_shared(row: Tensor) -> bool:
    return row.meta.device.type == "cuda" or bool(_sharing().is_mapped(row.memory))


def _share(row: Tensor) -> None:
    if row.meta.device is META:
        raise RuntimeError("_share_fd_: only available on CPU")
    if not _is_shared(row):
        _sharing().move_to_shared_memory(row)


@method
def is_shared(self: Tensor) -> bool:
    """Return True if other processes may access the memory: always on CUDA, on the CPU after `share_memory_`."""
    return _is_shared(self)


@method
def share_memory_(self: Tensor) -> Tensor:
    """Move the storage to memory that other processes can map. Do nothing on a CUDA device, or if it is shared already.

    All tensors over the storage move with it. Its size is then fixed.

    Raises:
        RuntimeError: If there is not enough memory.
    """
    _share(self)
    return self


def _face_is_shared(self: Face) -> bool:
    """Return True if other processes may see this memory."""
    return _is_shared(self._row)


def _face_share_memory_(self: Face) -> Face:
    """Move the storage to memory that other processes can map. Does nothing on a CUDA device, or if it is shared
    already.
    """
    _share(self._row)
    return self


def _share_cuda_(self: Face) -> tuple[Any, ...]:
    """Return the arguments for `_new_shared_cuda` in another process."""
    return tuple(_sharing().send(self._row.memory))


def _new_shared_cuda(cls: Any, *args: Any) -> Any:
    """Return the storage that another process has sent."""
    return _sharing().receive_storage(*args)


def _new_shared(cls: Any, size: Any, *, device: Any = "cpu") -> UntypedStorage:
    """Return new bytes in memory that other processes can map."""
    if place(device) is not CPU:
        return UntypedStorage(size, device=device)
    made = UntypedStorage(integer(size, "_new_shared", "size", 1))
    _share(made._row)
    return made


for _name, _define in {
    "is_shared": _face_is_shared, "share_memory_": _face_share_memory_,
    "_share_cuda_": _share_cuda_, "_new_shared_cuda": classmethod(_new_shared_cuda),
    "_new_shared": classmethod(_new_shared),
}.items():  # fmt: skip
    setattr(Face, _name, _define)
