"""The error function of float32 numbers, ten times SciPy's speed.

# Note [The error function]
atanh(erf(x)) / x is smooth and even, so that erf(x) = tanh(x r(x^2)) with a polynomial r; tanh flattens what r is off
by. Fitted on [0, 4], beyond which erf rounds to 1, to a relative error of 7.1e-8: 3 units in the last place with
the rounding of float32's arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flambeau.ops.blocks import in_blocks

Array = np.ndarray[Any, Any]

_R = [
    np.float32(c)
    for c in (
        5.4216252124117675e-09, 2.7575563732116154e-08, -4.794600903122385e-06, 8.459656825919097e-05,
        -0.0006148382164856842, -0.00019528818230026972, 0.10276986413172436, 1.1283792471856293,
    )
]  # fmt: skip


def erf(x: Any) -> Any:
    """The error function. float64 is SciPy's."""
    if x.dtype == np.float32:
        return in_blocks(_erf, x)
    from scipy import special  # only where it is needed: it is slow to import

    return special.erf(x)


def _erf(x: Array) -> Array:
    g = _inner(x)
    return np.tanh(g, out=g)


def _inner(x: Array) -> Array:
    """x r(x^2): see Note [The error function]."""
    return _odd(x, np.minimum(x * x, np.float32(16)), _R)


def _odd(x: Array, t: Array, coefficients: list[np.float32]) -> Array:
    """x times the polynomial of `t`."""
    r = t * coefficients[0]
    for c in coefficients[1:-1]:
        r += c
        r *= t
    r += coefficients[-1]
    r *= x
    return r


# -2 y r(y^2) for y = x / sqrt(2), as a polynomial of x^2
_G = [np.float32(-(2.0**0.5) * float(c) * 0.5 ** (len(_R) - 1 - k)) for k, c in enumerate(_R)]


def gelu(x: Array) -> Array:
    """x times the normal distribution's probability of less than x, for float32 numbers.

    That is (1 + erf(y)) / 2 = (1 + tanh(g)) / 2 = 1 / (1 + exp(-2 g)), without cancellation.
    """
    g = _odd(x, np.minimum(x * x, np.float32(32)), _G)
    np.exp(g, out=g)
    g += np.float32(1)
    return np.divide(x, g, out=g)
