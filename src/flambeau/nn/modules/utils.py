"""Helper functions of several modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from flambeau.tensor.tensor import Tensor


def _ntuple(n: int, name: str) -> Callable[[Any], tuple[Any, ...]]:
    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")


def _reverse_repeat_tuple(t: tuple[Any, ...], n: int) -> tuple[Any, ...]:
    """Return its elements in reverse order, each n times: padding as `F.pad` wants it."""
    return tuple(x for x in reversed(t) for _ in range(n))


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Remove `prefix` from the keys of a state dict, in place. `nn.DataParallel` and similar wrappers add such a
    prefix.

    Keys without the prefix remain, after the others; `_metadata` is renamed accordingly.
    """
    for name in [name for name in state_dict if name.startswith(prefix)]:
        state_dict[name[len(prefix) :]] = state_dict.pop(name)
    versions = getattr(state_dict, "_metadata", {})
    for name in list(versions):
        if name and (name == prefix.rstrip(".") or name.startswith(prefix)):
            versions[name[len(prefix) :]] = versions.pop(name)


def each(x: Any, n: int) -> tuple[Any, ...]:
    """Return a tuple of one value for each of n dimensions, from a sequence or from one number for all."""
    return tuple(x) if isinstance(x, Iterable) else (x,) * n


def typename(x: Any) -> str:
    """Return the type name that messages use: `torch.FloatTensor`, `int`, `package.module.Class`."""
    if isinstance(x, Tensor):
        kind: Any = x
        name: str = kind.type()
        return name
    kind = type(x)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def factory_kwargs(kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the keyword arguments for functions that create tensors, such as `torch.empty`.

    Args:
        kwargs: `device`, `dtype` and `memory_format`, directly or in a dict named `factory_kwargs`.

    Raises:
        TypeError: If there is another argument, or one occurs twice.
    """
    if kwargs is None:
        return {}
    direct = {name: value for name, value in kwargs.items() if name != "factory_kwargs"}
    inner = dict(kwargs.get("factory_kwargs", {}))
    if unexpected := direct.keys() - {"device", "dtype", "memory_format"}:
        raise TypeError(f"unexpected kwargs {unexpected}")
    for name in direct.keys() & inner.keys():
        raise TypeError(f"{name} specified twice, in **kwargs and in factory_kwargs")
    return inner | direct
