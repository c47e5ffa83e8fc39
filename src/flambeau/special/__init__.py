"""torch.special: special functions. See `tensor/functions/special.py` and `ops/pointwise/pointwise_special.py`."""

from __future__ import annotations

from inspect import unwrap

from flambeau.core.public_names import lacking as _lacking
from flambeau.core.public_names import publish as _publish
from flambeau.tensor.arguments.arg_aliases import accepting as _accepting
from flambeau.tensor.arguments.public import functions as _functions
from flambeau.tensor.arguments.torch_function import announce as _announce
from flambeau.tensor.functions.special import (
    airy_ai,
    bessel_j0,
    bessel_j1,
    bessel_y0,
    bessel_y1,
    chebyshev_polynomial_t,
    chebyshev_polynomial_u,
    chebyshev_polynomial_v,
    chebyshev_polynomial_w,
    entr,
    erfcx,
    hermite_polynomial_h,
    hermite_polynomial_he,
    i0e,
    i1,
    i1e,
    laguerre_polynomial_l,
    legendre_polynomial_p,
    log_ndtr,
    modified_bessel_i0,
    modified_bessel_i1,
    modified_bessel_k0,
    modified_bessel_k1,
    ndtr,
    ndtri,
    polygamma,
    scaled_modified_bessel_k0,
    scaled_modified_bessel_k1,
    shifted_chebyshev_polynomial_t,
    shifted_chebyshev_polynomial_u,
    shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w,
    spherical_bessel_j0,
    xlog1py,
    zeta,
)

# Under their names in `torch`:
digamma = psi = _functions["digamma"]
erf, erfc, erfinv = _functions["erf"], _functions["erfc"], _functions["erfinv"]
exp2, expm1, log1p = _functions["exp2"], _functions["expm1"], _functions["log1p"]
expit, logit = _functions["sigmoid"], _functions["logit"]
gammainc, gammaincc = _functions["igamma"], _functions["igammac"]
gammaln, multigammaln = _functions["lgamma"], _functions["mvlgamma"]
i0, round, sinc, xlogy = _functions["i0"], _functions["round"], _functions["sinc"], _functions["xlogy"]
logsumexp = _functions["logsumexp"]
_LATER = ("log_softmax", "softmax")  # bound by nn/functional, which this room does not wait for
globals().update(
    {
        _name: _accepting(_value, f"special_{_name}")
        for _name, _value in [*globals().items()]
        if _name[0] != "_" and not hasattr(_value, "__wrapped__")
    }
)
_publish(globals())
_raise_absence = _lacking("torch.special")


def __dir__() -> list[str]:
    return [*globals(), *_LATER]


def __getattr__(name: str) -> object:
    if name in _LATER:
        found = globals()[name] = _accepting(unwrap(_functions[name]), f"special_{name}")
        _publish({"__name__": __name__, name: found})
        _announce()
        return found
    _raise_absence(name)
