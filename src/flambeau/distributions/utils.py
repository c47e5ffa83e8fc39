"""`torch.distributions.utils`: parameters of one shape, probabilities and logits, properties computed once."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

from flambeau.autograd.grad_mode import enable_grad
from flambeau.core.names import lacking
from flambeau.core.typeinfo import finfo
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.exchange.data import tensor
from flambeau.tensor.promotion import get_default_dtype
from flambeau.tensor.tensor import Tensor


def broadcast_all(*values: Any) -> tuple[Tensor, ...]:
    """Tensors of one shape. Numbers become tensors of the first tensor's dtype and device, else of the default ones.

    Raises ValueError: neither numbers nor tensors.
    """
    if not all(isinstance(v, (Number, Tensor)) for v in values):
        raise ValueError(
            "Input arguments must all be instances of Number, torch.Tensor or objects implementing __torch_function__."
        )
    first = next((v for v in values if isinstance(v, Tensor)), None)
    options: dict[str, Any] = {"dtype": get_default_dtype()}
    if first is not None:
        options = {"dtype": first.dtype, "device": first.device}
    return tuple(
        functions["broadcast_tensors"](
            *[v if isinstance(v, Tensor) else tensor(v, **options) for v in values]
        )
    )


def one_of_two(first: Any, second: Any, names: str = "`probs` or `logits`") -> None:
    """Raises ValueError unless exactly one is given."""
    if (first is None) == (second is None):
        raise ValueError(f"Either {names} must be specified, but not both.")


def clamp_probs(probs: Tensor) -> Tensor:
    """Probabilities away from 0 and 1 by the dtype's precision, so that their logarithms are finite."""
    eps = finfo(probs.dtype).eps
    return probs.clamp(min=eps, max=1 - eps)


def logits_to_probs(logits: Tensor, is_binary: bool = False) -> Tensor:
    """Probabilities of log-odds (`is_binary`), or of unnormalized logarithms over the last dimension."""
    return logits.sigmoid() if is_binary else logits.softmax(-1)


def probs_to_logits(probs: Tensor, is_binary: bool = False) -> Tensor:
    """The reverse of `logits_to_probs`."""
    inside = clamp_probs(probs)
    return inside.log() - (-inside).log1p() if is_binary else inside.log()


class lazy_property:
    """A property that is computed once, on the tape, and then is an attribute."""

    def __init__(self, wrapped: Callable[[Any], Any]) -> None:
        self.wrapped = wrapped
        self.__doc__ = wrapped.__doc__

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        with enable_grad():
            value = self.wrapped(instance)
        setattr(instance, self.wrapped.__name__, value)
        return value


__getattr__ = lacking("torch.distributions.utils")
