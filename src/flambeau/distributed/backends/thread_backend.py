"""`ThreadBackend`: collectives of CPU tensors between ranks that are threads, or in a group of one rank.

Such ranks take turns (`core/host/turn_scheduler.py`). A contribution is stored until the last rank has contributed.
That rank computes the results, which therefore do not depend on the order of arrival. A rank that waits passes the
turn to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from flambeau.core.callsite import Site, caller, place
from flambeau.core.dtype import uint8 as _BYTE
from flambeau.core.host.turn_scheduler import seat
from flambeau.core.host_arrays import bytes_at
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.backends.flat_backend import Build, FlatBackend, _nothing
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.stores.store import seconds
from flambeau.distributed.work import Work
from flambeau.driver.collective_rules import PAIRED, common_arguments, describe, perform
from flambeau.driver.protocol import Collective

ANY = -1


class Part:
    """The contribution of one rank: its request and its call site."""

    def __init__(self, rank: int, call: Collective, site: Site, keep: object, called: Sequence[int]) -> None:
        self.rank = rank
        self.called = called  # the program's name for the group's ranks
        self.call = call
        self.site = site
        self.keep = keep  # keeps the tensors alive whose addresses the call holds
        self.peer = call.peer  # a message's peer; for a receive from any rank, once it is known
        self.done = False
        self.error = ""
        self.waits = ""  # text that names the ranks it waits for

    def __str__(self) -> str:
        return f"rank {self.called[self.rank]} at {place(self.site)}: {self.asks}"

    @property
    def asks(self) -> str:
        return describe(self.call, self.called)


class Hub:
    """The local coordinator of one group, which pairs contributions."""

    def __init__(self) -> None:
        self._collectives: dict[int, dict[int, Part]] = {}  # number of the instance -> rank -> contribution
        self._counts: dict[int, int] = {}  # rank -> number of its collectives so far
        self._messages: dict[object, list[Part]] = {}  # channel -> message ends without a partner

    def post(self, part: Part, size: int, channel: object) -> None:
        """Add a contribution. The last one completes the instance."""
        if part.call.kind in PAIRED:
            self._post_message(part, (channel, part.rank if part.call.kind == "recv" else part.call.peer))
            return
        number = self._counts[part.rank] = self._counts.get(part.rank, 0) + 1
        parts = self._collectives.setdefault(number, {})
        parts[part.rank] = part
        missing = [str(part.called[rank]) for rank in range(size) if rank not in parts]
        self._check(parts, f"call {number}")
        if not missing:
            del self._collectives[number]
            _perform([parts[rank] for rank in range(size)])
        for other in parts.values():
            other.waits = f"its call {number} waits for rank {' and '.join(missing)}"

    def _post_message(self, part: Part, key: object) -> None:
        """Pair the two ends of a message. Messages between two ranks pair in order; a receive from any rank takes the
        oldest.
        """
        waiting = self._messages.setdefault(key, [])
        for other in waiting:
            ends = _ends(part, other)
            if ends is not None:
                sender, receiver = ends
                waiting.remove(other)
                receiver.peer = sender.rank
                self._check({sender.rank: sender, -1: receiver}, "a message")
                _perform([sender, receiver])
                return
        end = "recv" if part.call.kind == "send" else "send"
        whose = f"rank {part.called[part.call.peer]}" if part.call.peer != ANY else "any rank"
        part.waits = f"waits for the {end} of {whose}"
        waiting.append(part)

    def _check(self, parts: dict[int, Part], what: str) -> None:
        """Raise DistBackendError on all ranks if they disagree."""
        if len({common_arguments(part.call) for part in parts.values()}) == 1:
            return
        lines = [str(part) for _, part in sorted(parts.items(), key=lambda item: item[1].rank)]
        head = f"collective mismatch: {what} of the group is not the same for all"
        text = "\n  ".join([head, *lines, "all ranks must give the same calls in the same order"])
        for part in parts.values():
            part.done, part.error = True, text
        raise DistBackendError(text)


def _ends(one: Part, other: Part) -> tuple[Part, Part] | None:
    """Return (sender, receiver) if two contributions are the ends of one message."""
    sender, receiver = (one, other) if one.call.kind == "send" else (other, one)
    if sender.call.kind != "send" or receiver.call.kind != "recv":
        return None
    return (sender, receiver) if receiver.call.peer in (ANY, sender.rank) else None


def _perform(parts: Sequence[Part]) -> None:
    perform([part.call for part in parts], bytes_at)
    for part in parts:
        part.done = True


class ThreadBackend(FlatBackend):
    """The backend of ranks that are threads. `hub` is the group's local coordinator."""

    kind = "threads"

    def __init__(self, place: Place, hub: Hub, name: str = "gloo") -> None:
        super().__init__(place)
        self.name = name
        self._hub = hub

    def barrier(self, device: Any = None, async_op: bool = False) -> Work:
        return self._run([], lambda: [Collective("all_reduce", 0, 0, 0, _BYTE)], async_op=async_op)

    def _run(
        self,
        tensors: Sequence[Any],
        build: Build,
        after: Callable[[], None] = _nothing,
        async_op: bool = False,
        results: Sequence[Any] | None = None,
        pair: int | None = None,
        channel: object = None,
    ) -> Work:
        site = caller()
        parts = [Part(self.place.rank, call, site, tensors, self.place.ranks) for call in build()]
        for part in parts:
            self._touch(part.call)
            self._hub.post(part, self.place.size, channel)
        return ThreadWork(list(tensors if results is None else results), parts, after, self.place.name)


class ThreadWork(Work):
    """The work of contributions: done when all of them are."""

    def __init__(
        self, results: list[Any], parts: Sequence[Part], after: Callable[[], None], group: str
    ) -> None:
        super().__init__(results)
        self._parts = parts
        self._after = after
        self._group = group  # the group's name, for reports

    def _test(self) -> bool:
        return all(part.done for part in self._parts)

    def _finish(self, timeout: timedelta | None) -> None:
        mine = seat()
        if not self._test():
            if mine is None:
                raise RuntimeError(f"deadlock: {self._waits()}, and there is no other rank")
            mine.wait(self._test, self._waits, limit=None if timeout is None else seconds(timeout))
        for part in self._parts:
            if part.error:
                raise DistBackendError(part.error)
        self._source = self._parts[0].peer if self._parts else -1
        self._after()

    def _waits(self) -> str:
        part = next(part for part in self._parts if not part.done)
        return f"{part.asks} in group {self._group}: {part.waits}"

    def source_rank(self) -> int:
        self.wait()
        return super().source_rank()
