"""`swap_tensors`: exchange class, contents and attributes of two tensors, so that all references follow."""

from __future__ import annotations

import copyreg
import sys
import weakref
from typing import Any, NoReturn

from flambeau.tensor.autograd.autograd_meta import leaf_of
from flambeau.tensor.tensor import Tensor

_OWN = ("counter", "history", "memory", "meta", "ptr")
_ABSENT = object()


def swap_tensors(t1: Tensor, t2: Tensor) -> None:
    """Exchange the data, the autograd state, the class and the attributes of two tensors; each keeps its identity.

    Args:
        t1, t2: Tensors without weak references, whose classes have equal slots. A recorded graph that leads to a leaf
            of them raises RuntimeError in its backward.

    Raises:
        RuntimeError: If a tensor has a weak reference, or the slots differ.
    """
    for name, tensor in (("t1", t1), ("t2", t2)):
        if _has_weak_references(tensor):
            raise RuntimeError(f"Cannot swap {name} because it has weakref associated with it")
    slots = {*_slot_names(t1)}
    if slots != {*_slot_names(t2)}:
        raise RuntimeError("Cannot swap t1 and t2 if they have different slots")
    for tensor in (t1, t2):
        _ = tensor.ptr  # a deferred result gets its address
    for tensor in (t1, t2):
        _poison(tensor)
    for name in ("__class__", "__dict__", *sorted(slots), *_OWN):
        _swap_attribute(t1, t2, name)
    for tensor in (t1, t2):
        leaf = leaf_of(tensor)
        if leaf is not None:
            leaf.variable_ref = weakref.ref(tensor)


def _slot_names(tensor: Tensor) -> list[str]:
    """Return the slots of the subclasses of Tensor that are bases of a tensor's class."""
    own = {*copyreg._slotnames(Tensor)}  # type: ignore[attr-defined]
    return [name for name in copyreg._slotnames(type(tensor)) if name not in own]  # type: ignore[attr-defined]


def _has_weak_references(tensor: Tensor) -> bool:
    """Return True if the program has a weak reference to a tensor, which may be the object that its leaf has."""
    leaf = leaf_of(tensor)
    held = sys.getrefcount(leaf.variable_ref) - 1 if leaf is not None else 0
    return len(weakref.getweakrefs(tensor)) > (leaf is not None) or held > 1


def _poison(tensor: Tensor) -> None:
    """Make the backward of graphs that lead to this leaf raise."""
    leaf = leaf_of(tensor)
    if (
        leaf is not None and sys.getrefcount(leaf) > 3
    ):  # the tensor's, this name and the argument of getrefcount
        leaf.public.register_prehook(_refuse_gradient)


def _refuse_gradient(grad_outputs: Any) -> NoReturn:
    raise RuntimeError(
        "Trying to execute AccumulateGrad node that was poisoned by swap_tensors this can happen when you try to run "
        "backward on a tensor that was swapped. For a module m with "
        "`torch.__future__.set_swap_module_params_on_conversion(True)` you should not change the device or dtype of "
        "the module (e.g. `m.cpu()` or `m.half()`) between running forward and backward. To resolve this, please only "
        "change the device/dtype before running forward (or after both forward and backward)."
    )


def _swap_attribute(t1: Tensor, t2: Tensor, name: str) -> None:
    first, second = getattr(t1, name, _ABSENT), getattr(t2, name, _ABSENT)
    for tensor, value in ((t1, second), (t2, first)):
        if value is not _ABSENT:
            setattr(tensor, name, value)
        elif hasattr(tensor, name):
            delattr(tensor, name)
