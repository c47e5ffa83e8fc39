"""Numbers of Gamma, Dirichlet and binomial distributions, which are drawn by rejection: `torch.binomial`,
`torch._standard_gamma`, `torch._sample_dirichlet`.

# Note [Gradients of Gamma's numbers]
A number z of Gamma(a, 1) is drawn by rejection, so no formula of a gives it. Its derivative follows from the rule that
the probability of smaller numbers stays constant: dz/da = -(dP/da) / (dP/dz), where P(a, z) is the incomplete gamma
function and dP/dz the density. dP/da is a central difference in double precision, of P below the mean and of 1 - P
above it, where P nears 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from flambeau.autograd.function import Function, once_differentiable
from flambeau.core.dtype import float32, float64
from flambeau.core.typeinfo import finfo
from flambeau.ops.random.gamma import standard_gamma
from flambeau.runtime.generator import Generator
from flambeau.tensor.arguments.arg_aliases import accepting
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.arguments.torch_function import announce
from flambeau.tensor.functions.random import draw_by_rejection, rand
from flambeau.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
_STEP = 1e-4  # of the concentration, or of its root, which says how wide the numbers lie: right to its square
_SMALL = 16  # trials that `binomial` draws one by one


def _by_parser(define: F) -> F:
    """Return a function that refuses arguments of other types than its annotations say, as PyTorch's parser does."""
    checked: F = accepting(define, define.__name__)
    return checked


class _Drawn(Function):
    """Numbers of Gamma distributions of rate 1. See Note [Gradients of Gamma's numbers]."""

    @staticmethod
    def forward(ctx: Any, concentration: Any, generator: Generator | None) -> Any:  # type: ignore[override]
        value = draw_by_rejection(standard_gamma, concentration.detach().contiguous(), generator)
        value.clamp_(min=finfo(value.dtype).tiny)  # 0 has no logarithm
        ctx.save_for_backward(concentration, value)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Any) -> Any:  # type: ignore[override]
        return grad * _standard_gamma_grad(*ctx.saved_tensors), None


def _standard_gamma_grad(self: Any, output: Any) -> Tensor:
    """Return the derivative of numbers of Gamma distributions with respect to their concentrations.

    Args:
        self: The concentrations.
        output: The numbers.
    """
    a, z = self.double(), output.double().clamp_min(finfo(output.dtype).tiny)
    step = functions["minimum"](a, a.sqrt()) * _STEP
    less, more = functions["igamma"], functions["igammac"]
    below = less(a + step, z) - less(a - step, z)
    above = more(a - step, z) - more(a + step, z)
    change = functions["where"](z < a, below, above) / (2 * step)
    log_density = (a - 1) * z.log() - z - a.lgamma()
    return (-change * (-log_density).exp()).to(output.dtype)  # type: ignore[no-any-return]


@_by_parser
def _standard_gamma(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Return numbers of Gamma distributions of rate 1, differentiable by their concentrations.

    Raises:
        NotImplementedError: If the concentrations are not floating-point numbers, or of 16 bits on the CPU.
    """
    _require_floats(input, "gamma_cpu")
    return _Drawn.apply(input, generator)  # type: ignore[no-any-return]


@_by_parser
def _sample_dirichlet(input: Tensor, generator: Generator | None = None) -> Tensor:
    """Return points of Dirichlet distributions along the last dimension, differentiable by their concentrations.

    Raises:
        NotImplementedError: If the concentrations are not floating-point numbers, or of 16 bits on the CPU.
    """
    _require_floats(input, "dirichlet")
    drawn: Any = _Drawn.apply(input, generator)
    return (drawn / drawn.sum(-1, True)).clamp(min=finfo(drawn.dtype).tiny)  # type: ignore[no-any-return]


def _require_floats(x: Tensor, kernel: str) -> None:
    """Refuse dtypes without a kernel: on the CPU, as in PyTorch, those of 16 bits, too."""
    narrow = x.device.type == "cpu" and x.dtype not in (float32, float64)
    if not x.dtype.is_floating_point or narrow:
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{x.dtype.torch_name}'")


@_by_parser
def binomial(count: Tensor, prob: Tensor, generator: Generator | None = None) -> Tensor:
    """Return numbers of successes in `count` trials of probability `prob`, in the dtype of `count`.

    The distribution is PyTorch's, the numbers are not.

    Raises:
        ValueError: If an argument is not of a floating-point dtype.
        NotImplementedError: If they are of 16 bits on the CPU.
        RuntimeError: If the dtypes differ.
    """
    for name, x in (("count", count), ("prob", prob)):
        if not x.dtype.is_floating_point:
            raise ValueError(
                f"binomial only supports floating-point dtypes for {name}, got: {x.dtype.torch_name}"
            )
    if count.dtype is not prob.dtype:
        raise RuntimeError(
            f"Found dtype {prob.dtype.torch_name} but expected {count.dtype.torch_name}: `prob` must have the dtype of "
            "`count`"
        )
    _require_floats(count, "binomial_cpu")
    where = functions["where"]
    trials, chance = functions["broadcast_tensors"](count.detach(), prob.detach())
    inside = (trials > 0) & (chance > 0) & (chance < 1)
    drawn = draw_binomial(where(inside, trials, 0.0), where(inside, chance, 0.5), generator)
    certain = where(chance >= 1, trials.clamp_min(0), where(chance.isnan(), chance, 0.0))
    return where(inside, drawn, certain)  # type: ignore[no-any-return]


def draw_binomial(count: Tensor, probs: Tensor, generator: Generator | None = None) -> Tensor:
    """Return numbers of successes in `count` trials, which have one shape with `probs`.

    The middle one of n uniform numbers has a beta distribution. Whether it is below the probability decides half of
    the trials, so log2(n) beta numbers leave few trials (Devroye 1986, X.4.3). These are drawn one by one.

    Args:
        count: Numbers of trials, as floating-point numbers.
        probs: Probabilities of success.
        generator: The generator of the numbers; the device's without it.
    """
    where = functions["where"]
    count, probs = count.clone(), probs.clone()
    successes: Any = functions["zeros_like"](count)
    while bool((count > _SMALL).any()):
        large: Any = count > _SMALL
        below = 1 + (count / 2).floor()
        above = count + 1 - below
        shapes = functions["stack"]((where(large, below, 1.0), where(large, above, 1.0)), -1)
        middle = _sample_dirichlet(shapes, generator)[..., 0]
        is_less = middle < probs
        successes = where(large & is_less, successes + below, successes)
        rest = where(is_less, (probs - middle) / (1 - middle), (probs / middle).clamp(max=1.0))
        probs = where(large, rest, probs)
        count = where(large, where(is_less, above - 1, below - 1), count)
    trials = rand((_SMALL, *count.shape), dtype=count.dtype, device=count.device, generator=generator)
    order = functions["arange"](_SMALL, device=count.device).view((-1,) + (1,) * count.dim())
    return successes + ((trials < probs) & (order < count)).to(count.dtype).sum(0)  # type: ignore[no-any-return]


announce({define.__name__: define for define in (_sample_dirichlet, _standard_gamma, binomial)})


announce({"binomial": binomial})
