"""torch.optim.adamw: the module that shows `AdamW`."""

from __future__ import annotations

from flambeau.core.names import explain_absent_names
from flambeau.optim.adam import AdamW

__all__ = ["AdamW"]

explain_absent_names(globals(), "torch.optim.adamw")
