"""`Adamax`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import DecayOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, step_lists, zeros
from flambeau.optim.optimizer import check_betas, check_least, check_lr
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class Adamax(ElementwiseOptimizer):
    """The optimizer Adamax: Adam with the largest gradient so far in place of the average of squares.

    Args:
        params: See `Optimizer`. lr: the rate, a number or a tensor of one element.
        betas: Decays of the average and of the largest. eps: added to each gradient's size.
        weight_decay: Times the parameter, added to the gradient.
        foreach: Accepted as in PyTorch; every step is one launch either way. maximize: climb.
        differentiable: Gradients flow through `step`. capturable: the step count lives on the GPU.
    """

    record = records.adamax

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_lr(lr)
        check_least(eps, "epsilon")
        check_betas(betas)
        check_least(weight_decay, "weight_decay")
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        })  # fmt: skip

    def _states(self, group: Group) -> tuple[str, ...]:
        return "exp_avg", "exp_inf"

    def _new_state(self, group: Group, p: Tensor) -> Group:
        return {"step": self._counter(group, p), "exp_avg": zeros(p), "exp_inf": zeros(p)}

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        beta1, beta2 = group["betas"]
        return group["lr"], beta1, beta2, group["eps"], group["weight_decay"], 1 - beta1 ** after[0]

    def _options(
        self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool
    ) -> DecayOptions:
        return DecayOptions(group["weight_decay"] != 0, group["maximize"])


def adamax(
    params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_infs: list[Tensor],
    state_steps: list[Tensor], foreach: bool | None = None, maximize: bool = False,
    differentiable: bool = False, capturable: bool = False, has_complex: bool = False, *, eps: float,
    beta1: float, beta2: float, lr: float, weight_decay: float,
) -> None:  # fmt: skip
    """Step Adamax on lists of parameters, gradients and states, which change in place. See `Adamax`.

    `foreach` and `has_complex` have no effect: every step is one launch.
    """
    group = {
        "maximize": maximize, "differentiable": differentiable, "capturable": capturable, "eps": eps,
        "betas": (beta1, beta2), "lr": lr, "weight_decay": weight_decay,
    }  # fmt: skip
    states: dict[str, list[Any]] = {"exp_avg": exp_avgs, "exp_inf": exp_infs, "step": state_steps}
    step_lists(Adamax, group, params, grads, states)
