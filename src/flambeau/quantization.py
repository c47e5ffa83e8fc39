"""torch.quantization: the older name of `torch.ao.quantization`."""

from __future__ import annotations

from flambeau.ao import quantization as _quantization
from flambeau.core.public_names import explain_absent_names

__path__ = ()  # its submodules are in core/absent_modules/names.txt
__all__ = list(_quantization.__all__)
globals().update({name: getattr(_quantization, name) for name in __all__})

explain_absent_names(globals(), "torch.quantization")
