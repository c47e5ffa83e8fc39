"""torch.distributed._tensor: the old name of `torch.distributed.tensor`."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.distributed.tensor import *  # noqa: F403
from flambeau.distributed.tensor import experimental  # noqa: F401

__getattr__ = lacking("torch.distributed._tensor")
