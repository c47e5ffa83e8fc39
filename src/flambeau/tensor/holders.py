"""`holders`: who looks at a storage by address. What must be told when the storage's memory moves."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

from flambeau.tensor.saved import Saved
from flambeau.tensor.tensor import Tensor


def holders(row: Tensor) -> tuple[Sequence[Tensor | Saved], bool]:
    """All that look at a tensor's storage by address, and whether others refer to it."""
    if sys.getrefcount(row.memory) == 2 + (row.counter is row.memory):
        return [row], False
    frozen = gc.get_freeze_count()  # of these the collector tells nothing
    if frozen:
        gc.unfreeze()
    referrers = gc.get_referrers(row.memory)  # in no variable of ours: a closure's would be one of them
    if frozen:
        gc.collect()
        gc.freeze()
    found = [x for x in referrers if isinstance(x, Tensor | Saved)]
    return [x for x in found if x.memory is row.memory], len(found) < len(referrers)
