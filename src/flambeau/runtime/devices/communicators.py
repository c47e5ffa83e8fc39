"""`communicators`: what joins devices of one process for collectives, made on first use. Owner of that table."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from flambeau.runtime import system
from flambeau.runtime.device_context import Context

_made: dict[tuple[Context, ...], list[int]] = {}
_lock = threading.Lock()


def communicators(contexts: Sequence[Context]) -> list[int]:
    """Return the handles of a communicator's members: rank i runs on the i-th of these devices of one machine."""
    key = tuple(contexts)
    with _lock:
        found = _made.get(key)
        if found is None:
            driver = key[0].driver
            members = [(rank, context.driver_index) for rank, context in enumerate(key)]
            found = _made[key] = driver.comm_create(driver.comm_id(), len(key), members)
    return found


def _forget_closed() -> None:
    """Remove communicators whose driver has closed."""
    for key in [key for key in _made if key[0].closed]:
        del _made[key]


system.on_close(_forget_closed)
