"""The exceptions of `distributed`, under PyTorch's names."""

from __future__ import annotations


class DistError(RuntimeError):
    """An error of `distributed`."""

    __module__ = "flambeau.distributed"


class DistBackendError(DistError):
    """An error of a collective operation."""

    __module__ = "flambeau.distributed"


class DistNetworkError(DistError):
    """An error of a connection that could not be made, or broke."""

    __module__ = "flambeau.distributed"


class DistStoreError(DistError):
    """An error of a store that could not complete a request in time."""

    __module__ = "flambeau.distributed"


class DeadlockError(DistStoreError):
    """An error of ranks that all wait: each for another one, or for one that has ended."""


class QueueEmptyError(DistStoreError):
    """An error of `queue_pop(block=False)` for a queue without values."""

    __module__ = "flambeau.distributed"
