"""torch.distributed._tensor: the old name of `torch.distributed.tensor`."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed._tensor import experimental
from flambeau.distributed.tensor import *  # noqa: F403

explain_absent_names(globals(), "torch.distributed._tensor")
