"""The exceptions of `distributed`, under PyTorch's names."""

from __future__ import annotations


class DistError(RuntimeError):
    """The base class of the errors of `torch.distributed`."""

    __module__ = "flambeau.distributed"


class DistBackendError(DistError):
    """The error raised if a collective operation fails."""

    __module__ = "flambeau.distributed"


class DistNetworkError(DistError):
    """The error raised if a connection cannot be made, or breaks."""

    __module__ = "flambeau.distributed"


class DistStoreError(DistError):
    """The error raised if a store cannot complete a request in time."""

    __module__ = "flambeau.distributed"


class DeadlockError(DistStoreError):
    """The error raised if all ranks wait: each for another one, or for one that has ended."""


class QueueEmptyError(DistStoreError):
    """The error raised by `queue_pop(block=False)` if the queue has no values."""

    __module__ = "flambeau.distributed"
