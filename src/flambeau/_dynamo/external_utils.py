"""torch._dynamo.external_utils: functions that compiled code calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.exchange.interop import as_tensor
from flambeau.tensor.tensor import Tensor

__all__ = ["is_compiling", "wrap_inline", "wrap_numpy"]


def is_compiling() -> bool:
    """Return False, because Flambeau compiles nothing."""
    return False


def wrap_inline(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a Python function that calls `fn`."""

    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return inner


def wrap_numpy(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that calls `f`, a function of NumPy arrays.

    The tensors must be on the CPU and require no gradient. Results that are arrays become tensors.
    """

    @functools.wraps(f)
    def wrap(*args: Any, **kwargs: Any) -> Any:
        arrays, keywords = _map_leaves(lambda x: x.numpy() if isinstance(x, Tensor) else x, (args, kwargs))
        return _map_leaves(lambda x: as_tensor(x) if isinstance(x, np.ndarray) else x, f(*arrays, **keywords))

    return wrap


def _map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        return type(value)({key: _map_leaves(change, item) for key, item in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[_map_leaves(change, item) for item in value])
    if isinstance(value, list | tuple):
        return type(value)([_map_leaves(change, item) for item in value])
    return change(value)


explain_absent_names(globals(), "torch._dynamo.external_utils")
