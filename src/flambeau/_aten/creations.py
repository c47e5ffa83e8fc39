"""Functions that create tensors, as dispatch handlers see them."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

from flambeau._aten.table import names
from flambeau._library.user_operators import packet_of
from flambeau.tensor.arguments.options import default_device
from flambeau.tensor.tensor import Tensor

_OF_SIZES = frozenset({"empty", "ones", "rand", "randn", "zeros"})
_COMPOSED = frozenset({"asarray", "as_tensor"})
_OF_SIZES_OF_A_TENSOR = frozenset({"new_empty", "new_ones", "new_zeros"})


def show_creation(define: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]) -> Any:
    """Show a call of a creation: sizes as a list, and the device if no tensor and no `out` decides it.

    A function that PyTorch composes of others runs, and these are shown.
    """
    name = define.__name__
    if name not in names() or name in _COMPOSED:
        return define(*args, **given)
    kwargs = {key: value for key, value in given.items() if value is not None}
    if name in _OF_SIZES:
        args = (_sizes(args, kwargs),)
    elif name in _OF_SIZES_OF_A_TENSOR:
        args = (args[0], _sizes(args[1:], kwargs))
    elif name == "randint":
        args = _bounds(args, kwargs)
    elif name == "arange":
        args = _ends(args, kwargs)
    elif name == "eye" and len(args) == 2 and args[1] is None:
        args = args[:1]
    if not any(isinstance(a, Tensor) for a in args) and "out" not in kwargs:
        kwargs.setdefault("device", default_device())
    if "out" not in kwargs:
        kwargs.setdefault("pin_memory", False)
    return packet_of(f"aten::{name}")(*args, **kwargs)


def _sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    sizes = args or (kwargs.pop("size"),)
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = sizes[0]
    return [index(n) for n in sizes]


def _bounds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    *bounds, size = [*args, *[kwargs.pop(n) for n in ("low", "high", "size") if n in kwargs]]
    return (*[index(n) for n in bounds], _sizes((size,), {}))


def _ends(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    ends = [*args, *[kwargs.pop(n) for n in ("start", "end", "step") if n in kwargs]]
    return tuple([n.item() if isinstance(n, Tensor) else n for n in ends])
