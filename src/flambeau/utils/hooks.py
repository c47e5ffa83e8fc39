"""torch.utils.hooks: hooks of tensors and whether they travel."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.tape.autograd_node import RemovableHandle
from flambeau.tensor.exchange.sharing import unserializable_hook, warn_if_has_hooks

__all__ = ["RemovableHandle", "unserializable_hook", "warn_if_has_hooks"]
explain_absent_names(globals(), "torch.utils.hooks")
