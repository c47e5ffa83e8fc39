"""`Muon`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.optim.by_parameter import ByParameter
from flambeau.optim.optimizer import check_lr
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor

# coefficients of Keller Jordan's Muon, chosen for the steepest slope at zero
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(ByParameter):
    """The optimizer Muon: momentum SGD whose update matrix is made nearly orthogonal. For hidden layers.

    Args:
        params: See `Optimizer`. They must be real matrices.
        lr: The rate, a number or a tensor of one element.
        weight_decay: The factor of the parameter that is subtracted from it, times `lr`.
        momentum: The weight of the former average in a step.
        nesterov: Use Nesterov's momentum.
        ns_coefficients: The numbers a, b and c of the polynomial x -> a x + (b x x' + c (x x')^2) x. It is applied
            `ns_steps` times, in bfloat16, to the average divided by its norm (at least `eps`).
        adjust_lr_fn: "original" (None) multiplies the rate by sqrt(max(1, rows / columns)), "match_rms_adamw" by
            0.2 sqrt(max(rows, columns)).
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = _COEFFICIENTS,
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        check_lr(lr, "Learning rate should be >= 0 but is: {}")
        for value, what in ((momentum, "momentum"), (weight_decay, "weight decay")):
            if not value >= 0:
                raise ValueError(f"{what} should be >= 0 but is: {value}")
        if adjust_lr_fn not in (None, "original", "match_rms_adamw"):
            raise ValueError(f"Adjust learning rate function {adjust_lr_fn} is not supported")
        super().__init__(params, {
            "lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov,
            "ns_coefficients": ns_coefficients, "eps": eps, "ns_steps": ns_steps, "adjust_lr_fn": adjust_lr_fn,
        })  # fmt: skip
        for p in (p for group in self.param_groups for p in group["params"]):
            if p.ndim != 2:
                raise ValueError(
                    f"Muon only supports 2D parameters whereas we found a parameter with size: {p.size()}"
                )

    def _update(self, group: dict[str, Any], lr: float, p: Any) -> None:
        state, momentum = self.state[p], group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = creation.zeros_like(p.grad)
        average = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
        ahead = p.grad.lerp(average, momentum) if group["nesterov"] else average
        update = _orthogonal(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
        p.mul_(1 - lr * group["weight_decay"])
        p.add_(update, alpha=-lr * _ratio(group["adjust_lr_fn"], *p.shape))


def _orthogonal(x: Any, coefficients: tuple[float, ...], steps: int, eps: float) -> Any:
    """Return a matrix with its singular values near 1, by the iteration of Newton and Schulz, in bfloat16.

    Raises ValueError for 100 steps or more, not three coefficients.
    """
    if steps >= 100:
        raise ValueError("Number of steps must be less than 100 for computational efficiency")
    if len(coefficients) != 3:
        raise ValueError("Coefficients must be a tuple of exactly 3 values")
    a, b, c = coefficients
    high = x.size(0) > x.size(1)
    found = x.bfloat16().T if high else x.bfloat16()
    found = found / found.norm().clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.T
        found = functions["addmm"](
            found, functions["addmm"](gram, gram, gram, beta=b, alpha=c), found, beta=a
        )
    return found.T if high else found


def _ratio(rule: str | None, rows: int, columns: int) -> float:
    """Return the factor of the rate that gives updates of all shapes equal size."""
    if rule == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
