"""torch.distributed.algorithms.model_averaging: periodic averages of parameters over ranks."""

from __future__ import annotations

from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager, utils

__all__ = ["averagers", "hierarchical_model_averager", "utils"]

explain_absent_names(globals(), "torch.distributed.algorithms.model_averaging")
