"""torch.quantization: the older name of `torch.ao.quantization`."""

from __future__ import annotations

from flambeau.ao import quantization as _quantization
from flambeau.core.names import lacking

__all__ = list(_quantization.__all__)
globals().update({name: getattr(_quantization, name) for name in __all__})

__getattr__ = lacking("torch.quantization")
