"""torch.fft: Fourier transforms. See `tensor/functions/fft.py`."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names as _explain_absent_names
from flambeau.core.public_names import publish as _publish
from flambeau.tensor.arguments.arg_aliases import accepting as _accepting
from flambeau.tensor.functions.fft import (
    fft,
    fft2,
    fftfreq,
    fftn,
    fftshift,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftfreq,
    rfftn,
)

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "ihfft2", "ihfftn", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip
globals().update({_name: _accepting(globals()[_name], f"fft_{_name}") for _name in __all__})
_publish(globals())
from flambeau.tensor.tensor import Tensor as Tensor  # noqa: E402 (it is published by another module)

_explain_absent_names(globals(), "torch.fft")
