"""torch.distributed._tensor: the old name of `torch.distributed.tensor`."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed._tensor import experimental
from flambeau.distributed.tensor import *  # noqa: F403

__getattr__ = lacking("torch.distributed._tensor")
