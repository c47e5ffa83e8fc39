"""torch.distributed._tensor.experimental: the old name of `torch.distributed.tensor.experimental`."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed.tensor.experimental import *  # noqa: F403

__getattr__ = lacking("torch.distributed._tensor.experimental")
