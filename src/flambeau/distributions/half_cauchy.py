"""`HalfCauchy`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.distributions.cauchy import Cauchy
from flambeau.distributions.families import FoldedAtZero
from flambeau.distributions.transforms import AbsTransform
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions import creation
from flambeau.tensor.tensor import Tensor


class HalfCauchy(FoldedAtZero):
    """The absolute value of a number of `Cauchy(0, scale)`. It has no mean."""

    def __init__(self, scale: Any, validate_args: bool | None = None) -> None:
        super().__init__(Cauchy(0, scale, validate_args=False), AbsTransform(), validate_args=validate_args)

    @property
    def mean(self) -> Tensor:
        return creation.full_like(self.scale.expand(self._extended_shape()), math.inf)

    @property
    def variance(self) -> Tensor:
        return self.base_dist.variance  # type: ignore[no-any-return]

    def _log_density(self, value: Any) -> Tensor:
        return super()._log_density(
            functions["as_tensor"](value, dtype=self.scale.dtype, device=self.scale.device)
        )
