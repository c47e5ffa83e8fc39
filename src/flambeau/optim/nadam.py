"""`NAdam`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import DecayOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, step_lists, zeros
from flambeau.optim.optimizer import check_betas, check_least, check_lr
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class NAdam(ElementwiseOptimizer):
    """The optimizer NAdam: Adam with Nesterov's momentum.

    Args:
        params: See `Optimizer`.
        lr: Learning rate, a number or a tensor of one element.
        betas: Decays of the averages of the gradient and of its square.
        eps: Added to the root of the second average.
        weight_decay: Factor of the parameter, which is added to the gradient, or with `decoupled_weight_decay`
            subtracted from the parameter itself.
        momentum_decay: Determines how fast the momentum grows to its full value.
        foreach: No effect; every step is one launch.
        maximize: Maximize the objective.
        capturable: Keep the counters on the GPU.
        differentiable: Let gradients flow through `step`.
    """

    record = records.nadam
    counters = ("step", "mu_product")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr(lr)
        check_least(eps, "epsilon")
        check_betas(betas)
        check_least(weight_decay, "weight_decay")
        check_least(momentum_decay, "momentum_decay")
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize, "foreach": foreach,
            "capturable": capturable, "differentiable": differentiable,
        })  # fmt: skip

    def _states(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _new_state(self, group: Group, p: Tensor) -> Group:
        return {
            "step": self._counter(group, p), "mu_product": self._counter(group, p, 1.0), "exp_avg": zeros(p),
            "exp_avg_sq": zeros(p),
        }  # fmt: skip

    def _momentum(self, group: Group, step: Any) -> Any:
        return group["betas"][0] * (1.0 - 0.5 * 0.96 ** (step * group["momentum_decay"]))

    def _advance_counters(self, group: Group, f: Any, counters: Sequence[Any]) -> Sequence[Any]:
        step = f.value(counters[0]) + 1
        return step, counters[1] * self._momentum(group, step)

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        lr, (beta1, beta2), (step, product) = group["lr"], group["betas"], after
        now, later = self._momentum(group, step), self._momentum(group, step + 1)
        of_gradient, of_average = lr * (1 - now) / (1 - product), lr * later / (1 - product * later)
        bias2 = 1 - beta2**step
        return lr, beta1, beta2, group["eps"], group["weight_decay"], bias2, of_gradient, of_average

    def _options(
        self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool
    ) -> DecayOptions:
        return DecayOptions(group["weight_decay"] != 0, group["maximize"], group["decoupled_weight_decay"])


def nadam(
    params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor],
    mu_products: list[Tensor], state_steps: list[Tensor], decoupled_weight_decay: bool = False,
    foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
    has_complex: bool = False, maximize: bool = False, *, beta1: float, beta2: float, lr: float,
    weight_decay: float, momentum_decay: float, eps: float,
) -> None:  # fmt: skip
    """Step NAdam on lists of parameters, gradients and states, which change in place. See `NAdam`.

    `foreach` and `has_complex` have no effect: every step is one launch.
    """
    group = {
        "decoupled_weight_decay": decoupled_weight_decay, "capturable": capturable,
        "differentiable": differentiable, "maximize": maximize, "betas": (beta1, beta2), "lr": lr,
        "weight_decay": weight_decay, "momentum_decay": momentum_decay, "eps": eps,
    }  # fmt: skip
    states: dict[str, list[Any]] = {
        "exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs, "mu_product": mu_products, "step": state_steps,
    }  # fmt: skip
    step_lists(NAdam, group, params, grads, states)
