"""`Adafactor`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.core.typeinfo import finfo
from flambeau.optim.by_parameter import ByParameter
from flambeau.optim.counters import Counters, read, write
from flambeau.optim.optimizer import check_lr
from flambeau.tensor.functions import creation
from flambeau.tensor.functions.norms import vector_norm
from flambeau.tensor.tensor import Tensor

Group = dict[str, Any]


class Adafactor(ByParameter):
    """The optimizer Adafactor: Adam that stores the average of squares as the product of two vectors.

    Args:
        params: See `Optimizer`. They must be real.
        lr: The rate of the weight decay, and the largest step relative to the parameter's size: a number or a tensor of
            one element.
        beta2_decay: The exponent, at most 0, in the weight 1 - step ** beta2_decay of the average.
        eps: Two lower bounds: of the root of the average (None: the dtype's precision), and of the parameter's size.
        d: The largest root mean square of an update, at least 1.
        weight_decay: The factor of the parameter that is subtracted from it, times `lr`.
        foreach: No effect.
        maximize: Maximize the objective.

    No step waits for a GPU; PyTorch's reads two numbers for each parameter.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        check_lr(lr, "Learning rate should be >= 0 but is: {}")
        for holds, text in (
            (beta2_decay <= 0, f"beta2_decay should be <= 0 but is: {beta2_decay}"),
            (eps[0] is None or eps[0] >= 0, f"epsilon1 should be >= 0 but is: {eps[0]}"),
            (eps[1] >= 0, f"epsilon2 should be >= 0 but is: {eps[1]}"),
            (d >= 1, f"Clipping threshold d should be >= 1 but is: {d}"),
            (weight_decay >= 0, f"weight_decay should be >= 0 but is: {weight_decay}"),
        ):
            if not holds:
                raise ValueError(text)
        self._counters = Counters()
        super().__init__(params, {
            "lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay,
            "foreach": foreach, "maximize": maximize,
        })  # fmt: skip

    def _update(self, group: Group, lr: float, p: Any) -> None:
        grad = -p.grad if group["maximize"] else p.grad
        state = self.state[p]
        if not state:
            state.update(_new_state(grad))
        cells = self._counters.of(p, state, ("step",))
        step = read(cells)[0] + 1
        write(cells, (step,))
        least, smallest = group["eps"]
        least = finfo(p.dtype).eps if least is None else least
        size = _rms(p).clamp_(min=smallest)
        if group["weight_decay"]:
            p.mul_(1 - lr * group["weight_decay"])
        update = (
            _variance(state, grad, step ** group["beta2_decay"], least)
            .clamp_(min=least * least)
            .rsqrt_()
            .mul_(grad)
        )
        size.mul_(min(lr, step**-0.5)).div_(_rms(update).div_(group["d"]).clamp_(min=1))
        p.addcmul_(update, size, value=-1)


def _new_state(grad: Any) -> Group:
    state: Group = {"step": creation.zeros(())}
    if grad.dim() < 2:
        return state | {"variance": creation.zeros_like(grad)}
    *batch, rows, columns = grad.shape
    return state | {
        "row_var": grad.new_zeros((*batch, rows, 1)), "col_var": grad.new_zeros((*batch, 1, columns)),
    }  # fmt: skip


def _variance(state: Group, grad: Any, share: float, least: float) -> Any:
    """Return the updated average of the squared gradient, in new memory."""
    if "variance" in state:
        return state["variance"].lerp_(grad * grad, share).clone()
    for name, dim in (("row_var", -1), ("col_var", -2)):
        mean: Any = vector_norm(grad, dim=dim, keepdim=True)
        state[name].lerp_(mean.square_().div_(grad.shape[dim]), share)
    product = state["row_var"] @ state["col_var"]
    return product.div_(state["row_var"].mean(dim=-2, keepdim=True).clamp_(min=least))


def _rms(x: Any) -> Any:
    norm: Any = vector_norm(x)
    return norm.div_(math.sqrt(x.numel()))
