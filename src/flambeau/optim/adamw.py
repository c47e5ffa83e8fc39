"""torch.optim.adamw: `AdamW` and its step on lists."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.optim.adam import AdamW, adam
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

    `foreach` and `has_complex` have no effect on the step: it is one launch. RuntimeError: see `adam`.
    """
    adam(
        params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, foreach, capturable, differentiable, fused,
        grad_scale, found_inf, has_complex, True, amsgrad=amsgrad, beta1=beta1, beta2=beta2, lr=lr,
        weight_decay=weight_decay, eps=eps, maximize=maximize,
    )  # fmt: skip


explain_absent_names(globals(), "torch.optim.adamw")
