"""torch.utils.hooks: hooks of tensors and whether they travel."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.tape.node import RemovableHandle
from flambeau.tensor.exchange.sharing import unserializable_hook, warn_if_has_hooks

__all__ = ["RemovableHandle", "unserializable_hook", "warn_if_has_hooks"]
__getattr__ = lacking("torch.utils.hooks")
