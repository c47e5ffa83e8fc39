"""`spawn`: one function in several processes; the first of them that fails ends the others, with its error."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import connection
from pathlib import Path
from typing import Any

from flambeau.core.files import replace_file
from flambeau.core.host import long_waits
from flambeau.core.host.process_state import IdleProcesses, describe_processes
from flambeau.multiprocessing.context import get_context

__all__ = [
    "ProcessContext", "ProcessException", "ProcessExitedException", "ProcessRaisedException", "SpawnContext", "spawn",
    "start_processes",
]  # fmt: skip

_PR_SET_PDEATHSIG = 1
_LOOKS = 3  # parts of a wait for which a process must not have worked before it is named
_PATIENCE_S = 30.0  # from SIGTERM to SIGKILL


class ProcessException(Exception):
    """The error raised if a spawned process fails. It has the number and the id of the process."""

    def __init__(self, msg: str, error_index: int, error_pid: int) -> None:
        super().__init__(msg)
        self.msg = msg
        self.error_index = error_index
        self.error_pid = error_pid

    def __reduce__(self) -> Any:
        return type(self), (self.msg, self.error_index, self.error_pid)


class ProcessRaisedException(ProcessException):
    """The error raised if the function of a spawned process raises. The text has the traceback."""


class ProcessExitedException(ProcessException):
    """The error raised if a spawned process ends by a signal or with an exit code, without an exception."""

    def __init__(
        self, msg: str, error_index: int, error_pid: int, exit_code: int, signal_name: str | None = None
    ) -> None:
        super().__init__(msg, error_index, error_pid)
        self.exit_code = exit_code
        self.signal_name = signal_name

    def __reduce__(self) -> Any:
        return type(self), (self.msg, self.error_index, self.error_pid, self.exit_code, self.signal_name)


def spawn(
    fn: Callable[..., object],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Call `fn(i, *args)` in `nprocs` new processes, for i from 0 on. `fn` must be importable.

    With `join` the call waits for all; otherwise it returns a context to join.

    Raises:
        ProcessRaisedException, ProcessExitedException: For the first process that failed; the others are ended.
    """
    if start_method != "spawn":
        warnings.warn(
            f"This method only supports start_method=spawn (got: {start_method}).\n"
            "To use a different start_method use:\n\t\t torch.multiprocessing.start_processes(...)",
            FutureWarning,
            stacklevel=2,
        )
    return start_processes(fn, args, nprocs, join, daemon, start_method="spawn")


def start_processes(
    fn: Callable[..., object],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> ProcessContext | None:
    """Work like `spawn`, by any start method. TORCH_MP_PARALLEL_START=1 starts forkserver's processes side by side."""
    context = get_context(start_method)
    folder = Path(tempfile.mkdtemp(prefix="flambeau-errors-"))
    files = [str(folder / str(number)) for number in range(nprocs)]

    def start(number: int) -> Any:
        process = context.Process(target=_wrap, args=(fn, number, args, files[number]), daemon=daemon)
        process.start()
        return process

    started: list[Any] = []
    try:
        if start_method == "forkserver" and os.environ.get("TORCH_MP_PARALLEL_START", "0") == "1":
            with ThreadPoolExecutor(max_workers=max(nprocs, 1)) as pool:
                started += pool.map(start, range(nprocs))
        else:
            for number in range(nprocs):
                started.append(start(number))
    except BaseException:
        _end(started, None)
        shutil.rmtree(folder, ignore_errors=True)
        raise
    made = ProcessContext(started, files)
    weakref.finalize(made, shutil.rmtree, folder, ignore_errors=True)
    if not join:
        return made
    while not made.join():
        pass
    return None


class ProcessContext:
    """A handle of processes that were started together.

    Attributes:
        processes: The processes of `multiprocessing`.
        error_files: Paths of their tracebacks.
    """

    def __init__(self, processes: Sequence[Any], error_files: Sequence[str]) -> None:
        self.processes = list(processes)
        self.error_files = list(error_files)
        self.sentinels = {process.sentinel: number for number, process in enumerate(processes)}

    def pids(self) -> list[int]:
        """Return their process ids."""
        return [int(process.pid) for process in self.processes]

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait until a process has ended, at most `timeout` seconds. Returns True when all have ended without an error.

        If one has failed, the others are ended by SIGTERM after `grace_period` seconds (default: immediately), then by
        SIGKILL.

        Raises:
            ProcessRaisedException, ProcessExitedException: The failure of the first one.
        """
        if not self.sentinels:
            return True
        ready = self._wait(timeout)
        for sentinel in ready:
            number = self.sentinels.pop(sentinel)  # type: ignore[call-overload]
            process = self.processes[number]
            process.join()
            if process.exitcode:
                _end(self.processes, grace_period)
                first = self._first(number)
                raise _failure(first, self.processes[first], self.error_files[first])
        return not self.sentinels

    def _wait(self, timeout: float | None) -> list[Any]:
        """Wait until a process has ended, and report a long wait if some of them do not work."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        idle = IdleProcesses()
        long_wait = long_waits.LongWait(lambda: self._describe_idle(idle.of_looks(_LOOKS)))
        idle.look(self._running())
        while not (ready := connection.wait(list(self.sentinels), _part(end))):
            if time.monotonic() >= end:
                break
            idle.look(self._running())
            long_wait.report()
        return ready

    def _running(self) -> list[int]:
        return [int(self.processes[number].pid) for number in self.sentinels.values()]

    def _describe_idle(self, idle: list[int]) -> str:
        if not idle:
            return ""
        words = "none of them works" if len(idle) == len(self.sentinels) else "some of them do not work"
        return f"for the end of spawned processes, and {words}: {describe_processes(idle)}"

    def _first(self, failed: int) -> int:
        """Return the rank whose exception was raised first, by the times of the error files.

        The process that has ended first, `failed`, may have ended because of another rank's exception.
        """
        reports = {
            number: os.stat(file).st_mtime_ns
            for number, file in enumerate(self.error_files)
            if os.path.exists(file)
        }
        return min(reports, key=reports.__getitem__) if failed in reports else failed


class SpawnContext(ProcessContext):
    """The old name of ProcessContext."""

    def __init__(self, processes: Sequence[Any], error_files: Sequence[str]) -> None:
        warnings.warn("SpawnContext is renamed to ProcessContext since 1.4 release.", stacklevel=2)
        super().__init__(processes, error_files)


def _wrap(fn: Callable[..., object], number: int, args: tuple[Any, ...], file: str) -> None:
    """Run a function in a child process, and write its error to `file`."""
    _end_with_parent()
    try:
        fn(number, *args)
    except KeyboardInterrupt:
        pass  # the parent was interrupted, or has ended
    except Exception:
        now = time.time_ns()
        replace_file(file, traceback.format_exc(), durable=False)
        os.utime(file, ns=(now, now))  # `_first` compares these times
        if (watch := sys.modules.get("flambeau.distributed.backends.watchdog")) is not None:
            watch.process.give_up()  # its end must not wait for other ranks
        sys.exit(1)


def _part(end: float) -> float:
    """Return the seconds of a part of a wait until `end`; between two lines about it are `_LOOKS` parts."""
    return max(0.0, min(end - time.monotonic(), long_waits.EVERY_S / _LOOKS))


def _end_with_parent() -> None:
    """Ask Linux to interrupt this process when its parent ends, which a killed parent cannot do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _end(processes: Sequence[Any], grace_period: float | None) -> None:
    """Wait for the processes, then terminate those that still run, and kill those that do not react."""
    if grace_period is not None:
        _join(processes, grace_period)
    for process in processes:
        if process.is_alive():
            process.terminate()
    _join(processes, _PATIENCE_S if grace_period is None else grace_period)
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


def _join(processes: Sequence[Any], timeout: float) -> None:
    end = time.monotonic() + timeout
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))


def _failure(number: int, process: Any, file: str) -> ProcessException:
    if os.path.exists(file):
        text = Path(file).read_text()
        return ProcessRaisedException(
            f"\n\n-- Process {number:d} terminated with the following error:\n{text}", number, process.pid
        )
    code = process.exitcode
    if code >= 0:
        return ProcessExitedException(
            f"process {number:d} terminated with exit code {code:d}", number, process.pid, code
        )
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"<Unknown signal {-code}>"
    return ProcessExitedException(
        f"process {number:d} terminated with signal {name}", number, process.pid, code, name
    )
