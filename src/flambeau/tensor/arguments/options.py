"""The arguments of all creation functions: sizes, dtype, device, layout, and their errors."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from functools import wraps
from operator import index
from typing import Any, TypedDict, TypeVar

from numpy import ndarray

from flambeau.core import dtype as dtypes
from flambeau.core import errors
from flambeau.core.device import CPU, device
from flambeau.core.dtype import FLOATING, dtype
from flambeau.core.errors import NotSupportedError, argument_type
from flambeau.core.flags import flags
from flambeau.core.layout import Shape
from flambeau.runtime import current, system
from flambeau.tensor import dispatch, interception
from flambeau.tensor.arguments.extents import int_of
from flambeau.tensor.arguments.integers import LIMIT, int_or_none, refuse_bool_tensors
from flambeau.tensor.arguments.typing import layout, strided

F = TypeVar("F", bound=Callable[..., Any])


class Given(TypedDict, total=False):
    """The keywords of every creation function."""

    out: Any
    dtype: Any
    layout: layout | None
    device: Any
    requires_grad: bool
    pin_memory: bool
    memory_format: Any


class Sized(Given, total=False):
    """The keywords of creation functions that also accept their sizes as a keyword."""

    size: Any


class CreationOptions:
    """The keywords of a creation function after validation. `kind` and `device` are None if the caller passed none."""

    __slots__ = ("device", "kind", "memory_format", "out", "pin_memory")

    def __init__(self, function: str, given: Given) -> None:
        if not given:
            self.device = self.kind = self.memory_format = self.out = None
            self.pin_memory = False
            return
        for name in given:
            if name not in Sized.__annotations__:
                raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        refuse(given.get("layout"))
        kind, where = given.get("dtype"), given.get("device")
        self.kind = None if kind is None else kind_of(kind, function)
        self.device = None if where is None else place(where)
        self.out = given.get("out")
        self.pin_memory = bool(given.get("pin_memory", False))
        self.memory_format = given.get("memory_format")
        if self.pin_memory and self.device is not None and self.device is not CPU:
            raise RuntimeError("Only dense CPU tensors can be pinned")


def place(where: Any) -> device:
    """Return the device that an argument names, with an index on CUDA; the default device for None."""
    return default_device() if where is None else system.resolve(device(where))


def place_copy(where: Any) -> device:
    """Return the device that an argument names as the target of a copy. As in PyTorch, a device without memory
    raises.
    """
    target = place(where)
    if target.type not in ("cpu", "cuda", "meta"):
        raise errors.absent_device(target.type, copying=True)
    return target


def default_device() -> device:
    """Return the device of new tensors without a `device` argument: the CPU, unless the program selected another."""
    where = current.default.device
    return where if where is CPU else system.resolve(where)


def place_data(where: Any) -> device | None:
    """Return the device to which a program's data is copied; None leaves arrays and tensors on their devices.

    As in PyTorch, a default device that the program selected counts as if it were the argument.
    """
    where = current.default.selected if where is None else where
    return None if where is None else place_copy(where)


def kind_of(kind: Any, function: str, default: dtype | None = None) -> dtype:
    """Return the dtype that an argument names, a dtype or a Python number type; the default dtype for None."""
    if kind.__class__ is dtype:
        return kind
    if kind is None:
        return flags.default_dtype if default is None else default
    if isinstance(kind, type) and kind in dtypes.PYTHON_TYPES:
        return dtypes.PYTHON_TYPES[kind]
    raise TypeError(f"{function}(): argument 'dtype' must be torch.dtype, not {type(kind).__name__}")


def default_complex() -> dtype:
    """Return the complex dtype whose parts have the default dtype."""
    return flags.default_dtype.to_complex()


def kind_of_number(value: Any) -> dtype:
    """Return the dtype of a Python number in a creation function."""
    if isinstance(value, bool):
        return dtypes.bool_
    if isinstance(value, int):
        return dtypes.int64
    return default_complex() if isinstance(value, builtins.complex) else flags.default_dtype


def number(x: Any, function: str, name: str, position: int) -> Any:
    """Return the value of a Python number, a 0-dim tensor or a NumPy scalar. Raises TypeError for others."""
    if isinstance(x, (bool, int, float, builtins.complex)):
        return x
    if getattr(x, "ndim", None) == 0 and hasattr(x, "item") and not isinstance(x, ndarray):
        return x.item()
    raise TypeError(argument_type(function, name, position, "Number", x))


def integer(x: Any, function: str, name: str, position: int) -> int:
    """Return an int, or an object that acts as one. Raises TypeError for others."""
    return int_of(x, function, name, position)


def creates(define: F) -> F:
    """Decorate a creation function so that `requires_grad` makes its result a leaf."""

    @wraps(define)
    def create(*args: Any, **given: Any) -> Any:
        if interception.count and dispatch.is_shown(args):
            return dispatch.create(define, args, given)
        if "requires_grad" not in given:
            return define(*args, **given)
        wanted = given.pop("requires_grad")
        return new_leaf(define(*args, **given), wanted)

    return create  # type: ignore[return-value]


def new_leaf(made: Any, requires_grad: bool) -> Any:
    """Return a new tensor as a leaf that requires a gradient if `requires_grad` is True.

    Raises:
        RuntimeError: For an integer or bool tensor.
    """
    if not requires_grad:
        return made
    if made.meta.dtype.category < FLOATING:
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    return made.requires_grad_()


def sparse_layout(given: Any) -> str | None:
    """Remove a sparse `layout` from a creation's keywords and return its name; None for other layouts."""
    form = given.get("layout")
    if form is None or form is strided or not isinstance(form, layout):
        return None
    del given["layout"]
    return form.name


def refuse(form: layout | None) -> None:
    """Raise for arguments that creation functions do not accept."""
    if form is not None and form is not strided:
        raise NotSupportedError(
            f"layout {form!r}: this function makes strided tensors only; use to_sparse() on its result"
        )


def shape_of(size: Any, function: str) -> Shape:
    """Return the sizes passed to a creation function, as varargs or as one sequence.

    Raises TypeError for a value that is not an int, RuntimeError for a negative size.
    """
    if not size:
        raise TypeError(f'{function}() missing 1 required positional arguments: "size"')
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = size[0]
    elif size and not _is_int(size[0]):
        raise TypeError(
            f"{function}(): argument 'size' (position 1) must be tuple of ints, not {_type_name(size[0])}"
        )
    return checked_shape(size, function)


def checked_shape(size: Sequence[Any], function: str) -> Shape:
    """Return a sequence of sizes as a tuple of ints."""
    for at, n in enumerate(size):
        if not _is_int(n) and not (at and isinstance(n, bool)):  # PyTorch's parser looks at the first alone
            raise TypeError(_not_a_size(function, n, at))
    refuse_bool_tensors(size, function, "size")
    shape = tuple([index(n) for n in size])
    for n in shape:
        if not 0 <= n < LIMIT:
            if not -LIMIT <= n < LIMIT:
                raise TypeError(
                    f"{function}(): argument 'size' failed to unpack the object at pos {shape.index(n) + 1} with error "
                    '"Overflow when unpacking long long"'
                )
            if function == "zeros":
                raise RuntimeError("zeros: Dimension size must be non-negative.")
            raise RuntimeError(f"Trying to create tensor with negative dimension {n}: {list(shape)}")
    return shape


def _is_int(n: Any) -> bool:
    return n.__class__ is int or int_or_none(n) is not None


def _not_a_size(function: str, n: Any, at: int) -> str:
    if at == 0:
        return (
            f"{function}(): argument 'size' (position 1) must be tuple of ints, but found element of type "
            f"{_type_name(n)} at pos 0"
        )
    return (
        f"{function}(): argument 'size' failed to unpack the object at pos {at + 1} with error "
        f'"type must be tuple of ints,but got {_type_name(n)}"'
    )


def _type_name(x: Any) -> str:
    module = type(x).__module__
    return type(x).__name__ if module != "numpy" else f"numpy.{type(x).__name__}"
