"""torch.distributed._tensor.experimental: the old name of `torch.distributed.tensor.experimental`."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.tensor.experimental import *  # noqa: F403

explain_absent_names(globals(), "torch.distributed._tensor.experimental")
