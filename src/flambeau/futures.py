"""torch.futures: values that are there later. Works of `torch.distributed` give them."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.future import Future, collect_all, wait_all

__all__ = ["Future", "collect_all", "wait_all"]

explain_absent_names(globals(), "torch.futures")
