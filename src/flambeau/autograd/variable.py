"""`torch.autograd.Variable`, which tensors have replaced since PyTorch 0.4 and which old programs still call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from flambeau.tape.mode import mode
from flambeau.tensor.tensor import Tensor


class _AnyTensor(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Tensor)


class ImperativeEngine:
    """The backward engine, as libraries reach it by `Variable._execution_engine`."""

    def queue_callback(self, callback: Callable[[], Any]) -> None:
        """Call a function when the running backward pass has computed all gradients.

        Args:
            callback: A function without arguments. It may queue others.

        Raises:
            RuntimeError: If no backward pass runs in this thread.
        """
        if mode.engine is None:
            raise RuntimeError("Final callbacks can only be installed during backward pass.")
        mode.engine.final_callbacks.append(callback)

    def is_checkpoint_valid(self) -> bool:
        """Return True if the running backward pass accumulates gradients, so reentrant checkpoints may run."""
        return mode.engine is None or mode.engine.slots is None


class Variable(metaclass=_AnyTensor):
    """`Variable(data, requires_grad=False)` is a tensor with the memory of `data`, without recording. Every tensor is
    an instance of this class.

    Raises TypeError if `data` is not a tensor. `volatile` has no effect, and warns.
    """

    _execution_engine = ImperativeEngine()

    def __new__(cls, data: Any = None, requires_grad: bool = False, volatile: bool = False) -> Any:
        if volatile:
            warnings.warn(
                "volatile was removed and now has no effect. Use `with torch.no_grad():` instead.",
                stacklevel=2,
            )
        if data is None:
            data = Tensor()
        if not isinstance(data, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(data).__name__}")
        if requires_grad and not (data.is_floating_point() or data.is_complex()):
            raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
        return data.detach().requires_grad_(bool(requires_grad))
