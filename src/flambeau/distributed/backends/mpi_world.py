"""`MpiWorld`: the ranks that share MPI with this process, which can join only one. This module owns that state.

MPI is mpi4py with MPICH, which the extra "mpi" installs. Its ranks are those of the first process group that serves CPU
tensors; see Note [How ranks join MPI]. If `mpiexec` started the process, its MPI is used instead.

# Note [MPI progress thread]
MPI makes progress only while a thread is inside an MPI call. Suppose that a rank begins a work, then waits in the store
for a rank that waits for that work: both would wait forever. A thread therefore polls MPI for messages while works are
pending, which lets MPI make progress. The thread ends before MPI is finalized.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import socket
import sys
import threading
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from flambeau.core.ipc.handshake import SECRET, new_secret
from flambeau.distributed.backends import rank_processes
from flambeau.distributed.backends.process_manager import ProcessManager
from flambeau.distributed.backends.wait_reports import PendingOperation, waits_of
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.stores.store import PrefixStore, Store, await_keys, require_keys, turn
from flambeau.distributed.stores.tcp_store import TCPStore

TRANSPORT = "FLAMBEAU_GLOO"  # environment variable: "tcp" keeps this process out of MPI
_THREAD_MULTIPLE = 3
_NEAR_S, _FAR_S = 2e-3, 5e-2  # seconds between polls of MPI, with and without pending works
_SIZE_NAMES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_LACKS = (
    "{} moves CPU tensors between processes through MPI, and mpi4py cannot be used: install Flambeau's extra 'mpi' "
    "(mpi4py and an MPI, 15 MB)"
)


class MpiWorld:
    """The ranks that share MPI with this process.

    Attributes:
        comm: MPI's communicator of all ranks.
        MPI: The module of mpi4py.
        processes: Host and process id of each rank.
        waits: Reports of the ranks' waits, through the store that the ranks share.
    """

    def __init__(self, module: Any, name: str, processes: list[tuple[str, int]], store: Store) -> None:
        self.MPI = module
        self.comm = module.COMM_WORLD
        self.name = name
        self.processes = processes
        self.pending: weakref.WeakSet[Any] = weakref.WeakSet()  # pending works
        self._orphans: list[tuple[list[Any], object, PendingOperation]] = []
        self._unfreed: list[tuple[list[Any], weakref.WeakSet[Any]]] = []  # communicators, their pending works
        self._over = threading.Event()
        self.share(store)
        if module.Query_thread() == module.THREAD_MULTIPLE:
            self._thread = threading.Thread(target=self._go_on, name="flambeau-mpi", daemon=True)
            self._thread.start()
            atexit.register(self._stop)

    def _go_on(self) -> None:
        """Poll MPI in a thread. See Note [MPI progress thread]."""
        while not self._over.wait(_NEAR_S if self.pending else _FAR_S):
            if self.pending or self._orphans:
                with suppress(self.MPI.Exception):  # the waiting call reports the error
                    self.comm.Iprobe()

    def _stop(self) -> None:
        # not in a forked child, where another thread of the parent may have held its lock
        if self._thread.is_alive():
            self._over.set()
            self._thread.join()

    def share(self, store: Store) -> None:
        """Set the store through which the ranks exchange reports. All ranks call this."""
        self._store = store
        self.waits = waits_of(PrefixStore(self.name, store), self.comm.rank, self.comm.size)

    def adopt(self, requests: list[Any], memory: object, operation: PendingOperation) -> None:
        """Keep the memory that MPI still uses of a work that the program has dropped."""
        self._orphans.append((requests, memory, operation))

    def free(self, comms: list[Any], works: Sequence[Any]) -> None:
        """Free communicators once `works` and all dropped operations are over: Open MPI's collectives need theirs."""
        self._unfreed.append((comms, weakref.WeakSet(works)))
        self.reap()

    def reap(self) -> bool:
        """Release finished operations whose owners dropped them. Returns True if no operation is left."""
        self._orphans = [orphan for orphan in self._orphans if not self._is_over(orphan[0])]
        if not self._orphans:
            entries, self._unfreed = self._unfreed, []
            for comms, works in entries:
                if all(work.has_moved for work in works):
                    for comm in comms:
                        comm.Free()
                else:
                    self._unfreed.append((comms, works))
        return not self._orphans

    def _is_over(self, requests: list[Any]) -> bool:
        try:
            return bool(self.MPI.Request.Testall(requests))
        except self.MPI.Exception:
            return True

    def pending_besides(self, work: object) -> list[PendingOperation]:
        """Return the operations, except that of `work`, that this rank has begun and that have not ended."""
        kept = [
            other for other in list(self.pending) if other is not work and not (other._over or other._test())
        ]
        self.reap()
        return [other.pending_operation for other in kept] + [operation for _, _, operation in self._orphans]

    def meet(self, store: Store, key: str, rank: int, ranks: Sequence[int], timeout: timedelta) -> None:
        """Wait for the ranks of a group.

        Raises:
            DistBackendError: If a rank has ended, or not all joined in time.
        """
        store.set(f"{key} {rank}", "here")
        keys = [f"{key} {other}" for other in range(len(ranks))]
        why = await_keys(store, keys, timeout, lambda: next(filter(None, map(self.dead, ranks)), ""))
        if why is not None:
            raise DistBackendError(why or f"not all of ranks {list(ranks)} arrived in time")

    def dead(self, rank: int) -> str:
        """Return the reason why a rank will never answer; "" if this machine cannot see one."""
        host, process = self.processes[rank]
        if host == socket.gethostname() and rank_processes.has_ended(process):
            return f"the process of rank {rank}, {process}, has ended"
        with suppress(RuntimeError):
            if self._store.check([f"ended {rank}"]):
                return f"the program of rank {rank} has ended"
        return ""

    def end(self) -> None:
        """Announce that this rank's program has ended and that its process waits for the others in MPI's
        finalization.
        """
        with suppress(RuntimeError):
            self._store.set(f"ended {self.comm.rank}", "here")


def join(store: Store, rank: int, size: int, timeout: timedelta) -> bool:
    """Join MPI with all ranks if each of them can. All ranks must call this.

    A rank can join if mpi4py is installed, the rank has not joined another world before, and its MPI either accepts
    ranks that it did not start or has started all of them.

    Returns:
        True if all ranks are now in one world.

    Raises:
        DistStoreError: If a rank does not join in time.
    """
    global _world, _why_not
    _why_not = ""
    shared = PrefixStore("mpi", store)
    offers = _exchange_refusals(
        shared, rank, size, _refusal(size), _world.name if _world is not None else "", timeout
    )
    if refusals := [f"rank {r}: {why}" for r, (why, _) in enumerate(offers) if why]:
        _why_not = refusals[0]
        return False
    names = {name for _, name in offers}
    if _world is not None and names == {_world.name} and _world.comm.size == size:
        _world.share(store)
        return True
    if names != {""}:
        _why_not = (
            "MPI can be joined once in the life of a process, and some of these ranks have joined another world: start "
            f"new processes for other groups of all ranks (worlds by rank: {[name or None for _, name in offers]})"
        )
        return False
    module = _module("gloo")
    if not module.Is_initialized():
        _initialize(module, shared, rank, size, timeout)
    comm = module.COMM_WORLD
    # errors of requests of several communicators are reported to this one
    comm.Set_errhandler(module.ERRORS_RETURN)
    if (comm.size, comm.rank) != (size, rank):
        raise RuntimeError(
            f"MPI was initialized before as rank {comm.rank} of {comm.size}, and this is rank {rank} of {size}: import "
            "mpi4py.MPI after init_process_group, or start the ranks with mpiexec"
        )
    identity = shared.compare_set("name", "", uuid.uuid4().hex).decode()
    _world = MpiWorld(module, identity, _processes(shared, rank, size), store)
    if started_together():
        atexit.register(_world.end)  # runs before MPI's and the store's finalization
    return True


def _refusal(size: int) -> str:
    """Return why this process cannot join MPI with `size` ranks; "" if it can."""
    if os.environ.get(TRANSPORT) == "tcp":
        return f"{TRANSPORT}=tcp"
    try:
        module = _module("gloo")
    except RuntimeError as error:
        return str(error)
    vendor, _ = module.get_vendor()
    if module.Is_initialized() or _is_started_with(size) or vendor in ("MPICH", "Intel MPI"):
        return ""
    return (
        f"{vendor} joins only ranks that its own mpiexec started: start them so, or install the extra 'mpi', whose "
        "MPICH joins any"
    )


def has_joined() -> bool:
    """Return True if the ranks of the last group of all have joined MPI."""
    return _world is not None and not _why_not


def current_world() -> MpiWorld:
    """Return the world that this process has joined.

    Raises:
        RuntimeError: If it has joined none; the text has the reason.
    """
    if _world is None or _why_not:
        raise RuntimeError(
            _why_not
            or "this process has joined no MPI: init_process_group does, or new_group, called by all ranks"
        )
    return _world


def available() -> bool:
    """Return True if mpi4py can be loaded."""
    try:
        _module("mpi")
    except RuntimeError:
        return False
    return True


def started_together() -> bool:
    """Return True if `mpiexec` started this process."""
    return any(name in os.environ for name in _SIZE_NAMES)


def meet(timeout: timedelta) -> tuple[Store, int, int]:
    """Return (store, rank, number of ranks) for ranks that `mpiexec` started, using only MPI."""
    module = _module("mpi")
    _begin_started(module)
    comm = module.COMM_WORLD
    here = socket.gethostname()
    name = (
        "127.0.0.1" if {*comm.allgather(here)} == {here} else here
    )  # a name may not resolve, even on one machine
    _unlink_shared_memory()  # all ranks are here; mpiexec cleans up after those that it has to kill
    os.environ[SECRET] = comm.bcast(os.environ.get(SECRET) or new_secret())  # rank 0's secret, for all hosts
    store = TCPStore(name, 0, None, True, timeout) if comm.rank == 0 else None
    host, port = comm.bcast(None if store is None else (store.host, store.port))
    return store or TCPStore(host, port, None, False, timeout), comm.rank, comm.size


def _module(word: str) -> Any:
    """Return mpi4py, configured neither to initialize MPI on import nor to finalize it, which would wait for dead
    ranks.
    """
    try:
        settings = import_module("mpi4py").rc
        settings.initialize = settings.finalize = False
        return import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(f"{_LACKS.format(word)} ({error})") from error


def _exchange_refusals(
    store: Store, rank: int, size: int, refusal: str, name: str, timeout: timedelta
) -> list[tuple[str, str]]:
    """Return, for each rank, why it cannot join MPI ("" if it can), and the world that it joined before."""
    with turn(store, f"turn {rank}") as number:
        store.set(f"world {number} of rank {rank}", f"{name}\n{refusal}")
        keys = [f"world {number} of rank {other}" for other in range(size)]
        require_keys(store, keys, timeout)
    found = [value.decode().partition("\n") for value in store.multi_get(keys)]
    return [(why, world) for world, _, why in found]


def _is_started_with(size: int) -> bool:
    """Return True if an `mpiexec` started just these ranks."""
    return any(os.environ.get(name) == str(size) for name in _SIZE_NAMES)


def _initialize(module: Any, store: Store, rank: int, size: int, timeout: timedelta) -> None:
    if _is_started_with(size):
        _begin_started(module)
        return
    world = store.compare_set("pmi", "", f"flambeau_{uuid.uuid4().hex[:16]}").decode()
    manager = ProcessManager(PrefixStore(world, store), rank, size, world, timeout)
    with manager.announce():
        _call_initialize(module)
    store.barrier(f"{world} initialized", size, timeout)
    _unlink_shared_memory()
    store.barrier(f"{world} unlinked", size, timeout)


def _begin_started(module: Any) -> None:
    """Initialize MPI as a rank of `mpiexec`, which ends all ranks if one ends without finalizing MPI."""
    if not module.Is_initialized():
        _call_initialize(module)
        atexit.register(_end_started, module)


def _end_started(module: Any) -> None:
    """Finalize MPI unless the program failed. After a failure `mpiexec` ends the other ranks, which might wait
    forever.
    """
    if not hasattr(sys, "last_value") and not module.Is_finalized():
        module.Finalize()


def _call_initialize(module: Any) -> None:
    """Initialize MPI through ctypes, which releases the GIL, because another thread of this process must answer MPI's
    requests.
    """
    library = ctypes.CDLL(module.__file__)  # finds the library that the module is linked with
    library.MPI_Init_thread(None, None, _THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))


def _unlink_shared_memory() -> None:
    """Unlink MPI's shared memory, which all ranks have mapped. It would outlive them, since MPI is never finalized."""
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            place = line.partition("/")[2]
            if place.startswith("dev/shm/mpich_shm_"):
                with suppress(FileNotFoundError):
                    os.unlink(f"/{place}")


def _processes(store: Store, rank: int, size: int) -> list[tuple[str, int]]:
    store.set(f"process {rank}", f"{os.getpid()} {socket.gethostname()}")
    found = [
        value.decode().partition(" ") for value in store.multi_get([f"process {r}" for r in range(size)])
    ]
    return [(host, int(process)) for process, _, host in found]


_world: MpiWorld | None = None
_why_not = ""  # why the ranks of the last group of all ranks have not joined MPI
