"""`Adadelta`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import DecayOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, step_lists, zeros
from flambeau.optim.optimizer import check_least, check_lr
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class Adadelta(ElementwiseOptimizer):
    """An optimizer that scales each gradient by the ratio of the average sizes of past steps and past gradients.

    Args:
        params: See `Optimizer`.
        lr: Factor of the step, a number or a tensor of one element.
        rho: Decay of the averages.
        eps: Added to the averages before their roots.
        weight_decay: Factor of the parameter, which is added to the gradient.
        foreach: No effect; every step is one launch.
        maximize: Maximize the objective.
        capturable: Keep the step count on the GPU.
        differentiable: Let gradients flow through `step`.
    """

    record = records.adadelta

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr(lr)
        if not 0.0 <= rho <= 1.0:
            raise ValueError(f"Invalid rho value: {rho}")
        check_least(eps, "epsilon")
        check_least(weight_decay, "weight_decay")
        super().__init__(params, {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "capturable": capturable, "foreach": foreach, "differentiable": differentiable,
        })  # fmt: skip

    def _states(self, group: Group) -> tuple[str, ...]:
        return "square_avg", "acc_delta"

    def _new_state(self, group: Group, p: Tensor) -> Group:
        return {"step": self._counter(group, p), "square_avg": zeros(p), "acc_delta": zeros(p)}

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        return group["lr"], group["rho"], group["eps"], group["weight_decay"]

    def _options(
        self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool
    ) -> DecayOptions:
        return DecayOptions(group["weight_decay"] != 0, group["maximize"])


def adadelta(
    params: list[Tensor], grads: list[Tensor], square_avgs: list[Tensor], acc_deltas: list[Tensor],
    state_steps: list[Tensor], capturable: bool = False, foreach: bool | None = None,
    differentiable: bool = False, has_complex: bool = False, *, lr: float, rho: float, eps: float,
    weight_decay: float, maximize: bool,
) -> None:  # fmt: skip
    """Step Adadelta on lists of parameters, gradients and states, which change in place. See `Adadelta`.

    `foreach` and `has_complex` have no effect: every step is one launch.
    """
    group = {
        "capturable": capturable, "differentiable": differentiable, "lr": lr, "rho": rho, "eps": eps,
        "weight_decay": weight_decay, "maximize": maximize,
    }  # fmt: skip
    states: dict[str, list[Any]] = {"square_avg": square_avgs, "acc_delta": acc_deltas, "step": state_steps}
    step_lists(Adadelta, group, params, grads, states)
