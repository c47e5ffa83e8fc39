"""torch.distributed.algorithms.model_averaging: means of parameters over ranks, now and then."""

from __future__ import annotations

from typing import Any

from flambeau.core.names import lacking
from flambeau.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager, utils

__all__ = ["averagers", "hierarchical_model_averager", "utils"]

__getattr__: Any = lacking("torch.distributed.algorithms.model_averaging")
