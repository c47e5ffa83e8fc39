"""torch.multiprocessing: the standard library's `multiprocessing`, with tensors that travel in shared memory.

All names are the standard library's, with two sorts of differences. Tensors, storages, parameters and CUDA events
that are sent (by queues and pipes, as arguments, through managers) are the same memory in both processes: see
`reductions.py`. And queues pickle in the thread that puts, see Note [Put and pickled] in `queue.py`.
"""

from __future__ import annotations

import multiprocessing as _standard
from multiprocessing import *  # noqa: F403
from multiprocessing import util as _util
from typing import Any as _Any

from flambeau.core.public_names import explain_absent_names as _explain_absent_names
from flambeau.multiprocessing import reductions
from flambeau.multiprocessing.context import Process, get_context
from flambeau.multiprocessing.spawn import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnContext,
    spawn,
    start_processes,
)
from flambeau.runtime import system as _system
from flambeau.tensor.exchange import sharing as _sharing

__all__ = [
    *_standard.__all__, "get_all_sharing_strategies", "get_sharing_strategy", "reductions", "set_sharing_strategy",
    "ProcessContext", "ProcessExitedException", "ProcessRaisedException", "SpawnContext", "spawn", "start_processes",
]  # fmt: skip


_explain_absent_names(globals(), "torch.multiprocessing")


def Queue(maxsize: int = 0) -> _Any:  # noqa: N802
    """Return a queue of messages between processes: `multiprocessing.Queue`, except that `put` pickles. See
    `queue.py`.
    """
    return get_context().Queue(maxsize)


def JoinableQueue(maxsize: int = 0) -> _Any:  # noqa: N802
    """Return a queue that can be joined: `multiprocessing.JoinableQueue`, except that `put` pickles. See `queue.py`."""
    return get_context().JoinableQueue(maxsize)


def Pool(  # noqa: N802
    processes: int | None = None,
    initializer: _Any = None,
    initargs: _Any = (),
    maxtasksperchild: int | None = None,
) -> _Any:
    """Return a pool of processes."""
    return get_context().Pool(processes, initializer, initargs, maxtasksperchild)


def get_all_sharing_strategies() -> set[str]:
    """Return the methods of sharing CPU memory: "file_descriptor" (on Linux) and "file_system"."""
    both = {_sharing.FILE_DESCRIPTOR, _sharing.FILE_SYSTEM}
    return both if hasattr(_standard.reduction, "DupFd") else {_sharing.FILE_SYSTEM}


def get_sharing_strategy() -> str:
    """Return the strategy for sharing CPU memory: see `set_sharing_strategy`."""
    return _sharing.sharing.strategy


def set_sharing_strategy(new_strategy: str) -> None:
    """Set the strategy for sharing CPU memory. Memory that is shared already is not affected.

    "file_descriptor": anonymous memory; each shared storage keeps a descriptor open in each process that has it, and
    nothing can leak. "file_system": named memory, for programs that share more storages than they may have open files;
    names of a killed process remain until the whole program has ended.

    Raises:
        AssertionError: If the strategy is not available.
    """
    if new_strategy not in get_all_sharing_strategies():
        raise AssertionError(
            f"invalid sharing strategy {new_strategy!r}, expected one of {get_all_sharing_strategies()}"
        )
    _sharing.sharing.strategy = new_strategy


def _at_the_end(_: object) -> None:
    """Make a process of `multiprocessing` release memory of other processes at its end, even without destructors."""
    _util.Finalize(None, _system.close_quietly, exitpriority=-1000)


_at_the_end(None)
_util.register_after_fork(Process, _at_the_end)
