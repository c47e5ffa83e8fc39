"""torch.utils.data.dataloader: the same names as PyTorch has there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.public_names import publish
from flambeau.data.collate import default_collate, default_convert
from flambeau.data.fetch import _DatasetKind
from flambeau.data.loader import (
    DataLoader,
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)
from flambeau.data.worker import get_worker_info
from flambeau.utils.data.dataset import Dataset, IterableDataset
from flambeau.utils.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler

__all__ = [
    "BatchSampler", "DataLoader", "Dataset", "IterableDataset", "RandomSampler", "Sampler", "SequentialSampler",
    "_BaseDataLoaderIter", "_DatasetKind", "_MultiProcessingDataLoaderIter", "_SingleProcessDataLoaderIter",
    "default_collate", "default_convert", "get_worker_info",
]  # fmt: skip

_collate_fn_t = Callable[[list[Any]], Any]


publish(globals())
