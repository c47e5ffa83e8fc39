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
    t = np.minimum(x * x, np.float32(16))
    r = t * _R[0]
    for c in _R[1:-1]:
        r += c
        r *= t
    r += _R[-1]
    r *= x
    return r


def normal_share(x: Array) -> Array:
    """The normal distribution's cumulative probability of float32 numbers: (1 + tanh(g)) / 2 without cancellation."""
    g = _inner(x * np.float32(0.5**0.5))
    g *= np.float32(-2)
    np.exp(g, out=g)
    g += np.float32(1)
    return np.divide(np.float32(1), g, out=g)
