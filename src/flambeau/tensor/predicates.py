"""Questions about tensors, and the two methods that call a Python function for each element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.device import CPU
from flambeau.core.dtype import INTEGRAL, bool_, int64
from flambeau.core.errors import argument_type
from flambeau.tensor.arguments.integers import as_int
from flambeau.tensor.arguments.public import both, function, functions, method
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.exchange.data import tensor
from flambeau.tensor.out_argument import deliver
from flambeau.tensor.signatures import accepts
from flambeau.tensor.storages import TypedStorage, UntypedStorage
from flambeau.tensor.tensor import Tensor


@both
def isreal(input: Tensor) -> Any:
    """Return True if each element has no imaginary part."""
    if input.dtype.is_complex:
        return input.imag == 0
    return functions["ones_like"](input, dtype=bool_)


@both
def is_nonzero(input: Tensor) -> bool:
    """Return True if the only element of a tensor is not zero. Raises RuntimeError unless there is exactly one
    element.
    """
    if not isinstance(input, Tensor):
        raise TypeError(argument_type("is_nonzero", "input", 1, "Tensor", input))
    return bool(input)


@method
def is_signed(self: Tensor) -> bool:
    """Return True if the tensor's dtype can represent negative numbers."""
    return self.meta.dtype.is_signed


@method
def is_set_to(self: Tensor, tensor: Tensor) -> bool:
    """Return True if both are the same view of the same storage."""
    same = self.ptr == tensor.ptr and self.memory is tensor.memory
    return same and self.meta.shape == tensor.meta.shape and self.meta.strides == tensor.meta.strides


@function
def is_storage(obj: Any) -> bool:
    """Return True if an object is a storage of a tensor."""
    return isinstance(obj, (TypedStorage, UntypedStorage))


@function
def _assert(condition: Any, message: str) -> None:
    """Raise AssertionError with `message` unless `condition`, a bool or a tensor of one element, is true."""
    if not condition:
        raise AssertionError(message)


@method
def storage_type(self: Tensor) -> type:
    """Return the class of the tensor's `storage()`."""
    return type(self.storage())


@function
def typename(obj: Any) -> str:
    """Return the full name of an object's type, such as "decimal.Decimal"; for a tensor `obj.type()`.

    A class or function gives its own name. Names of builtins have no module.
    """
    if isinstance(obj, Tensor):
        named: str = obj.type()
        return named
    name = getattr(obj, "__qualname__", None)
    if isinstance(name, str):
        module = getattr(obj, "__module__", "") or ""
    else:
        name, module = type(obj).__qualname__, type(obj).__module__ or ""
    return name if module in ("", "builtins") else f"{module}.{name}"


# -- a Python function for each element ---------------------------------------------------------------------


@method
def apply_(self: Any, callable: Callable[[Any], Any]) -> Any:
    """Replace each element x by `callable(x)`. Slow: prefer operators.

    Raises TypeError on CUDA devices, RuntimeError where it requires a gradient.
    """
    _require_plain(self, "apply_")
    return _refill(self, [callable(x) for x in self.reshape(-1).tolist()])


@method
@accepts("map_", other="tensor", x2="tensor")
def map_(self: Any, tensor: Any, callable: Callable[[Any, Any], Any]) -> Any:
    """Replace each element x by `callable(x, y)`, y the element of `tensor`, broadcast. As `apply_`."""
    for t in (self, tensor):
        _require_plain(t, "map_")
    if tensor.dtype is not self.dtype:
        raise TypeError(f"map_: expected {self.type()} for 'tensor' (got {tensor.type()})")
    others = tensor.expand_as(self).reshape(-1).tolist()
    return _refill(self, list(map(callable, self.reshape(-1).tolist(), others)))


def _require_plain(t: Any, name: str) -> None:
    if requires_grad(t):
        raise RuntimeError(
            f"Can't call {name}() on Variable that requires grad. Use var.detach().{name}() instead."
        )
    if t.device is not CPU:
        raise TypeError(f"{name} is only implemented on CPU tensors")


def _refill(t: Any, values: list[Any]) -> Any:
    return t.copy_(tensor(values, dtype=t.dtype, device=CPU).reshape(t.shape))


# -- indices -----------------------------------------------------------------------------------------------


@both
def nonzero_static(input: Tensor, *, size: int, fill_value: int = -1, out: Any = None) -> Any:
    """Return the first `size` rows of `nonzero`, filled up with `fill_value` where there are fewer. Waits for no
    device.
    """
    size = as_int(size)
    if size < 0:
        raise RuntimeError(f"nonzero_static: 'size' must be an non-negative integer, but got {size}")
    found = _places(input, size)
    rows = [found] if input.ndim <= 1 else _unravel(found, input.shape)
    made = functions["stack"](rows[: input.ndim], 1) if input.ndim else found.new_empty((size, 0))
    return deliver(made.masked_fill((found < 0).unsqueeze(1), fill_value) if input.ndim else made, out)


def _places(input: Any, size: int) -> Any:
    """Return the flat indices of the first `size` elements that are not zero, followed by -1."""
    flat = (input != 0).reshape(-1)
    rank = flat.cumsum(0) - 1
    slot = functions["where"](flat & (rank < size), rank, size)
    places = functions["full"]((size + 1,), -1, dtype=int64, device=input.device)
    index = functions["arange"](flat.numel(), device=input.device)
    return places.scatter_(0, slot, index)[:size]


def _unravel(places: Any, shape: Any) -> list[Any]:
    found = []
    for n in reversed(shape):
        n = max(n, 1)
        found.append(places % n)
        places = places.div(n, rounding_mode="floor")
    return found[::-1]


@function
def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """Return the coordinates in a tensor of `shape` of flat indices, one tensor for each dimension."""
    if not isinstance(indices, Tensor):
        raise TypeError(argument_type("unravel_index", "indices", 1, "Tensor", indices))
    if indices.meta.dtype.category != INTEGRAL:
        raise TypeError(f"expected 'indices' to be integer dtype, but got {indices.meta.dtype}")
    if not isinstance(shape, (int, tuple, list)):
        raise TypeError(f"expected 'shape' to be int or sequence of ints, but got {type(shape)}")
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not all(isinstance(n, int) for n in sizes):
        raise TypeError(f"expected 'shape' sequence to only contain ints, but got {[type(n) for n in sizes]}")
    if any(n < 0 for n in sizes):
        raise ValueError(f"'shape' cannot have negative values, but got {sizes}")
    if not sizes:
        return ()
    return tuple(functions["stack"](_unravel(indices.long(), sizes), -1).unbind(-1))
