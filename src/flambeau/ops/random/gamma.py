"""`standard_gamma`: numbers from Gamma distributions of rate 1, with an input that holds the concentrations."""

from __future__ import annotations

import math

import numpy as np

from flambeau.core.random import Array
from flambeau.ops.random.random import TURNS, Draw, by_rejection


def _standard_gamma(alpha: Array, draw: Draw) -> Array:
    """Draw gamma numbers by Marsaglia and Tsang (2000): a cube of a normal number, of which few are rejected.

    Concentrations below 1 take a number of one that is 1 larger, times a power of a uniform number. NaN where a
    concentration is not positive, 0 where it is 0.
    """
    boost = np.where(alpha < 1, draw(0)[0] ** (1 / alpha), 1.0)
    d = np.where(alpha < 1, alpha + 1, alpha) - 1 / 3
    c = 1 / np.sqrt(9 * d)
    out, left = d.copy(), alpha > 0
    for turn in range(1, TURNS - 1, 2):
        if not left.any():
            break
        radius, angle = draw(turn)
        normal = np.sqrt(-2 * np.log(radius)) * np.cos(2 * math.pi * angle)
        cube = (1 + c * normal) ** 3
        bound = 0.5 * normal * normal + d - d * cube + d * np.log(cube)
        good = left & (cube > 0) & (np.log(draw(turn + 1)[0]) < bound)
        out = np.where(good, d * cube, out)
        left &= ~good
    return np.where(alpha > 0, boost * out, np.where(alpha == 0, 0.0, np.nan))


_SOURCE = """
__device__ double standard_gamma(double alpha, u64 seed, u64 counter, u64 element) {
  if (!(alpha > 0)) return alpha == 0 ? 0 : nan("");
  double p[2], boost = 1, d = alpha - 1. / 3;
  if (alpha < 1) {
    unit(philox(seed, counter, element), p);
    boost = pow(p[0], 1 / alpha);
    d += 1;
  }
  const double c = 1 / sqrt(9 * d);
  for (int turn = 1; turn < 127; turn += 2) {
    unit(philox(seed, counter + turn, element), p);
    const double normal = sqrt(-2 * log(p[0])) * cos(6.283185307179586 * p[1]), root = 1 + c * normal;
    if (root <= 0) continue;
    const double cube = root * root * root;
    unit(philox(seed, counter + turn + 1, element), p);
    if (log(p[0]) < 0.5 * normal * normal + d - d * cube + d * log(cube)) return boost * d * cube;
  }
  return boost * d;
}
extern "C" __global__ void run(O0* out, const I0* alpha, u64 seed, u64 offset, i64 n) {
  const i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i < n) out[i] = to<O0>(standard_gamma(to<double>(alpha[i]), seed, offset >> 2, i));
}
"""

standard_gamma = by_rejection("_standard_gamma", _standard_gamma, _SOURCE)
