"""`ByParameter`: optimizers that update a parameter as a whole, with ordinary operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.optim.optimizer import Optimizer, evaluate_closure, without_recording


class ByParameter(Optimizer):
    """The base class of optimizers that update one parameter at a time. A subclass defines `_update`, the update of
    one.

    Complex parameters raise RuntimeError.
    """

    @without_recording
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change each parameter that has a gradient. A closure evaluates the model again and returns the loss."""
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            lr = float(group["lr"])
            for p in group["params"]:
                if p.grad is not None:
                    if p.grad.is_sparse:
                        raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
                    if p.is_complex():
                        raise RuntimeError(f"{type(self).__name__} does not support complex parameters")
                    self._update(group, lr, p)
        return loss

    def _update(self, group: dict[str, Any], lr: float, p: Any) -> None:
        raise NotImplementedError
