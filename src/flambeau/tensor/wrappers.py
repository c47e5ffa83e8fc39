"""Subclasses with `__torch_dispatch__`, and tensors without memory, which such classes wrap around other tensors."""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import Any

from flambeau.core.device import META, device
from flambeau.core.dtype import FLOATING, dtype
from flambeau.core.errors import NotSupportedError, type_name
from flambeau.core.flags import flags
from flambeau.core.layout import contiguous_strides, span
from flambeau.core.meta import Meta, ShortMeta
from flambeau.runtime import system
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.extents import ints_of, require_layout
from flambeau.tensor.arguments.options import default_device, place
from flambeau.tensor.arguments.typing import layout, memory_format, strided, strides_in
from flambeau.tensor.storage import WrapperStorage
from flambeau.tensor.tensor import Tensor, make, new_tensor


def disabled_torch_dispatch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Run an overload on instances of subclasses as on plain tensors: the `__torch_dispatch__` of Tensor."""
    with dispatch.without_classes():
        return func(*args, **(kwargs or {}))


def has_dispatch(cls: type[Any]) -> bool:
    """Return True if a class defines `__torch_dispatch__`."""
    own = getattr(cls, "__torch_dispatch__", None)
    return own is not None and getattr(own, "__func__", own) is not disabled_torch_dispatch


def note_instance(t: Any) -> Any:
    """Enable dispatch to `__torch_dispatch__` while an instance of a class that defines it exists."""
    cls = type(t)
    if has_dispatch(cls):
        dispatch.add_class(cls)
        interception.open_one()
        weakref.finalize(t, interception.close_one).atexit = False
    return t


@lru_cache(4096)
def _short_meta(meta: Meta) -> ShortMeta:
    return ShortMeta(meta)


def make_wrapper_subclass(
    cls: type[Any],
    size: Any,
    strides: Any = None,
    storage_offset: int | None = None,
    memory_format: memory_format | None = None,
    dtype: dtype | None = None,
    layout: layout = strided,
    device: device | str | None = None,
    pin_memory: bool = False,
    requires_grad: bool = False,
    **other: Any,
) -> Any:
    """Return a tensor of a class that has a size, a dtype and a device, but no memory.

    Args:
        cls: A subclass of Tensor that defines `__torch_dispatch__`.
        size: The shape.
        strides: Elements from one index to the next; those of `memory_format` by default.
        storage_offset: Elements before the first one.
        memory_format: The order of dimensions, if `strides` is None.
        dtype: The element type; the default one if None.
        layout: `torch.strided`.
        device: The device that the tensor says it is on.
        pin_memory: False.
        requires_grad: True if gradients are computed for it.

    Raises:
        TypeError: If the class is not a subclass of Tensor.
        RuntimeError: If the class has no `__torch_dispatch__`, or the layout cannot be.
        NotSupportedError: For options that let handlers see sizes, strides or the device.

    Source: `torch.Tensor._make_wrapper_subclass`.
    """
    _require_wrapper(cls, layout, pin_memory, other)
    shape = ints_of(size, "_make_wrapper_subclass", "size", 2)
    kind = dtype or flags.default_dtype
    if strides is not None:
        steps = ints_of(strides, "_make_wrapper_subclass", "strides", 3)
    else:
        steps = contiguous_strides(shape) if memory_format is None else strides_in(shape, memory_format)
    require_layout(shape, steps)
    meta = Meta.of(shape, steps, kind, default_device() if device is None else place(device))
    offset = (storage_offset or 0) * kind.itemsize
    nbytes = offset + span(shape, steps) * kind.itemsize
    made: Any = new_tensor(cls)
    plain = make(_short_meta(meta), WrapperStorage(0, nbytes, system.context_of(META), None), offset)
    made.meta, made.memory, made.ptr, made.counter, made.history = (
        plain.meta, plain.memory, plain.ptr, plain.counter, None,
    )  # fmt: skip
    note_instance(made)
    if requires_grad:
        if kind.category < FLOATING:
            raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
        made.requires_grad_()
    return made


def _require_wrapper(cls: Any, form: Any, pinned: bool, other: dict[str, Any]) -> None:
    if not isinstance(cls, type):
        raise TypeError(f"cls must be a type (got {type_name(cls)})")
    if not issubclass(cls, Tensor):
        raise TypeError("cls must be a subclass of torch.Tensor")
    if not has_dispatch(cls):
        raise RuntimeError(
            f"{cls.__name__} must define __torch_dispatch__: a tensor without memory computes nothing by itself"
        )
    wanted = [name for name, value in other.items() if value not in (None, False)]
    if wanted or pinned or form is not strided:
        named = ", ".join(map(repr, wanted)) or ("pin_memory" if pinned else repr(form))
        raise NotSupportedError(f"Tensor._make_wrapper_subclass: Flambeau lacks {named}")


Tensor.__torch_dispatch__ = staticmethod(disabled_torch_dispatch)  # type: ignore[method-assign]
Tensor._make_wrapper_subclass = staticmethod(make_wrapper_subclass)  # type: ignore[method-assign]
