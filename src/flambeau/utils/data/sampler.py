"""torch.utils.data.sampler: the same names as PyTorch has there."""

from __future__ import annotations

from flambeau.core.public_names import publish
from flambeau.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "SubsetRandomSampler",
    "WeightedRandomSampler",
]

publish(globals())
