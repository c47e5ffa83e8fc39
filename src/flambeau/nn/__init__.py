"""torch.nn: so far its functions. Modules need automatic differentiation, and come with it."""

from __future__ import annotations

from typing import Any

from flambeau.nn import functional
from flambeau.nn.functional import namespace as _namespace  # binds the torch namespace's own forms


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module 'torch.nn' has no attribute '{name}': Flambeau lacks it (PyTorch may have it)"
    )
