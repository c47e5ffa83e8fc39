"""`ProcessManager`: the process manager that MPI expects, which answers from the store that the ranks share.

# Note [How ranks join MPI]
An MPI library asks the process manager that started it, normally `mpiexec`, for its rank, the number of ranks and the
addresses of the others. The questions are text over a file descriptor (PMI-1, MPICH's protocol). The store of
`init_process_group` has all of these facts. Each rank therefore answers its own library from a thread. Ranks started
by `flambeau launch`, `multiprocessing.spawn`, Slurm or by hand can so join when they initialize their process group.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta

from flambeau.distributed.stores.store import Store

_SIZES = "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"


class ProcessManager:
    """The process manager for the MPI library of this process, rank `rank` of `size`, in the world `name`."""

    def __init__(self, store: Store, rank: int, size: int, name: str, timeout: timedelta) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._name = name
        self._timeout = timeout
        self._barriers = 0
        self._ours, self._theirs = socket.socketpair()
        threading.Thread(target=self._serve, name="flambeau MPI", daemon=True).start()

    @contextlib.contextmanager
    def announce(self) -> Iterator[None]:
        """Return a context manager inside which an MPI library that initializes finds this process manager."""
        ours = {
            "PMI_FD": str(self._theirs.fileno()),
            "PMI_RANK": str(self._rank),
            "PMI_SIZE": str(self._size),
        }
        before = {name: os.environ.pop(name, None) for name in (*ours, "PMI_PORT", "PMI_ID")}
        os.environ.update(ours)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value

    def _serve(self) -> None:
        with self._ours.makefile("rwb") as stream:
            for line in stream:
                answer = self._answer(line.decode().strip())
                if answer:
                    stream.write(f"{answer}\n".encode())
                    stream.flush()

    def _answer(self, line: str) -> str:
        """Return the answer to one line "cmd=... name=value ..."."""
        words = dict(word.partition("=")[::2] for word in line.split())
        key = words.get("key", "")
        match words.get("cmd"):
            case "init":
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_maxes":
                return _SIZES
            case "get_appnum":
                return "cmd=appnum appnum=0"
            case "get_my_kvsname":
                return f"cmd=my_kvsname kvsname={self._name}"
            case "get_universe_size":
                return f"cmd=universe_size size={self._size}"
            case "put":
                self._store.set(key, line.partition(" value=")[2])
                return "cmd=put_result rc=0 msg=success"
            case "get":
                return self._value(key)
            case "barrier_in":
                self._barriers += 1
                self._store.barrier(f"barrier {self._barriers}", self._size, self._timeout)
                return "cmd=barrier_out"
            case "finalize":
                return "cmd=finalize_ack"
            case "abort":
                return ""
            case other:
                return f"cmd={other} rc=-1 msg=not_supported"

    def _value(self, key: str) -> str:
        if not self._store.check([key]):
            return f"cmd=get_result rc=-1 msg=key_{key}_not_found value=unknown"
        return f"cmd=get_result rc=0 msg=success value={self._store.get(key).decode()}"
