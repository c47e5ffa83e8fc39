"""`torch.quasirandom`: `SobolEngine`, points of low discrepancy.

# Note [Sobol points]
A point is an exclusive or of direction numbers, one row of 30 for each dimension (Sobol 1967; Joe and Kuo 2008). In
the order of the Gray code, point n + 1 differs from point n by the direction number of n's lowest zero bit. SciPy
ships the direction numbers. Scrambling (Matousek 1998) multiplies the bits of direction numbers by a random lower
triangular matrix and shifts all points by random bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flambeau.autograd.grad_mode import no_grad
from flambeau.core import dtype as dtypes
from flambeau.core.public_names import explain_absent_names
from flambeau.runtime.generator import Generator
from flambeau.tensor.exchange.interop import from_numpy
from flambeau.tensor.functions.random import randint
from flambeau.tensor.promotion import get_default_dtype
from flambeau.tensor.tensor import Tensor

__all__ = ["SobolEngine"]
explain_absent_names(globals(), "torch.quasirandom")


class SobolEngine:
    """A source of scrambled or plain Sobol points in the unit cube, on the CPU.

    Args:
        dimension: Dimensions of a point, at most 21,201.
        scramble: True if points are scrambled at random.
        seed: Seed of the scrambling; without it the default generator is used.

    Attributes:
        num_generated: Points that were drawn or skipped.
        sobolstate: Direction numbers, (dimension, 30).
        quasi: The last point, as integers below 2**30.
        shift: The first point, as integers.
    """

    MAXBIT = 30
    MAXDIM = 21201

    def __init__(self, dimension: int, scramble: bool = False, seed: int | None = None) -> None:
        if dimension > self.MAXDIM or dimension < 1:
            raise ValueError(f"Supported range of dimensionality for SobolEngine is [1, {self.MAXDIM}]")
        self.seed, self.scramble, self.dimension = seed, scramble, dimension
        self.num_generated = 0
        numbers = _read_direction_numbers(dimension, self.MAXBIT)
        shift = np.zeros(dimension, np.int64)
        if scramble:
            numbers, shift = self._scramble(numbers)
        self.sobolstate: Tensor = from_numpy(numbers)
        self.shift: Tensor = from_numpy(shift)
        self.quasi: Tensor = self.shift.clone()

    def draw(self, n: int = 1, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """Return the next n points, (n, dimension).

        Args:
            n: Number of points.
            out: Tensor that receives them.
            dtype: Type of the numbers, the default one unless given.
        """
        with no_grad():
            points = self._advance(n).astype(np.float64) / 2**self.MAXBIT
            found = from_numpy(points).to(get_default_dtype() if dtype is None else dtype)
            if out is None:
                return found
            return out.resize_(found.shape).copy_(found)

    def draw_base2(self, m: int, out: Tensor | None = None, dtype: Any = None) -> Tensor:
        """Return the next 2**m points.

        Raises:
            ValueError: If the points drawn so far and these are not a power of two, which the sequence needs.
        """
        n = 2**m
        total = self.num_generated + n
        if total & (total - 1):
            raise ValueError(
                "The balance properties of Sobol' points require "
                f"n to be a power of 2. {self.num_generated} points have been "
                f"previously generated, then: n={self.num_generated}+2**{m}={total}. "
                "If you still want to do this, please use "
                "'SobolEngine.draw()' instead."
            )
        return self.draw(n=n, out=out, dtype=dtype)

    def reset(self) -> SobolEngine:
        """Return to the first point."""
        self.quasi.copy_(self.shift)
        self.num_generated = 0
        return self

    def fast_forward(self, n: int) -> SobolEngine:
        """Skip n points."""
        self._advance(n)
        return self

    def _advance(self, n: int) -> Any:
        """Return the next n points as integers. See Note [Sobol points]."""
        state, last = self.sobolstate.numpy(), self.quasi.numpy()
        steps = np.arange(self.num_generated, self.num_generated + n)
        points = np.empty((n, self.dimension), np.int64)
        if n:
            lowest_zero = np.log2((~(steps - 1) & steps).clip(1)).astype(np.int64)
            changes = state.T[lowest_zero]
            if self.num_generated == 0:
                changes[0] = 0
            points = np.bitwise_xor.accumulate(np.vstack([last, changes]), axis=0)[1:]
            last[:] = points[-1]
        self.num_generated += n
        return points

    def _scramble(self, numbers: Any) -> tuple[Any, Any]:
        """Return scrambled direction numbers and the shift."""
        source = None
        if self.seed is not None:
            source = Generator()
            source.manual_seed(self.seed)
        shape = (self.dimension, self.MAXBIT)
        powers = 2 ** np.arange(self.MAXBIT)
        shift = randint(2, shape, generator=source, dtype=dtypes.int64).numpy() @ powers
        matrices = np.tril(randint(2, (*shape, self.MAXBIT), generator=source, dtype=dtypes.int64).numpy())
        rows = np.arange(self.MAXBIT)
        matrices[:, rows, rows] = 1
        high_first = powers[::-1]
        bits = (numbers[:, :, None] & high_first) != 0  # dimension, direction number, bit
        scrambled = np.einsum("drb,djb->djr", matrices, bits.astype(np.int64)) % 2
        return np.ascontiguousarray(scrambled @ high_first), shift

    def __repr__(self) -> str:
        parts = [f"dimension={self.dimension}"]
        if self.scramble:
            parts.append("scramble=True")
        if self.seed is not None:
            parts.append(f"seed={self.seed}")
        return f"{type(self).__name__}({', '.join(parts)})"


def _read_direction_numbers(dimension: int, bits: int) -> Any:
    """Return SciPy's direction numbers, (dimension, bits)."""
    from scipy.stats import qmc  # takes a second

    return np.array(qmc.Sobol(dimension, scramble=False, bits=bits)._sv, np.int64)
