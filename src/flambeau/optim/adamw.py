"""torch.optim.adamw: `AdamW` and its step on lists."""

from __future__ import annotations

from typing import Any

from flambeau.core.names import explain_absent_names
from flambeau.optim.adam import AdamW
from flambeau.optim.elementwise import step_lists
from flambeau.tensor.tensor import Tensor

__all__ = ["AdamW", "adamw"]


def adamw(
    params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor], state_steps: list[Tensor], foreach: bool | None = None,
    capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None, has_complex: bool = False, *,
    amsgrad: bool, beta1: float | Tensor, beta2: float | Tensor, lr: float | Tensor, weight_decay: float,
    eps: float, maximize: bool,
) -> None:  # fmt: skip
    """Step AdamW on lists of parameters, gradients and states, which change in place. See `AdamW`.

    `foreach` and `has_complex` have no effect: every step is one launch.
    """
    group = {
        "decoupled_weight_decay": True, "capturable": capturable, "differentiable": differentiable, "amsgrad": amsgrad,
        "betas": (beta1, beta2), "lr": lr, "weight_decay": weight_decay, "eps": eps, "maximize": maximize,
        "fused": fused, "grad_scale": grad_scale, "found_inf": found_inf,
    }  # fmt: skip
    states: dict[str, list[Any]] = {
        "exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs, "max_exp_avg_sq": max_exp_avg_sqs,
        "step": state_steps,
    }  # fmt: skip
    step_lists(AdamW, group, params, grads, states)


explain_absent_names(globals(), "torch.optim.adamw")
