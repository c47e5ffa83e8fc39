"""`Backend`: the interface to an implementation of collectives for one kind of device in one group.

Implementations are NCCL on GPUs (`nccl_backend.py`), threads of one process (`thread_backend.py`), MPI
(`mpi_backend.py`) and TCP (`tcp_backend.py`). Ranks are numbers within the group. The public functions have checked
the arguments: tensors are of `device_type`, lists are as long as the group, sizes match. Each method begins the
operation and returns its `Work`. With `async_op` False the caller waits for it immediately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from flambeau.distributed.work import Work


@dataclass(frozen=True)
class Place:
    """The position of a backend in its group.

    Attributes:
        rank, size: This rank's number in the group, and the number of ranks.
        name: The group's name.
        ranks: Global ranks of the members.
        store: The group's part of the store that all ranks share.
        priority: Priority of the group's streams.
    """

    rank: int
    size: int
    ranks: tuple[int, ...]
    name: str
    store: Any
    timeout: timedelta
    priority: int = 0

    @property
    def whole(self) -> bool:
        """Return True if the group consists of all ranks, in their order."""
        return self.ranks == tuple(range(self.size)) and self.name == DEFAULT


DEFAULT = "0"  # the name of the group of all ranks


class Backend:
    """The base class of backends.

    Attributes:
        name: PyTorch's name of the backend.
        kind: The implementation. Reports show it with the name.
        device_type: The type of devices whose tensors it accepts.
        place: This rank's position in the group.
        timeout: The timeout of operations.
        agreement: Compares the collectives of the ranks before they begin; None unless the debug level is DETAIL.
    """

    name = "undefined"
    kind = "undefined"
    device_type = "cpu"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.timeout = place.timeout
        self.agreement: Any = None  # compares collectives before they begin: see debug.py

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations."""
        self.timeout = timeout
        if self.agreement is not None:
            self.agreement.timeout = timeout

    # -- all ranks --------------------------------------------------------------------------------------
    def all_reduce(self, tensors: Sequence[Any], op: Any, async_op: bool = False) -> Work:
        """Reduce each tensor over all ranks, in place. Several tensors are coalesced."""
        self._lacks("allreduce")

    def broadcast(self, tensor: Any, root: int, async_op: bool = False) -> Work:
        """Copy the root's values to every rank."""
        self._lacks("broadcast")

    def reduce(self, tensor: Any, root: int, op: Any, async_op: bool = False) -> Work:
        """Reduce over all ranks. The root's tensor gets the result; the others are unchanged."""
        self._lacks("reduce")

    def all_gather(self, outputs: Sequence[Any], tensor: Any, async_op: bool = False) -> Work:
        """Gather every rank's tensor into the outputs, by rank. Sizes may differ by rank."""
        self._lacks("allgather")

    def all_gather_into(self, outputs: Sequence[Any], tensors: Sequence[Any], async_op: bool = False) -> Work:
        """Gather, for each pair, every rank's tensor into one output that is `size` times as large."""
        self._lacks("allgather_into_tensor")

    def gather(self, outputs: Sequence[Any] | None, tensor: Any, root: int, async_op: bool = False) -> Work:
        """Gather every rank's tensor into the root's outputs, which are None on other ranks."""
        self._lacks("gather")

    def scatter(self, tensor: Any, inputs: Sequence[Any] | None, root: int, async_op: bool = False) -> Work:
        """Copy one of the root's inputs to each rank's tensor. `inputs` is None on other ranks."""
        self._lacks("scatter")

    def reduce_scatter(self, output: Any, inputs: Sequence[Any], op: Any, async_op: bool = False) -> Work:
        """Reduce the ranks' inputs for this rank. Inputs of different ranks may differ in size."""
        self._lacks("reduce_scatter")

    def reduce_scatter_from(
        self, outputs: Sequence[Any], tensors: Sequence[Any], op: Any, async_op: bool = False
    ) -> Work:
        """Reduce, for each pair, this rank's part of a tensor that is `size` times as large as the output."""
        self._lacks("reduce_scatter_tensor")

    def all_to_all(self, outputs: Sequence[Any], inputs: Sequence[Any], async_op: bool = False) -> Work:
        """Send input n to rank n and receive output n from rank n."""
        self._lacks("alltoall")

    def barrier(self, device: Any = None, async_op: bool = False) -> Work:
        """Wait until all ranks have joined the barrier. `device` selects the device whose queue waits."""
        self._lacks("barrier")

    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        """Wait until all ranks have joined; a timeout names the missing ranks, all or the first."""
        self.barrier().wait(timeout)

    # -- two ranks --------------------------------------------------------------------------------------
    def send(self, tensor: Any, to: int, tag: int = 0) -> Work:
        """Send a tensor. After the work, the tensor may be changed."""
        self._lacks("send")

    def recv(self, tensor: Any, origin: int | None, tag: int = 0) -> Work:
        """Receive into a tensor, from any rank if `origin` is None. The work's `source_rank` is the sender."""
        self._lacks("recv")

    def batch(self, messages: Sequence[tuple[str, Any, int, int]]) -> list[Work]:
        """Send and receive messages, ("send" or "recv", tensor, peer, tag), that do not wait for each other."""
        return [
            self.send(tensor, peer, tag) if kind == "send" else self.recv(tensor, peer, tag)
            for kind, tensor, peer, tag in messages
        ]

    # -- the end ----------------------------------------------------------------------------------------
    def close(self) -> None:
        """Leave the group after pending operations."""

    def abort(self) -> None:
        """Abort all pending operations immediately: waits for other ranks fail."""

    def _lacks(self, what: str) -> NoReturn:
        raise RuntimeError(f"Backend {self.name} does not support {what}")
