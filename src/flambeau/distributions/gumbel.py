"""`Gumbel`."""

from __future__ import annotations

import math
from numbers import Number
from typing import Any

from flambeau.core.size import Size
from flambeau.core.typeinfo import finfo
from flambeau.distributions import constraints
from flambeau.distributions.transformed_distribution import TransformedDistribution
from flambeau.distributions.transforms import AffineTransform, ExpTransform
from flambeau.distributions.uniform import Uniform
from flambeau.distributions.utils import broadcast_all
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor

EULER = 0.57721566490153286060  # Euler's constant


class Gumbel(TransformedDistribution):
    """The Gumbel distribution, the limit of maxima of many numbers: `loc` is the mode, `scale` the width."""

    arg_constraints = {"loc": constraints.real, "scale": constraints.positive}
    support = constraints.real

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = broadcast_all(loc, scale)
        info = finfo(self.loc.dtype)
        low, high = info.tiny, 1 - info.eps
        both = isinstance(loc, Number) and isinstance(scale, Number)
        edges = (low, high) if both else tuple(creation.full_like(self.loc, edge) for edge in (low, high))
        super().__init__(
            Uniform(*edges, validate_args=validate_args),
            [
                ExpTransform().inv, AffineTransform(0, -creation.ones_like(self.scale)),
                ExpTransform().inv, AffineTransform(loc, -self.scale),
            ],
            validate_args=validate_args,
        )  # fmt: skip

    def expand(self, batch_shape: Any, _instance: Any = None) -> Gumbel:
        made: Any = type(self).__new__(type(self)) if _instance is None else _instance
        for name, value in self._grown_parts(Size(batch_shape), "loc", "scale").items():
            setattr(made, name, value)
        super().expand(batch_shape, made)
        return made  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        return self.loc + self.scale * EULER

    @property
    def mode(self) -> Tensor:
        return self.loc

    @property
    def stddev(self) -> Tensor:
        return math.pi / math.sqrt(6) * self.scale

    @property
    def variance(self) -> Tensor:
        return self.stddev.square()

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        y = (self.loc - value) / self.scale
        return y - y.exp() - self.scale.log()

    def entropy(self) -> Tensor:
        return self.scale.log() + (1 + EULER)
