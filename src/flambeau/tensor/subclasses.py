"""Subclasses of Tensor: creation of instances, and the default behavior of functions for them."""

from __future__ import annotations

from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.errors import NotSupportedError, type_name
from flambeau.ops import view as records
from flambeau.tensor.arguments.public import method
from flambeau.tensor.arguments.torch_function import (
    DisableTorchFunctionSubclass,
    arm,
    overrides,
)
from flambeau.tensor.autograd.autograd_meta import run
from flambeau.tensor.tensor import Tensor, as_type
from flambeau.tensor.wrappers import note_instance


@method
def as_subclass(self: Tensor, cls: type[Any]) -> Any:
    """Return a view of the whole tensor as an instance of `cls`.

    Raises:
        TypeError: If the value is not a subclass of Tensor.
    """
    _require_subclass(cls)
    return note_instance(as_type(run(records.alias, self), cls))


def make_subclass(cls: type[Any], data: Tensor, require_grad: bool = False, **other: Any) -> Any:
    """Return a leaf of class `cls` over a tensor's memory.

    Raises:
        TypeError: If the value is not a subclass of Tensor.
        NotSupportedError: For an option that PyTorch alone has.
    """
    _require_subclass(cls)
    if other:
        raise NotSupportedError(f"Tensor._make_subclass: Flambeau lacks {', '.join(map(repr, other))}")
    if require_grad and data.meta.dtype.category < FLOATING:
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    with DisableTorchFunctionSubclass():
        made = note_instance(as_type(data.detach(), cls))
        return made.requires_grad_(require_grad)


def _require_subclass(cls: Any) -> None:
    if not isinstance(cls, type):
        raise TypeError(f"cls must be a type (got {type_name(cls)})")
    if not issubclass(cls, Tensor):
        raise TypeError(
            "Creating a Tensor subclass from a class that does not inherit from Tensor is not possible. Make sure your "
            "class inherits from Tensor."
        )


def _torch_function(cls: type[Any], func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Call a function as for plain tensors, and return its results as instances of the subclass.

    Returns NotImplemented if the class of another argument is not a base of this one.
    """
    if not all(issubclass(cls, kind) for kind in types):
        return NotImplemented
    with DisableTorchFunctionSubclass():
        result = func(*args, **kwargs or {})
        return result if func in kept_plain() else _convert_result(result, cls)


def kept_plain() -> set[Any]:
    """Return the functions whose results remain plain tensors: the base of a view, and gradients."""
    members = vars(Tensor)
    return {members["_base"].__get__, members["grad"].__get__}


def _convert_result(result: Any, cls: type[Any]) -> Any:
    if isinstance(result, Tensor):
        return result if isinstance(result, cls) else as_subclass(result, cls)
    if isinstance(result, tuple | list):
        return type(result)([_convert_result(each, cls) for each in result])
    return result


def _init_subclass(cls: type[Any], /, **named: Any) -> None:
    """Handle the definition of a subclass: install override checks if it overrides functions."""
    super(Tensor, cls).__init_subclass__(**named)
    if overrides(cls):
        arm()


Tensor.__init_subclass__ = classmethod(_init_subclass)  # type: ignore[assignment, method-assign]
Tensor.__torch_function__ = classmethod(_torch_function)  # type: ignore[method-assign, assignment]
Tensor._make_subclass = staticmethod(make_subclass)  # type: ignore[method-assign]
