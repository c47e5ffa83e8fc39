"""`RMSprop`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import RMSpropOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, step_lists, zeros
from flambeau.optim.optimizer import check_least, check_lr
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class RMSprop(ElementwiseOptimizer):
    """An optimizer that divides each gradient by the root of the average of its squares.

    Args:
        params: See `Optimizer`.
        lr: Learning rate, a number or a tensor of one element.
        alpha: Decay of the average.
        eps: Added to the root of the average.
        weight_decay: Factor of the parameter, which is added to the gradient.
        momentum: Momentum of the steps.
        centered: Subtract the square of the gradients' average, which gives their variance.
        foreach: No effect; every step is one launch.
        maximize: Maximize the objective.
        capturable: Keep the step count on the GPU.
        differentiable: Let gradients flow through `step`.
    """

    record = records.rmsprop

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr(lr)
        check_least(eps, "epsilon")
        check_least(momentum, "momentum")
        check_least(weight_decay, "weight_decay")
        check_least(alpha, "alpha")
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
            "weight_decay": weight_decay, "capturable": capturable, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable,
        })  # fmt: skip

    def _states(self, group: Group) -> tuple[str, ...]:
        momentum = ("momentum_buffer",) if group["momentum"] > 0 else ()
        return ("square_avg", *momentum, *(("grad_avg",) if group["centered"] else ()))

    def _new_state(self, group: Group, p: Tensor) -> Group:
        return {"step": self._counter(group, p)} | {name: zeros(p) for name in self._states(group)}

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        return group["lr"], group["alpha"], group["eps"], group["weight_decay"], group["momentum"]

    def _options(
        self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool
    ) -> RMSpropOptions:
        decay = group["weight_decay"] != 0
        return RMSpropOptions(group["momentum"] > 0, group["centered"], decay, group["maximize"])


def rmsprop(
    params: list[Tensor], grads: list[Tensor], square_avgs: list[Tensor], grad_avgs: list[Tensor],
    momentum_buffer_list: list[Tensor], state_steps: list[Tensor], foreach: bool | None = None,
    maximize: bool = False, differentiable: bool = False, capturable: bool = False,
    has_complex: bool = False, *, lr: float, alpha: float, eps: float, weight_decay: float,
    momentum: float, centered: bool,
) -> None:  # fmt: skip
    """Step RMSprop on lists of parameters, gradients and states, which change in place. See `RMSprop`.

    `foreach` and `has_complex` have no effect: every step is one launch.
    """
    group = {
        "maximize": maximize, "differentiable": differentiable, "capturable": capturable, "lr": lr,
        "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum,
        "centered": centered,
    }  # fmt: skip
    states: dict[str, list[Any]] = {
        "square_avg": square_avgs, "grad_avg": grad_avgs, "momentum_buffer": momentum_buffer_list,
        "step": state_steps,
    }  # fmt: skip
    step_lists(RMSprop, group, params, grads, states)
