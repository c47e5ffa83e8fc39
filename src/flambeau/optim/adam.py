"""`Adam` and `AdamW`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import AdamOptions, CountedAdamOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, step_lists, zeros
from flambeau.optim.optimizer import check_betas, check_least, check_lr
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class Adam(ElementwiseOptimizer):
    """The optimizer Adam: averages of the gradient and of its square, with bias correction.

    Args:
        params: See `Optimizer`.
        lr: Learning rate, a number or a tensor of one element.
        betas: Decays of the two averages.
        eps: Added to the root of the second average.
        weight_decay: Factor of the parameter, which is added to the gradient, or with `decoupled_weight_decay`
            subtracted from the parameter itself.
        amsgrad: Divide by the root of the largest average so far.
        maximize: Maximize the objective.
        foreach, fused: No effect; every step is one launch.
        capturable: Keep the step count on the GPU.
        differentiable: Let gradients flow through `step`.
    """

    record = records.adam
    counted = records.counted_adam

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        if isinstance(lr, Tensor) and foreach and not capturable:
            raise ValueError("lr as a Tensor is not supported for capturable=False and foreach=True")
        check_lr(lr)
        check_least(eps, "epsilon")
        check_betas(betas)
        check_least(weight_decay, "weight_decay")
        _check_kinds(betas, bool(foreach), capturable)
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable,
            "fused": fused, "decoupled_weight_decay": decoupled_weight_decay,
        })  # fmt: skip

    def _states(self, group: Group) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "max_exp_avg_sq") if group["amsgrad"] else ("exp_avg", "exp_avg_sq")

    def _new_state(self, group: Group, p: Tensor) -> Group:
        return {"step": self._counter(group, p)} | {name: zeros(p) for name in self._states(group)}

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        (beta1, beta2), (step,) = group["betas"], after
        bias1, bias2 = 1 - beta1**step, 1 - beta2**step
        return group["lr"], beta1, beta2, group["eps"], group["weight_decay"], bias1, f.sqrt(bias2)

    def _options(self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool) -> AdamOptions:
        decay = group["weight_decay"] != 0
        return AdamOptions(group["amsgrad"], decay, group["decoupled_weight_decay"], group["maximize"])

    def _counted_options(self, options: AdamOptions, rates: Sequence[Tensor]) -> CountedAdamOptions:
        return CountedAdamOptions(*options, bool(rates))


class AdamW(Adam):
    """The optimizer Adam with decoupled weight decay. See `Adam`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad, foreach=foreach, maximize=maximize,
            capturable=capturable, differentiable=differentiable, fused=fused, decoupled_weight_decay=True,
        )  # fmt: skip

    def __setstate__(self, state: Group) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


def _check_kinds(betas: tuple[Any, Any], foreach: bool, capturable: bool) -> None:
    """Raise ValueError for a float together with a tensor, or a tensor of several elements."""
    if not (all(isinstance(b, float) for b in betas) or all(isinstance(b, Tensor) for b in betas)):
        raise ValueError("betas must be either both floats or both Tensors")
    for i, beta in enumerate(betas):
        if isinstance(beta, Tensor):
            if foreach and not capturable:
                raise ValueError(
                    f"betas[{i}] as a Tensor is not supported for capturable=False and foreach=True"
                )
            if beta.numel() != 1:
                raise ValueError(f"Tensor betas[{i}] must be 1-element")


def adam(
    params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor], state_steps: list[Tensor], foreach: bool | None = None,
    capturable: bool = False, differentiable: bool = False, fused: bool | None = None,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None, has_complex: bool = False,
    decoupled_weight_decay: bool = False, *, amsgrad: bool, beta1: float | Tensor, beta2: float | Tensor,
    lr: float | Tensor, weight_decay: float, eps: float, maximize: bool,
) -> None:  # fmt: skip
    """Step Adam on lists of parameters, gradients and states, which change in place. See `Adam`.

    `foreach` and `has_complex` have no effect on the step: it is one launch.

    Raises:
        RuntimeError: If `foreach` is True and `lr` a tensor, without `capturable` or `fused`, as in PyTorch.
    """
    if foreach and not fused and not capturable and isinstance(lr, Tensor):
        raise RuntimeError("lr as a Tensor is not supported for capturable=False and foreach=True")
    group = {
        "capturable": capturable, "differentiable": differentiable,
        "decoupled_weight_decay": decoupled_weight_decay, "amsgrad": amsgrad, "betas": (beta1, beta2),
        "lr": lr, "weight_decay": weight_decay, "eps": eps, "maximize": maximize,
        "fused": fused, "grad_scale": grad_scale, "found_inf": found_inf,
    }  # fmt: skip
    states: dict[str, list[Any]] = {
        "exp_avg": exp_avgs, "exp_avg_sq": exp_avg_sqs, "max_exp_avg_sq": max_exp_avg_sqs,
        "step": state_steps,
    }  # fmt: skip
    step_lists(Adam, group, params, grads, states)
