"""`HalfNormal`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.distributions.families import FoldedAtZero
from flambeau.distributions.normal import Normal
from flambeau.distributions.transforms import AbsTransform
from flambeau.tensor.tensor import Tensor


class HalfNormal(FoldedAtZero):
    """The absolute value of a number of `Normal(0, scale)`."""

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Normal(0, scale, validate_args=False), AbsTransform(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    def variance(self) -> Tensor:
        return self.scale.square() * (1 - 2 / math.pi)
