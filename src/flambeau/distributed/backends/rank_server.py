"""`serve_meetings`: run the coordinator of virtual GPUs for ranks that no launcher started.

Rank 0 serves it, publishes its address in the store, and ends after the other ranks. Under `flambeau launch` the
launcher serves it instead.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing import util

from flambeau.distributed.backends import rank_processes
from flambeau.distributed.launching.rank_watch import ForeignRank
from flambeau.distributed.launching.stalls import Stalls, print_line
from flambeau.distributed.stores.coordinator import Coordinator
from flambeau.distributed.stores.store import PrefixStore, Store, require_keys
from flambeau.distributed.stores.store_server import StoreServer
from flambeau.distributed.stores.tcp_store import TCPStore
from flambeau.driver.driver_registry import meet_at
from flambeau.runtime import system

_PATIENCE_S, _LOOK_S = 60.0, 0.005  # seconds to wait for ranks that outlive rank 0, and between checks
_FIRST = (
    # the priority among multiprocessing's finalizers, the only ones that run in its children; machines
    # close later
    100
)


def serve_meetings(store: Store, rank: int, size: int, served: TCPStore | None) -> TCPStore | None:
    """Serve the coordinator if this is rank 0. All ranks call this.

    Args:
        served: The result of an earlier call.

    Returns:
        An object that serves the other ranks while it lives.

    Raises:
        DistStoreError: If a rank does not join: it has ended, or refuses the group.
        RuntimeError: If a rank does not join in time.
    """
    if os.environ.get("FLAMBEAU_EXCHANGE"):
        return None
    own = PrefixStore("virtual GPUs", store)
    if rank == 0 and served is None:
        served = _own_store(store) or TCPStore(_host(store), 0, None, True, timedelta(seconds=60))
        assert served._server is not None
        served._server.server.meetings = Coordinator(size)
        atexit.register(_outlast, served._server.server)
        util.Finalize(None, _outlast, args=(served._server.server,), exitpriority=_FIRST)
    if served is not None:
        own.set("place", f"{served.host}:{served.port}")
    # A collective waits in the coordinator, which does not see ranks that never join: wait for all of them here.
    members = rank_processes.keys_of(range(size))
    require_keys(store, members, store.timeout, lambda: _describe_ended(store, size))
    require_keys(own, ["place"], own.timeout)
    if served is not None and served is not _own_store(store):
        _watch(served, list(map(ForeignRank, range(size), store.multi_get(members))))
    meet_at(f"{rank}@{own.get('place').decode()}")
    return served


def _watch(served: TCPStore, ranks: Sequence[ForeignRank]) -> None:
    """Report long waits of the ranks at a server that is not that of their store, which `watch_ranks` watches."""
    assert served._server is not None
    server = served._server.server
    server.watch = Stalls(server, lambda: ranks, print_line).look_now


def _describe_ended(store: Store, size: int) -> str:
    """Return text that names a rank whose process has ended; "" if none of those that joined has."""
    ended = ((rank, rank_processes.describe_ended(store, rank)) for rank in range(size))
    return next((f"rank {rank} did not initialize its group{why}" for rank, why in ended if why), "")


def _outlast(server: StoreServer) -> None:
    """Keep serving after rank 0 has finished, until the other ranks have read all completed collective instances.

    A failed rank stops serving, so that its error is reported before errors of other ranks.
    """
    if os.getpid() != server.process or server.meetings is None or _fails():
        return
    for context in system.contexts():
        with suppress(Exception):  # closing the machine reports the error
            context.driver.device_sync(context.driver_index)
    server.call(
        partial(server.meetings.remove_process, server.process, 0)
    )  # ranks that wait for it get an error
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until and any(not p.ended for p in list(server.meetings.participants.values())):
        time.sleep(_LOOK_S)
    server.meetings = None  # no answers are left


def _fails() -> bool:
    """Return True if an exception ends this process."""
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    return error is not None and not (isinstance(error, SystemExit) and not error.code)


def _own_store(store: Store) -> TCPStore | None:
    """Return the store below the prefixes if this process serves it.

    One server then knows all waits of the ranks, those for keys and those in collectives, and reports them.
    """
    base = _base(store)
    return base if isinstance(base, TCPStore) and base._server is not None else None


def _base(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def _host(store: Store) -> str:
    """Return an address at which other ranks reach this machine: that of rank 0's TCP store, or a resolvable host
    name.
    """
    store = _base(store)
    if isinstance(store, TCPStore):
        return store.host
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
