"""`LKJCholesky`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.size import Size
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.beta import Beta
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions.random import randn
from flambeau.tensor.tensor import Tensor


class LKJCholesky(Distribution):
    """A distribution of lower Cholesky factors of correlation matrices of `dim` variables.

    The density of a matrix M is proportional to det(M)**(concentration - 1). Samples are drawn by the onion method of
    Lewandowski, Kurowicka and Joe (2009).
    """

    arg_constraints = {"concentration": constraints.positive}
    support = constraints.corr_cholesky

    def __init__(self, dim: int, concentration: Any = 1.0, validate_args: bool | None = None) -> None:
        if dim < 2:
            raise ValueError(f"Expected dim to be an integer greater than or equal to 2. Found dim={dim}.")
        self.dim = dim
        (self.concentration,) = broadcast_all(concentration)
        order = functions["arange"](dim - 1, dtype=self.concentration.dtype, device=self.concentration.device)
        rows = functions["cat"]([order.new_zeros((1,)), order])
        marginal = self.concentration.unsqueeze(-1) + 0.5 * (dim - 2)
        self._beta = Beta(0.5 * rows + 0.5, marginal - 0.5 * rows)
        super().__init__(self.concentration.size(), (dim, dim), validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> LKJCholesky:
        shape = Size(batch_shape)
        parts = {"dim": self.dim, "concentration": self.concentration.expand(shape)}
        return self._expand_parts(shape, _instance, _beta=self._beta.expand((*shape, self.dim)), **parts)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        with no_grad():
            radius = self._beta.sample(sample_shape).unsqueeze(-1)
            shape = self._extended_shape(sample_shape)
            directions = randn(shape, dtype=radius.dtype, device=radius.device).tril(-1)
            unit = directions / directions.norm(dim=-1, keepdim=True)
            unit[..., 0, :].fill_(0.0)  # the first row has no direction
            rows = radius.sqrt() * unit
            tiny = finfo(rows.dtype).tiny
            diagonal = (1 - rows.square().sum(-1)).clamp(min=tiny).sqrt()
            return rows + diagonal.diag_embed()  # type: ignore[no-any-return]

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        diagonal = value.diagonal(dim1=-1, dim2=-2)[..., 1:]
        c = self.concentration.unsqueeze(-1)
        order = functions["arange"](2, self.dim + 1, device=c.device)
        unnormalized = ((2 * (c - 1) + self.dim - order) * diagonal.log()).sum(-1)
        less = self.dim - 1
        alpha = self.concentration + 0.5 * less
        volume = 0.5 * less * math.log(math.pi) + functions["mvlgamma"](alpha - 0.5, less)
        return unnormalized - (volume - alpha.lgamma() * less)  # type: ignore[no-any-return]
