"""torch.distributed.algorithms.model_averaging: means of parameters over ranks, now and then."""

from __future__ import annotations

from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager, utils

__all__ = ["averagers", "hierarchical_model_averager", "utils"]

explain_absent_names(globals(), "torch.distributed.algorithms.model_averaging")
