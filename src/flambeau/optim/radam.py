"""`RAdam`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import RAdamOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, step_lists, zeros
from flambeau.optim.optimizer import check_betas, check_least, check_lr
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class RAdam(ElementwiseOptimizer):
    """The optimizer RAdam: Adam that scales the step only once the average of squares is reliable.

    Args:
        params: See `Optimizer`.
        lr: Learning rate, a number or a tensor of one element.
        betas: Decays of the averages of the gradient and of its square.
        eps: Added to the root of the second average.
        weight_decay: Factor of the parameter, which is added to the gradient, or with `decoupled_weight_decay`
            subtracted from the parameter itself.
        foreach: No effect; every step is one launch.
        maximize: Maximize the objective.
        capturable: Keep the step count on the GPU.
        differentiable: Let gradients flow through `step`.
    """

    record = records.radam

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
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
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "foreach": foreach, "capturable": capturable, "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        })  # fmt: skip

    def _states(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _new_state(self, group: Group, p: Tensor) -> Group:
        return {"step": self._counter(group, p), "exp_avg": zeros(p), "exp_avg_sq": zeros(p)}

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        (beta1, beta2), (step,) = group["betas"], after
        bias1, bias2 = 1 - beta1**step, 1 - beta2**step
        longest, length = _lengths(beta2, step)
        trusted = f.maximum(length, 5.0)  # below, the rectification is not used
        rectification = f.sqrt(
            (trusted - 4) * (trusted - 2) * longest / ((longest - 4) * (longest - 2) * trusted)
        )
        return (
            group["lr"], beta1, beta2, group["eps"], group["weight_decay"], bias1, f.sqrt(bias2), rectification,
        )  # fmt: skip

    def _options(
        self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool
    ) -> RAdamOptions:
        _, length = _lengths(group["betas"][1], after[0])
        return RAdamOptions(
            group["weight_decay"] != 0, group["maximize"], group["decoupled_weight_decay"], bool(length > 5.0)
        )


def _lengths(beta2: Any, step: Any) -> tuple[Any, Any]:
    """Return the length of the squares' average as a simple moving average: in the end, and at this step."""
    longest = 2 / (1 - beta2) - 1
    return longest, longest - 2 * step * beta2**step / (1 - beta2**step)


def radam(
    params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor],
    state_steps: list[Tensor], decoupled_weight_decay: bool = False, foreach: bool | None = None,
    differentiable: bool = False, capturable: bool = False, has_complex: bool = False,
    maximize: bool = False, *, beta1: float, beta2: float, lr: float, weight_decay: float, eps: float,
) -> None:  # fmt: skip
    """Step RAdam on lists of parameters, gradients and states, which change in place. See `RAdam`.

    `foreach` and `has_complex` have no effect: every step is one launch.
    """
    group = {
        "decoupled_weight_decay": decoupled_weight_decay, "differentiable": differentiable,
        "capturable": capturable, "maximize": maximize, "betas": (beta1, beta2), "lr": lr,
        "weight_decay": weight_decay, "eps": eps,
    }  # fmt: skip
    states: dict[str, list[Any]] = {"exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs, "step": state_steps}
    step_lists(RAdam, group, params, grads, states)
