"""`SGD`, with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flambeau.ops.multi_tensor import optimizer as records
from flambeau.ops.multi_tensor.optimizer import SGDOptions
from flambeau.optim.elementwise_optimizer import ElementwiseOptimizer, step_lists, zeros
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class SGD(ElementwiseOptimizer):
    """The optimizer SGD, stochastic gradient descent.

    Args:
        params: See `Optimizer`.
        lr: Learning rate, a number or a tensor of one element.
        momentum, dampening: The buffer becomes `momentum * buffer + (1 - dampening) * grad`; it starts as the gradient.
        weight_decay: Factor of the parameter, which is added to the gradient.
        nesterov: Use Nesterov's momentum.
        maximize: Maximize the objective.
        foreach, fused: No effect; every step is one launch.
        differentiable: Let gradients flow through `step`.
    """

    record = records.sgd
    counters: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        for name, value in (
            ("learning rate", lr),
            ("momentum value", momentum),
            ("weight_decay value", weight_decay),
        ):
            if value < 0.0:
                raise ValueError(f"Invalid {name}: {value}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        super().__init__(params, {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach, "differentiable": differentiable,
            "fused": fused,
        })  # fmt: skip

    def _states(self, group: Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] != 0 else ()

    def _new_state(self, group: Group, p: Tensor) -> Group:
        return {name: zeros(p) for name in self._states(group)}

    def _step_sparse(self, group: Group, p: Any, grad: Any) -> None:
        if group["weight_decay"] != 0:
            grad = grad.add(
                p, alpha=group["weight_decay"]
            )  # raises: a sum with a strided tensor is not sparse
        if group["maximize"]:
            grad = -grad
        if group["momentum"] != 0:
            state = self.state[p]
            buffer = state.get("momentum_buffer")
            if buffer is None:
                buffer = state["momentum_buffer"] = grad.clone()
            else:
                buffer.mul_(group["momentum"]).add_(grad, alpha=1 - group["dampening"])
            grad = grad.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
        p.add_(grad, alpha=-group["lr"])

    def _scalars(self, group: Group, f: Any, before: Sequence[Any], after: Sequence[Any]) -> Sequence[Any]:
        return group["lr"], group["weight_decay"], group["momentum"], group["dampening"]

    def _options(self, group: Group, before: Sequence[Any], after: Sequence[Any], fresh: bool) -> SGDOptions:
        momentum = group["momentum"] != 0
        return SGDOptions(
            momentum, group["nesterov"], group["weight_decay"] != 0, group["maximize"], momentum and fresh
        )


def sgd(
    params: list[Tensor], d_p_list: list[Tensor], momentum_buffer_list: list[Tensor | None],
    has_sparse_grad: bool = False, foreach: bool | None = None, fused: bool | None = None,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None, *, weight_decay: float,
    momentum: float, lr: float, dampening: float, nesterov: bool, maximize: bool,
) -> None:  # fmt: skip
    """Step SGD on lists of parameters, gradients and states, which change in place. See `SGD`.

    `has_sparse_grad` and `foreach` have no effect: every step is one launch.
    """
    group = {
        "weight_decay": weight_decay, "momentum": momentum, "lr": lr, "dampening": dampening,
        "nesterov": nesterov, "maximize": maximize,
        "fused": fused, "grad_scale": grad_scale, "found_inf": found_inf,
    }  # fmt: skip
    states: dict[str, list[Any]] = {"momentum_buffer": momentum_buffer_list}
    step_lists(SGD, group, params, d_p_list, states)
