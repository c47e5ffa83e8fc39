"""torch.ao: `torch.ao.quantization` is importable, so that programs which only mention it run."""

from __future__ import annotations

from flambeau.ao import quantization
from flambeau.core.names import lacking

__all__ = ["quantization"]

__getattr__ = lacking("torch.ao")
