"""torch.utils.data._utils.worker: what worker processes of a `DataLoader` know about themselves."""

from __future__ import annotations

import numpy as np

from flambeau.core.public_names import explain_absent_names
from flambeau.data.worker import WorkerInfo, get_worker_info

__all__ = ["WorkerInfo", "_generate_state", "get_worker_info"]

explain_absent_names(globals(), "torch.utils.data._utils.worker")


def _generate_state(base_seed: int, worker_id: int) -> list[int]:
    """Return four 32-bit words that seed NumPy in a worker.

    Args:
        base_seed: Seed of the loader, a 64-bit number.
        worker_id: Number of the worker.
    """
    entropy = [worker_id, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]
    words: list[int] = np.random.SeedSequence(entropy).generate_state(4).tolist()
    return words
