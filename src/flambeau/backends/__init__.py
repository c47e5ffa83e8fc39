"""torch.backends: flags that choose how things are computed."""

from __future__ import annotations

from typing import Any

from flambeau.backends import cuda, cudnn, mps

__all__ = ["cuda", "cudnn", "mps"]


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"module 'torch.backends' has no attribute '{name}': Flambeau lacks it (PyTorch may have it)"
    )
