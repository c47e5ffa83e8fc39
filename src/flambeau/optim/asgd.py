"""`ASGD`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import ASGDOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, step_lists, zeros
from flambeau.optim.optimizer import check_least, check_lr
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class ASGD(ElementwiseOptimizer):
    """The optimizer ASGD, averaged stochastic gradient descent. The averages are in state "ax".

    Args:
        params: See `Optimizer`.
        lr: Initial learning rate, a number or a tensor of one element.
        lambd: Decay of the parameters.
        alpha: Exponent of the decreasing rate.
        t0: The step at which averaging begins.
        weight_decay: Factor of the parameter, which is added to the gradient.
        foreach: No effect; every step is one launch.
        maximize: Maximize the objective.
        differentiable: Let gradients flow through `step`.
        capturable: Keep the counters on the GPU.
    """

    record = records.asgd
    counters = ("step", "eta", "mu")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_lr(lr)
        check_least(weight_decay, "weight_decay")
        super().__init__(params, {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        })  # fmt: skip

    def _states(self, group: Group) -> tuple[str, ...]:
        return ("ax",)

    def _new_state(self, group: Group, p: Tensor) -> Group:
        return {
            "step": self._counter(group, p), "eta": self._counter(group, p, float(group["lr"])),
            "mu": self._counter(group, p, 1.0), "ax": zeros(p),
        }  # fmt: skip

    def _advance_counters(self, group: Group, f: Any, counters: Sequence[Any]) -> Sequence[Any]:
        step, lr = f.value(counters[0]) + 1, group["lr"]
        eta = lr / ((1 + group["lambd"] * lr * step) ** group["alpha"])
        return step, eta, 1 / f.maximum(step - group["t0"], 1)

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        _, eta, mu = before
        return group["lambd"], eta, mu, group["weight_decay"]

    def _options(self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool) -> ASGDOptions:
        return ASGDOptions(group["weight_decay"] != 0, group["maximize"], bool(before[2] != 1))


def asgd(
    params: list[Tensor], grads: list[Tensor], axs: list[Tensor], mus: list[Tensor], etas: list[Tensor],
    state_steps: list[Tensor], foreach: bool | None = None, maximize: bool = False,
    differentiable: bool = False, capturable: bool = False, has_complex: bool = False, *, lambd: float,
    lr: float, t0: float, alpha: float, weight_decay: float,
) -> None:  # fmt: skip
    """Step ASGD on lists of parameters, gradients and states, which change in place. See `ASGD`.

    `foreach` and `has_complex` have no effect: every step is one launch.
    """
    group = {
        "maximize": maximize, "differentiable": differentiable, "capturable": capturable, "lambd": lambd,
        "lr": lr, "t0": t0, "alpha": alpha, "weight_decay": weight_decay,
    }  # fmt: skip
    states: dict[str, list[Any]] = {"ax": axs, "mu": mus, "eta": etas, "step": state_steps}
    step_lists(ASGD, group, params, grads, states)
