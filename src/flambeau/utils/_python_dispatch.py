"""torch.utils._python_dispatch: modes that see each operator below autograd.

See Note [Dispatch below autograd] in tensor/dispatch.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flambeau.core.public_names import lacking
from flambeau.tensor import dispatch
from flambeau.tensor.tensor import Tensor

__all__ = ["TorchDispatchMode", "is_traceable_wrapper_subclass"]

__getattr__ = lacking("torch.utils._python_dispatch")


class TorchDispatchMode:
    """A context whose `__torch_dispatch__` is called for each operator, below autograd.

    Composite functions are seen as the operators that they are made of, and backward as the operators of its
    formulas. Inside of the handler the mode is not active.
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Return the result of a call of `func`, an overload such as `torch.ops.aten.add.Tensor`."""
        raise NotImplementedError

    def __enter__(self) -> Any:
        dispatch.enter_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        dispatch.leave_mode()

    @classmethod
    def push(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a new mode; the old name for the constructor."""
        return cls(*args, **kwargs)

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return False: the mode is a program's own."""
        return False


BaseTorchDispatchMode = TorchDispatchMode


@contextmanager
def _disable_current_modes() -> Iterator[Sequence[Any]]:
    """Make no mode active within a block."""
    with dispatch.without_modes() as before:
        yield before


@contextmanager
def _pop_mode_temporarily(k: Any = None) -> Iterator[Any]:
    """Make the innermost mode inactive within a block, and yield it."""
    mode = dispatch.leave_mode()
    try:
        yield mode
    finally:
        dispatch.enter_mode(mode)


def _get_current_dispatch_mode() -> Any:
    """Return the innermost mode; None if there is none."""
    return dispatch.local.modes[-1] if dispatch.local.modes else None


def _get_current_dispatch_mode_stack() -> list[Any]:
    """Return the active modes, outermost first."""
    return list(dispatch.local.modes)


def _len_torch_dispatch_stack() -> int:
    return len(dispatch.local.modes)


def is_in_torch_dispatch_mode(include_infra_modes: bool = True) -> bool:
    """Return True if a mode is active."""
    return bool(dispatch.local.modes)


def is_traceable_wrapper_subclass(t: object) -> bool:
    """Return True if `t` is a tensor that wraps others and names them in `__tensor_flatten__`."""
    return (
        isinstance(t, Tensor)
        and type(t) is not Tensor
        and hasattr(t, "__tensor_flatten__")
        and hasattr(t, "__tensor_unflatten__")
    )


def is_traceable_wrapper_subclass_type(t: type) -> bool:
    """Return True if instances of a class wrap other tensors and name them in `__tensor_flatten__`."""
    return issubclass(t, Tensor) and hasattr(t, "__tensor_flatten__") and hasattr(t, "__tensor_unflatten__")


def transform_subclass(t: Any, callback: Any, outer_size: Any = None, outer_stride: Any = None) -> Any:
    """Return a tensor like `t` that wraps `callback(name, inner)` in place of each inner tensor."""
    size = t.size() if outer_size is None else outer_size
    stride = t.stride() if outer_stride is None else outer_stride
    names, context = t.__tensor_flatten__()
    return type(t).__tensor_unflatten__({n: callback(n, getattr(t, n)) for n in names}, context, size, stride)


def return_and_correct_aliasing(func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """Return the result of a handler, with an in-place operator's own argument in place of a copy of it."""
    arguments = func._schema.arguments
    names = [a.name for a in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | (kwargs or {})
    written = [given[a.name] for a in arguments if a.is_write and a.name in given]
    if not written:
        return out
    if isinstance(out, list | tuple):
        return type(out)(written) if len(written) == len(out) else out
    return written[0]
