"""The error function for float32 numbers, ten times as fast as SciPy's.

# Note [The error function]
atanh(erf(x)) / x is smooth and even, so erf(x) = tanh(x r(x^2)) with a polynomial r; tanh reduces the error of r.
r is fitted on [0, 4], beyond which erf rounds to 1, to a relative error of 7.1e-8, which is 3 units in the last place
with the rounding of float32's arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flambeau.ops.cache_blocks import in_blocks

Array = np.ndarray[Any, Any]

_R = [
    np.float32(c)
    for c in (
        5.4216252124117675e-09, 2.7575563732116154e-08, -4.794600903122385e-06, 8.459656825919097e-05,
        -0.0006148382164856842, -0.00019528818230026972, 0.10276986413172436, 1.1283792471856293,
    )
]  # fmt: skip


def erf(x: Any) -> Any:
    """Return the error function. SciPy computes it for float64."""
    if x.dtype == np.float32:
        return in_blocks(_erf, x)
    from scipy import special  # imported here because it is slow to import

    return special.erf(x)


def _erf(x: Array) -> Array:
    """Return erf(x) as tanh(x r(x^2)). See Note [The error function]."""
    t = np.minimum(x * x, np.float32(16))
    r = t * _R[0]
    for c in _R[1:-1]:
        r += c
        r *= t
    r += _R[-1]
    r *= x
    return np.tanh(r, out=r)


# r(x^2) = a x^2 + b + (c x^2 + d) / (x^4 + e x^2 + f), fitted like the polynomial of erf, to 1.4e-7. It needs
# fewer passes.
_A, _B, _C, _D, _E, _F = (
    np.float32(c)
    for c in (
        -0.0370992012321949, -2.3128247261047363, 3.7931416034698486, 223.40647888183594, 20.744504928588867,
        311.56097412109375,
    )
)  # fmt: skip
_FAR = np.float32(1e6)


def gelu(x: Array) -> Array:
    """Return x times the normal distribution's cumulative probability, for float32 numbers.

    The function is x / (1 + exp(x r(x^2))) with a smooth function r, so nothing cancels. The error is 5 units in the
    last place for x above -1; for smaller x the relative error is a third of that of x (1 + erf(x / sqrt(2))) / 2.
    """
    t = x * x
    if not t.max() <= _FAR:  # x^4 must not overflow
        np.minimum(t, _FAR, out=t)
    below = t + _E
    below *= t
    below += _F
    r = t * _C
    r += _D
    r /= below
    t *= _A
    r += t
    r += _B
    r *= x
    np.exp(r, out=r)
    r += np.float32(1)
    return np.divide(x, r, out=r)
