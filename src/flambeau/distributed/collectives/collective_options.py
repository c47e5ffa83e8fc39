"""Options of a group's own methods, `group.allreduce([t], options)`, as PyTorch names them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flambeau.distributed.collectives.reduce_op import RedOpType, ReduceOp

_UNSET = timedelta(milliseconds=-1)


class CollectiveOptions:
    """The base of the options of collectives.

    Attributes:
        timeout: Time limit; negative for the group's.
        asyncOp: True (default) returns before the collective has finished. False first makes the current stream, or on
            the CPU the host, wait for it.
    """

    __slots__ = ("asyncOp", "timeout")

    def __init__(self) -> None:
        self.asyncOp = True
        self.timeout = _UNSET

    def as_keywords(self) -> dict[str, Any]:
        """Return the options as keyword arguments of the group's methods."""
        options = {} if self.timeout < timedelta() else {"timeout": self.timeout}
        for field, name in (("reduceOp", "op"), ("rootRank", "root")):
            if hasattr(self, field):
                options[name] = getattr(self, field)
        return options


class _Reducing(CollectiveOptions):
    __slots__ = ("reduceOp",)

    def __init__(self) -> None:
        super().__init__()
        self.reduceOp = ReduceOp(RedOpType.SUM)


class _Rooted(CollectiveOptions):
    __slots__ = ("rootRank",)

    def __init__(self) -> None:
        super().__init__()
        self.rootRank = 0


class AllreduceOptions(_Reducing):
    """The options of `allreduce`: `reduceOp`."""

    __slots__ = ()


class AllreduceCoalescedOptions(AllreduceOptions):
    """The options of `allreduce_coalesced`: `reduceOp`."""

    __slots__ = ()


class ReduceScatterOptions(_Reducing):
    """The options of `reduce_scatter`: `reduceOp`."""

    __slots__ = ()


class ReduceOptions(_Reducing):
    """The options of `reduce`: `reduceOp`, and `rootRank` in the group."""

    __slots__ = ("rootRank", "rootTensor")

    def __init__(self) -> None:
        super().__init__()
        self.rootRank = self.rootTensor = 0


class BroadcastOptions(_Rooted):
    """The options of `broadcast`: `rootRank` in the group."""

    __slots__ = ("rootTensor",)

    def __init__(self) -> None:
        super().__init__()
        self.rootTensor = 0


class GatherOptions(_Rooted):
    """The options of `gather`: `rootRank` in the group."""

    __slots__ = ()


class ScatterOptions(_Rooted):
    """The options of `scatter`: `rootRank` in the group."""

    __slots__ = ()


class AllgatherOptions(CollectiveOptions):
    """The options of `allgather`."""

    __slots__ = ()


class AllToAllOptions(CollectiveOptions):
    """The options of `alltoall`."""

    __slots__ = ()


class BarrierOptions(CollectiveOptions):
    """The options of `barrier`: `device_ids`, whose first device waits, or `device`."""

    __slots__ = ("device", "device_ids")

    def __init__(self) -> None:
        super().__init__()
        self.device: Any = None
        self.device_ids: list[int] = []

    def as_keywords(self) -> dict[str, Any]:
        ids = self.device_ids or ([] if self.device is None else [self.device.index])
        return {**super().as_keywords(), **({"device_ids": ids} if ids else {})}
