"""`_coalescing_manager`: a context manager that issues several collectives of one kind as one.

Inside it `all_reduce`, `all_gather_single` and `reduce_scatter_single` (also under their older names) of its group are
held back and issued as one group when it ends. With `device`, messages are issued as one batch as well; other
collectives begin immediately and the manager waits for their works.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from flambeau.distributed.process_groups import group_or_default
from flambeau.distributed.work import Work
from flambeau.distributed.world import ProcessGroup, world


class HeldCollective(NamedTuple):
    """A collective that a coalescing manager holds back."""

    kind: str
    output: Any
    input: Any
    op: Any


class Pending:
    """The collectives that one manager has held back, and the works that it waits for.

    Attributes:
        everything: True if the manager holds back messages and waits for all works.
    """

    def __init__(self, everything: bool) -> None:
        self.held: list[HeldCollective] = []
        self.messages: list[tuple[str, Any, int, int]] = []
        self.works: list[Work] = []
        self.everything = everything


class _IllegalWork(Work):
    """The result of a held-back collective with `async_op`. It raises ValueError when used."""

    def __init__(self) -> None:
        pass

    def __getattribute__(self, name: str) -> Any:
        if name in _OF_WORKS:
            raise ValueError(f"Illegal to call {name} on IllegalWork object")
        return super().__getattribute__(name)


_OF_WORKS = (
    "is_success",
    "exception",
    "wait",
    "source_rank",
    "result",
    "synchronize",
    "is_completed",
    "get_future",
)


class _CoalescingManager:
    """The object of `with _coalescing_manager() as cm`. Afterwards `cm.wait()` waits for all collectives."""

    def __init__(self) -> None:
        self.works: list[Work] = []

    def append(self, work: Work | None = None) -> None:
        if work is not None:
            self.works.append(work)

    def wait(self) -> None:
        for work in self.works:
            work.wait()


@contextmanager
def _coalescing_manager(
    group: Any = None, device: Any = None, async_ops: bool = False
) -> Iterator[_CoalescingManager]:
    """Hold back collectives of one kind and issue them together. With `async_ops`, `cm.wait()` waits for them.

    If the block raises, no held-back collective is issued.

    Raises:
        ValueError: If the group has an open manager already.
        RuntimeError: If the collectives are of several kinds or operations.
    """
    found = group_or_default(group)
    coalescing = world().coalescing
    if coalescing.get(found.group_name) is not None:
        raise ValueError("ProcessGroup has non-empty op list at the start of coalescing")
    pending = coalescing[found.group_name] = Pending(device is not None)
    manager = _CoalescingManager()
    try:
        yield manager
    finally:
        del coalescing[found.group_name]
    for work in _issue_held_back(found, pending, async_ops):
        if async_ops:
            manager.append(work)
        else:
            work.wait()


def message_kept(group: ProcessGroup, kind: str, tensor: Any, peer: int, tag: int) -> bool:
    """Hold back a message, "send" or "recv", if a manager collects messages. Returns True if it does."""
    pending = world().coalescing.get(group.group_name)
    if pending is None or not pending.everything:
        return False
    pending.messages.append((kind, tensor, peer, tag))
    return True


def hold_back(group: Any, kind: str, output: Any, input: Any, op: Any) -> bool:
    """Hold back a collective if a manager is open; the collective function then returns `not_yet`.

    Returns:
        True if the collective was held back.
    """
    coalescing = world().coalescing
    pending = coalescing.get(group_or_default(group).group_name) if coalescing else None
    if pending is None:
        return False
    pending.held.append(HeldCollective(kind, output, input, op))
    return True


def not_yet(async_op: bool) -> Work | None:
    return _IllegalWork() if async_op else None


def add_work(work: Any) -> Any:
    """Return the work, after adding it to managers that wait for all operations."""
    for pending in world().coalescing.values():
        if pending.everything:
            pending.works.append(work)
    return work


def _issue_held_back(group: ProcessGroup, pending: Pending, async_op: bool) -> list[Work]:
    """Issue all calls that were held back: collectives together, messages together. Returns their works."""
    works = list(pending.works)
    if pending.held:
        works.append(_together(group, pending.held, async_op))
    if pending.messages:
        works += group.backend_for(pending.messages[0][1]).batch(pending.messages)
    return works


def _together(group: ProcessGroup, calls: list[HeldCollective], async_op: bool) -> Work:
    """Return the work of several calls of one kind."""
    first = calls[0]
    if any(call.kind != first.kind for call in calls):
        kinds = {call.kind for call in calls}
        raise RuntimeError(
            f"Coalescing manager requires all collectives to be the same type, but got mixed types: {kinds}"
        )
    if any(call.op != first.op for call in calls):
        raise RuntimeError("Coalescing manager requires all collectives to have the same op")
    backend = group.backend_for(first.input)
    outputs, inputs = [call.output for call in calls], [call.input for call in calls]
    if first.kind == "all_reduce":
        return backend.all_reduce(inputs, first.op, async_op)
    if first.kind == "all_gather_single":
        return backend.all_gather_into(outputs, inputs, async_op)
    return backend.reduce_scatter_from(outputs, inputs, first.op, async_op)
