"""`SparseAdam`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flambeau.optim.optimizer import Optimizer, evaluate_closure, with_values, without_recording
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class SparseAdam(Optimizer):
    """The optimizer Adam for sparse gradients: it changes only values where the gradient has values.

    Args:
        params: See `Optimizer`. The parameters are strided, their gradients sparse.
        lr: The rate, a number or a tensor of one element.
        betas: How much of the averages of gradients and of their squares stays in a step.
        eps: Added to the root of the average of squares.
        maximize: True to climb.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr > 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if not eps > 0.0:
            raise ValueError(f"Invalid epsilon value: {eps}")
        for i, beta in enumerate(betas):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"Invalid beta parameter at index {i}: {beta}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize})
        self._refuse(lambda p: p.is_sparse, "Sparse", "SparseAdam requires dense parameter tensors")
        self._refuse(lambda p: p.is_complex(), "Complex", "SparseAdam does not support complex parameters")

    def _refuse(self, is_refused: Callable[[Any], bool], kind: str, why: str) -> None:
        places = [
            [i, j]
            for i, group in enumerate(self.param_groups)
            for j, p in enumerate(group["params"])
            if is_refused(p)
        ]
        if places:
            raise ValueError(f"{kind} params at indices {places}: {why}")

    @without_recording
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Change each parameter that has a gradient. A closure evaluates the model again and returns the loss.

        Raises:
            RuntimeError: If a gradient is strided.
        """
        loss = evaluate_closure(closure)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if not p.grad.is_sparse:
                    raise RuntimeError(
                        "SparseAdam does not support dense gradients, please consider Adam instead"
                    )
                self._update(group, p, p.grad)
        return loss

    def _update(self, group: dict[str, Any], p: Any, grad: Any) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["exp_avg"] = creation.zeros_like(p)
            state["exp_avg_sq"] = creation.zeros_like(p)
        state["step"] += 1
        grad = (-grad if group["maximize"] else grad).coalesce()  # squares of sums, not sums of squares
        values = grad.values()
        if not values.numel():
            return
        beta1, beta2 = group["betas"]
        first = _move(state["exp_avg"], grad, values, 1 - beta1)
        second = _move(state["exp_avg_sq"], grad, values * values, 1 - beta2)
        rate = float(group["lr"]) * math.sqrt(1 - beta2 ** state["step"]) / (1 - beta1 ** state["step"])
        p.add_(with_values(grad, -rate * first / second.sqrt_().add_(group["eps"])))


def _move(average: Any, grad: Any, values: Any, weight: float) -> Any:
    """Move an average towards values, at the places of a sparse gradient; return its values there."""
    before = average.sparse_mask(grad).values()
    change = (values - before) * weight
    average.add_(with_values(grad, change))
    return before + change
