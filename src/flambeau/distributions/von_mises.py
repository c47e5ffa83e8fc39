"""`VonMises`."""

from __future__ import annotations

import math
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core import dtype as dtypes
from flambeau.core.size import Size
from flambeau.distributions import constraints
from flambeau.distributions.distribution import Distribution
from flambeau.distributions.utils import broadcast_all, lazy_property
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.functions.random import rand
from flambeau.tensor.functions.special import i0e, i1e
from flambeau.tensor.tensor import Tensor


class VonMises(Distribution):
    """The von Mises distribution: angles around `loc`, in radians, the circular counterpart of the normal."""

    arg_constraints = {"loc": constraints.real, "concentration": constraints.positive}
    support = constraints.real
    has_rsample = False

    def __init__(self, loc: Any, concentration: Any, validate_args: bool | None = None) -> None:
        self.loc, self.concentration = broadcast_all(loc, concentration)
        super().__init__(self.loc.shape, (), validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> VonMises:
        shape = Size(batch_shape)
        return self._expand_parts(shape, _instance, **self._grown_parts(shape, "loc", "concentration"))

    def log_prob(self, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        k = self.concentration
        log_bessel = i0e(k).log() + k
        return k * (value - self.loc).cos() - math.log(2 * math.pi) - log_bessel

    @lazy_property
    def _proposal_r(self) -> Tensor:
        """Return the parameter of the wrapped Cauchy distribution from which angles are proposed, in double
        precision.
        """
        k = self.concentration.to(dtypes.float64)
        tau = 1 + (1 + 4 * k.square()).sqrt()
        rho = (tau - (2 * tau).sqrt()) / (2 * k)
        return functions["where"](k < 1e-5, 1 / k + k, (1 + rho.square()) / (2 * rho))  # type: ignore[no-any-return]

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw by rejection, as Best and Fisher (1979) do.

        Each round proposes an angle for all elements, until all have accepted one.
        """
        shape = self._extended_shape(sample_shape)
        with no_grad():
            loc, k = self.loc.to(dtypes.float64), self.concentration.to(dtypes.float64)
            r = self._proposal_r
            angles: Any = functions["zeros"](shape, dtype=dtypes.float64, device=loc.device)
            is_done: Any = functions["zeros"](shape, dtype=dtypes.bool_, device=loc.device)
            while not is_done.all():
                u1, u2, u3 = rand((3, *shape), dtype=dtypes.float64, device=loc.device).unbind()
                z = (math.pi * u1).cos()
                f = (1 + r * z) / (r + z)
                c = k * (r - f)
                accepts = ((c * (2 - c) - u2) > 0) | ((c / u2).log() + 1 - c >= 0)
                angles = functions["where"](accepts & ~is_done, (u3 - 0.5).sign() * f.acos(), angles)
                is_done = is_done | accepts
            return ((angles + math.pi + loc) % (2 * math.pi) - math.pi).to(self.loc.dtype)  # type: ignore[no-any-return]

    @property
    def mean(self) -> Tensor:
        """Return the circular mean."""
        return self.loc

    @property
    def mode(self) -> Tensor:
        return self.loc

    @lazy_property
    def variance(self) -> Tensor:
        """Return the circular variance."""
        k = self.concentration
        return 1 - i1e(k) / i0e(k)  # type: ignore[no-any-return]
