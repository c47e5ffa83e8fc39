"""`Adagrad`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import DecayOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, fill_like, step_lists
from flambeau.optim.optimizer import check_least, check_lr, with_values
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class Adagrad(ElementwiseOptimizer):
    """An optimizer that divides each gradient by the root of the sum of all its past squares.

    Args:
        params: See `Optimizer`.
        lr: Learning rate, a number or a tensor of one element.
        lr_decay: The rate at step n is `lr / (1 + (n - 1) * lr_decay)`.
        weight_decay: Factor of the parameter, which is added to the gradient.
        initial_accumulator_value: Initial value of the sum.
        eps: Added to the root of the sum.
        foreach, fused: No effect; every step is one launch.
        maximize: Maximize the objective.
        differentiable: Let gradients flow through `step`.
    """

    record = records.adagrad

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check_lr(lr)
        check_least(lr_decay, "lr_decay")
        check_least(weight_decay, "weight_decay")
        check_least(initial_accumulator_value, "initial_accumulator_value")
        check_least(eps, "epsilon")
        super().__init__(params, {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "fused": fused,
        })  # fmt: skip
        for group in self.param_groups:
            for p in group["params"]:
                self._state_of(group, p, self._states(group))

    def share_memory(self) -> None:
        """Move the states' sums to shared memory."""
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["sum"].share_memory_()

    def _states(self, group: Group) -> tuple[str, ...]:
        return ("sum",)

    def _new_state(self, group: Group, p: Tensor) -> Group:
        start = group["initial_accumulator_value"]
        value = complex(start, start) if p.is_complex() else start
        return {"step": self._counter(group, p), "sum": fill_like(p, value)}

    def _step_sparse(self, group: Group, p: Any, grad: Any) -> None:
        if group["weight_decay"] != 0:
            raise RuntimeError("weight_decay option is not compatible with sparse gradients")
        state, _ = self._state_of(group, p, self._states(group))
        state["step"] += 1
        rate = group["lr"] / (1 + (float(state["step"]) - 1) * group["lr_decay"])
        grad = (-grad if group["maximize"] else grad).coalesce()  # squares of sums, not sums of squares
        values, total = grad.values(), state["sum"]
        total.add_(with_values(grad, values * values))
        root = total.sparse_mask(grad).values().sqrt_().add_(group["eps"])
        p.add_(with_values(grad, values / root), alpha=-rate)

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        lr = group["lr"] / (1 + (after[0] - 1) * group["lr_decay"])
        return lr, group["weight_decay"], group["eps"]

    def _options(
        self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool
    ) -> DecayOptions:
        return DecayOptions(group["weight_decay"] != 0, group["maximize"])


def adagrad(
    params: list[Tensor], grads: list[Tensor], state_sums: list[Tensor], state_steps: list[Tensor],
    fused: bool | None = None, grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
    has_sparse_grad: bool = False, foreach: bool | None = None, differentiable: bool = False,
    has_complex: bool = False, *, lr: float, weight_decay: float, lr_decay: float, eps: float,
    maximize: bool,
) -> None:  # fmt: skip
    """Step Adagrad on lists of parameters, gradients and states, which change in place. See `Adagrad`.

    `has_sparse_grad`, `foreach` and `has_complex` have no effect: every step is one launch.
    """
    group = {
        "differentiable": differentiable, "lr": lr, "weight_decay": weight_decay, "lr_decay": lr_decay,
        "eps": eps, "maximize": maximize,
        "fused": fused, "grad_scale": grad_scale, "found_inf": found_inf,
    }  # fmt: skip
    states: dict[str, list[Any]] = {"sum": state_sums, "step": state_steps}
    step_lists(Adagrad, group, params, grads, states)
