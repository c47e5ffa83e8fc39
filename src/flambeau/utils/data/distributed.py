"""torch.utils.data.distributed: the same names as PyTorch has there."""

from __future__ import annotations

from flambeau.core.public_names import publish
from flambeau.data.distributed_sampler import DistributedSampler

__all__ = ["DistributedSampler"]

publish(globals())
