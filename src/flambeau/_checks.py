"""torch._check and similar functions: assertions with the exception type that the caller chooses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.tensor.functions.reduction import all as _all
from flambeau.tensor.tensor import Tensor

__all__ = [
    "_assert_async", "_check", "_check_index", "_check_is_size", "_check_not_implemented", "_check_tensor_all",
    "_check_tensor_all_with", "_check_type", "_check_value", "_check_with",
]  # fmt: skip

Message = Callable[[], str]
_DEFAULT = (
    "Expected cond to be True, but got False. (Could this error message be improved? If so, please report an "
    "enhancement request to PyTorch.)"
)


def _check_with(error_type: type[Exception], cond: Any, message: Message | None = None) -> None:
    """Raise `error_type` unless `cond` is True.

    Args:
        error_type: The exception type.
        cond: A bool.
        message: Returns the text of the error; called only if it is raised.

    Raises:
        TypeError: `cond` is not a bool, or `message` cannot be called.
    """
    if isinstance(cond, Tensor):
        raise TypeError(
            "cond must be a bool, but got a Tensor. For tensor conditions, use torch._check_tensor_all() to assert "
            "that all elements are true."
        )
    if not isinstance(cond, bool):
        raise TypeError(f"cond must be a bool, but got {type(cond)}")
    if cond:
        return
    if message is not None and not callable(message):
        raise TypeError("message must be a callable")
    raise error_type(_DEFAULT if message is None else str(message()))


_check = partial(_check_with, RuntimeError)
_check_index = partial(_check_with, IndexError)
_check_value = partial(_check_with, ValueError)
_check_type = partial(_check_with, TypeError)
_check_not_implemented = partial(_check_with, NotImplementedError)


def _check_is_size(i: int, message: Message | None = None, *, max: int | None = None) -> None:
    """Raise RuntimeError unless `i` is at least 0, and at most `max` if that is given. Deprecated, as in PyTorch."""
    warn_program(
        "_check_is_size will be removed in a future PyTorch release along with guard_size_oblivious. Use "
        "_check(i >= 0) instead.",
        FutureWarning,
    )
    _check(i >= 0, message)
    if max is not None:
        _check(i <= max, message)


def _check_tensor_all_with(error_type: type[Exception], cond: Any, message: Message | None = None) -> None:
    """Raise `error_type` unless all elements of the bool tensor `cond` are True. Waits for the tensor.

    Raises:
        TypeError: `cond` is not a tensor of bools.
    """
    if not isinstance(cond, Tensor):
        raise TypeError(f"cond must be a tensor, but got {type(cond)}")
    if cond.meta.dtype.name != "bool":
        raise TypeError(f"cond tensor must have dtype torch.bool, but got torch.{cond.meta.dtype.name}")
    _check_with(error_type, bool(_all(cond).item()), message)


_check_tensor_all = partial(_check_tensor_all_with, RuntimeError)


def _assert_async(input: Tensor, assert_msg: str | None = None) -> None:
    """Raise RuntimeError unless the one element of `input` is not zero. Waits for the tensor, on every device.

    PyTorch checks a CUDA tensor on the device, without waiting, and raises at a later call.
    """
    if not input:
        raise RuntimeError(assert_msg or "Expected Tensor with single nonzero value, but got zero")
