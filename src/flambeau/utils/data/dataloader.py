"""torch.utils.data.dataloader: the same names as PyTorch has there."""

from __future__ import annotations

from flambeau.core.names import publish
from flambeau.data.collate import default_collate, default_convert
from flambeau.data.loader import DataLoader
from flambeau.data.worker import get_worker_info

__all__ = ["DataLoader", "default_collate", "default_convert", "get_worker_info"]

publish(globals())
