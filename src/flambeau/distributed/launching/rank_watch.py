"""`watch_ranks`: lets rank 0 report waits of ranks that no launcher watches, if it serves their store."""

from __future__ import annotations

import os

from flambeau.distributed.backends import rank_processes
from flambeau.distributed.launching.file_watch import FileWatch
from flambeau.distributed.launching.stalls import Stalls, print_line
from flambeau.distributed.stores.file_store import FileStore
from flambeau.distributed.stores.store import JobStore
from flambeau.distributed.stores.store_server import StoreServer
from flambeau.distributed.stores.tcp_store import TCPStore


class ForeignRank:
    """A rank whose process another launcher has started.

    Args:
        address: What the rank has published (`rank_processes.here`); empty if it has not joined.

    Attributes:
        rank: Its number among all ranks.
        pid: Its process id on this host; 0 if it cannot be seen here.
        ended: How it ended, in words.
        absence: Why its process cannot be seen here, in words.
    """

    ended = "exit status unknown"

    def __init__(self, rank: int, address: bytes) -> None:
        self.rank = rank
        self.pid = rank_processes.near(address.decode(errors="replace"))
        self.absence = "is not on this host" if address else "has not joined"

    @property
    def code(self) -> int | None:
        """Return 0 if the process has ended, whatever its exit status was; None while it runs."""
        return 0 if self.pid and rank_processes.has_ended(self.pid) else None


class ForeignRanks:
    """The ranks of a job, read from the process identities that they publish in the store.

    Args:
        server: The server of the store.
        prefix: The prefix of the store that this group of all ranks uses.
        size: Number of ranks.
    """

    def __init__(self, server: StoreServer, prefix: str, size: int) -> None:
        self._server = server
        self._prefix = prefix
        self._size = size
        self._all: list[ForeignRank] = []

    def __call__(self) -> list[ForeignRank]:
        """Return all ranks, also those that have not joined or are on other hosts."""
        self._all = self._all or [ForeignRank(rank, b"") for rank in range(self._size)]
        for rank, member in enumerate(self._all):
            if not member.pid:
                self._all[rank] = ForeignRank(rank, self._server.value_of(f"{self._prefix}/{_key(rank)}"))
        return self._all


def watch_ranks(store: JobStore, name: str, rank: int, size: int) -> None:
    """Let rank 0, or with a `FileStore` each rank, report long waits and deadlocks. All ranks call.

    Args:
        store: The part of the ranks' store that this group of all ranks has.
        name: The name of that part.
        rank: This rank.
        size: Number of ranks.
    """
    base = store._underlying_non_prefix_store
    if isinstance(base, FileStore):
        base.watch = FileWatch(store, rank, size)
        return
    if not isinstance(base, TCPStore) or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return
    store.set(_key(rank), rank_processes.here())
    if rank == 0 and base._server is not None:
        server = base._server.server
        server.watch = Stalls(server, ForeignRanks(server, name, size), print_line).look_now


def _key(rank: int) -> str:
    return f"member/{rank}"
