"""Messages between two ranks: `send`, `recv` and their like. Both call; on GPUs each is work of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.distributed.collectives import collective_checks
from flambeau.distributed.collectives.coalescing import message_kept, not_yet
from flambeau.distributed.process_groups import get_global_rank, group_or_default, group_rank_of, is_outside
from flambeau.distributed.work import Work


def isend(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> Work | None:
    """Start sending a tensor.

    Args:
        dst: Global rank of the receiver.
        tag: Tag to match; nccl has no tags.
        group_dst: Rank of the receiver in the group, instead of `dst`.
    """
    if is_outside(group, "isend"):
        return None
    found = group_or_default(group)
    to = collective_checks.root(group_rank_of(found, dst, group_dst), found.size(), "send")
    collective_checks.single(tensor, "tensor")
    tag = collective_checks.tag(tag)
    if message_kept(found, "send", tensor, to, tag):
        return not_yet(True)
    return found.backend_for(tensor).send(tensor, to, tag)


def irecv(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> Work | None:
    """Start receiving a tensor.

    Args:
        src: Global rank of the sender; None for any rank if the backend supports it (gloo, mpi).
        tag: Tag to match; nccl has no tags.
        group_src: Rank of the sender in the group, instead of `src`.
    """
    collective_checks.single(tensor, "tensor")
    if is_outside(group, "irecv"):
        return None
    found = group_or_default(group)
    backend, tag = found.backend_for(tensor), collective_checks.tag(tag)
    if src is None and group_src is None:
        return backend.recv(tensor, None, tag)
    origin = collective_checks.root(group_rank_of(found, src, group_src), found.size(), "recv")
    if message_kept(found, "recv", tensor, origin, tag):
        return not_yet(True)
    return backend.recv(tensor, origin, tag)


def send(
    tensor: Any, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None
) -> None:
    """Send a tensor. On the CPU the call may return before or after the other rank has received it."""
    if is_outside(group, "send"):
        return
    found = group_or_default(group)
    collective_checks.other(found, group_rank_of(found, dst, group_dst), "destination")
    work = isend(tensor, dst, group, tag, group_dst)
    assert work is not None
    work.wait()


def recv(
    tensor: Any, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None
) -> int:
    """Receive into a tensor; the sender's rank among all ranks. -1 outside of the group."""
    if is_outside(group, "irecv"):
        return -1
    found, named = group_or_default(group), (src, group_src) != (None, None)
    if named:
        collective_checks.other(found, group_rank_of(found, src, group_src), "source")
    work = irecv(tensor, src, group, tag, group_src)
    assert work is not None
    work.wait()
    return get_global_rank(found, group_rank_of(found, src, group_src) if named else work.source_rank())


class P2POp:
    """A message of a batch: `op` is `isend` or `irecv`, `peer` a global rank, `group_peer` a rank of the group."""

    __module__ = "flambeau.distributed"

    def __init__(
        self,
        op: Callable[..., Work | None],
        tensor: Any,
        peer: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_peer: int | None = None,
    ) -> None:
        if op not in (isend, irecv):
            raise ValueError(
                "Invalid ``op``. Expected ``op`` to be of type ``torch.distributed.isend`` or "
                "``torch.distributed.irecv``."
            )
        collective_checks.single(tensor, "tensor")
        self.op = op
        self.tensor = tensor
        self.group = group_or_default(group)
        self.group_peer = group_rank_of(self.group, peer, group_peer)
        self.peer = get_global_rank(self.group, self.group_peer)
        self.tag = tag

    def __repr__(self) -> str:
        mine = self.group.rank()
        ends = (mine, self.group_peer) if self.op is isend else (self.group_peer, mine)
        return (
            f"P2POp({self.op.__name__} pg={self.group.group_name}, group_src={ends[0]}, group_dst={ends[1]},  "
            f"{self.tensor.shape}, {self.tensor.dtype})"
        )


def batch_isend_irecv(p2p_op_list: list[P2POp]) -> list[Work]:
    """Start several messages that do not wait for each other. With nccl one work stands for all messages."""
    if not isinstance(p2p_op_list, list) or not all(isinstance(op, P2POp) for op in p2p_op_list):
        raise ValueError(
            "Invalid ``p2p_op_list``. Each op is expected to to be of type ``torch.distributed.P2POp``."
        )
    if not p2p_op_list:
        raise ValueError("batch_isend_irecv: there must be at least one message")
    group = p2p_op_list[0].group
    if any(op.group is not group for op in p2p_op_list):
        raise ValueError("All ops need to use the same group.")
    messages = [
        (
            "send" if op.op is isend else "recv",
            op.tensor,
            collective_checks.root(op.group_peer, group.size(), "send"),
            op.tag,
        )
        for op in p2p_op_list
    ]
    return group.backend_for(p2p_op_list[0].tensor).batch(messages)
