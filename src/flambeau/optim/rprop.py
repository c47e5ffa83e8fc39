"""`Rprop`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import RpropOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, fill_like, step_lists, zeros
from flambeau.optim.optimizer import check_lr
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class Rprop(ElementwiseOptimizer):
    """The optimizer Rprop, which uses only the signs of gradients. A step grows while the sign stays.

    Args:
        params: See `Optimizer`.
        lr: Size of the first step, a number or a tensor of one element.
        etas: Factors of the size when the sign changes and when it stays.
        step_sizes: Least and greatest size.
        capturable: Keep the step count on the GPU.
        differentiable: Let gradients flow through `step`.
        foreach: No effect; every step is one launch.
        maximize: Maximize the objective.
    """

    record = records.rprop

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_lr(lr)
        if not 0.0 < etas[0] < 1.0 < etas[1]:
            raise ValueError(f"Invalid eta values: {etas[0]}, {etas[1]}")
        super().__init__(params, {
            "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "capturable": capturable,
        })  # fmt: skip

    def _states(self, group: Group) -> tuple[str, ...]:
        return "prev", "step_size"

    def _new_state(self, group: Group, p: Tensor) -> Group:
        lr = float(group["lr"])
        size = fill_like(p, complex(lr, lr) if p.is_complex() else lr)
        return {"step": self._counter(group, p), "prev": zeros(p), "step_size": size}

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        return *group["etas"], *group["step_sizes"]

    def _options(
        self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool
    ) -> RpropOptions:
        return RpropOptions(group["maximize"])


def rprop(
    params: list[Tensor], grads: list[Tensor], prevs: list[Tensor], step_sizes: list[Tensor],
    state_steps: list[Tensor], foreach: bool | None = None, capturable: bool = False,
    maximize: bool = False, differentiable: bool = False, has_complex: bool = False, *,
    step_size_min: float, step_size_max: float, etaminus: float, etaplus: float,
) -> None:  # fmt: skip
    """Step Rprop on lists of parameters, gradients and states, which change in place. See `Rprop`.

    `foreach` and `has_complex` have no effect: every step is one launch.
    """
    group = {
        "capturable": capturable, "maximize": maximize, "differentiable": differentiable,
        "step_sizes": (step_size_min, step_size_max), "etas": (etaminus, etaplus),
    }  # fmt: skip
    states: dict[str, list[Any]] = {"prev": prevs, "step_size": step_sizes, "step": state_steps}
    step_lists(Rprop, group, params, grads, states)
