"""The host's own work that virtual GPUs count: views, creations, calls of modules, nodes of the autograd graph.

Launches, copies and waits reach the driver, which adds their time itself. The work here makes no driver call, so
the code that does it calls `charge`. It is None unless the machine in use simulates the host's time. Only work on
CUDA tensors counts. Where a warm path cannot afford the check, it looks into an empty table while `charge` is set,
as in Note [Interception]. Owner of the subscriber.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

KINDS = ("view", "creation", "module", "record", "backward", "node")
VIEW, CREATION, MODULE, RECORD, BACKWARD, NODE = range(len(KINDS))
"""A view; a tensor created without a launch; a call of a module; a recorded node; a run of backward; a node that it
runs."""
LIBRARY = -1
"""Counts calls that PyTorch passes to a library as a whole: 1 begins one, -1 ends it."""

Charge = Callable[[int, int], None]
"""A subscriber. Its arguments are the kind of work and how often it was done."""

charge: Charge | None = None
_subscribers: list[Callable[[], None]] = []


def on_change(changed: Callable[[], None]) -> None:
    """Register a function that is called whenever `charge` becomes None or another subscriber."""
    _subscribers.append(changed)


def use(subscriber: Charge | None) -> None:
    """Set the subscriber that counts host work; None for none."""
    global charge
    charge = subscriber
    for changed in _subscribers:
        changed()


@contextmanager
def library_call() -> Iterator[None]:
    """Count the launches inside the block as launches of a library: each costs the host less than a call of an
    operator.
    """
    subscriber = charge
    if subscriber is None:
        yield
        return
    subscriber(LIBRARY, 1)
    try:
        yield
    finally:
        subscriber(LIBRARY, -1)
