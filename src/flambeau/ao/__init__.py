"""torch.ao: `torch.ao.quantization` is importable, so that programs which only mention it run."""

from __future__ import annotations

from flambeau.ao import quantization
from flambeau.core.public_names import explain_absent_names

__all__ = ["quantization"]

explain_absent_names(globals(), "torch.ao")
