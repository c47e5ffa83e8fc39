"""`Watch`: the watchdog, a thread that checks whether collectives of real GPUs finish. Owner of the watchdog of this
process.

# Note [Collectives that do not end]
NCCL waits on the device forever for a missing rank, and so does every host wait for that device. A thread therefore
polls the last event of each communicator ten times a second, without blocking, and asks NCCL for the communicator's
state. It waits as long as the group's timeout, or half a minute once a member's process has ended. Then it reports the
collective, its call site and the published progress of the other ranks, and does what
TORCH_NCCL_ASYNC_ERROR_HANDLING selects, as in PyTorch:

- 3, the default: the process ends by SIGABRT, because later results would be wrong;
- 1: the group's communicators are aborted, which ends the waiting kernels, and the process ends;
- 2: they are aborted and the program continues: works, new collectives of the group and the next wait raise;
- 0: the watchdog only reports.

Virtual GPUs need no thread: their machine detects a missing rank immediately.
"""

from __future__ import annotations

import enum
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from flambeau.core.callsite import place, source, thread_site
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.excepthook import by_rank, note
from flambeau.runtime import system
from flambeau.runtime.devices.machine import Machine

_LOOK_S = 0.1
_SLACK_S = 1.0  # seconds, so that a host wait with an equal limit reports first
_ENDED_S = 30.0  # seconds after the end of a member's process, in which its messages may still arrive
# seconds for the store to answer, for NCCL to abort, and for the console to print a report
_PATIENCE_S = 10.0
_TELL = 60  # progress reports of a rank within its group's timeout


class Handling(enum.IntEnum):
    """The action on a collective that exceeds its timeout. PyTorch's numbers."""

    NOTHING = 0
    ABORT_AND_END = 1
    ABORT = 2
    END = 3


def handling_of(environment: Mapping[str, str]) -> Handling:
    """Return the action that TORCH_NCCL_ASYNC_ERROR_HANDLING selects; NOTHING with TORCH_NCCL_BLOCKING_WAIT.

    Raises:
        RuntimeError: If the variable has an unknown value.
    """
    word = environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    if word not in ("0", "1", "2", "3"):
        raise RuntimeError(
            f"Invalid value for environment variable: TORCH_NCCL_ASYNC_ERROR_HANDLING={word!r}"
        )
    return Handling.NOTHING if blocks(environment) else Handling(int(word))


def blocks(environment: Mapping[str, str]) -> bool:
    """Return True if TORCH_NCCL_BLOCKING_WAIT lets the host wait in `Work.wait`."""
    return flag(environment, "TORCH_NCCL_BLOCKING_WAIT", "0")


def flag(environment: Mapping[str, str], name: str, default: str) -> bool:
    """Return the value of a boolean environment variable.

    Raises:
        RuntimeError: If the variable has any other value.
    """
    word = environment.get(name, default).lower()
    if word not in ("0", "1", "n", "no", "false", "y", "yes", "true"):
        raise RuntimeError(f"Invalid value for environment variable: {name}={word!r}")
    return word in ("1", "y", "yes", "true")


class Watched(Protocol):
    """The interface of a communicator for the watchdog; `RankCommunicator` implements it."""

    @property
    def rank(self) -> int: ...
    @property
    def title(self) -> str: ...
    @property
    def limit_s(self) -> float: ...
    @property
    def handling(self) -> Handling: ...
    def head(self) -> Any: ...
    def failure(self) -> str | None: ...
    def describe_ended_processes(self) -> list[str]: ...
    def publish_progress(self) -> None: ...
    def lines(self) -> list[str]: ...
    def fail(self, error: Exception) -> bool: ...
    def close(self, abort: bool) -> None: ...
    def forget(self) -> None: ...


Run = Callable[[], object]


def start_daemon(run: Run) -> threading.Thread:
    """Run a function in a daemon thread."""
    thread = threading.Thread(target=run, name="flambeau-watch", daemon=True)
    thread.start()
    return thread


def within(*runs: Run, seconds: float | None = None) -> bool:
    """Return True if calls that may never return, run in parallel, have all returned in time."""
    threads = [start_daemon(run) for run in runs]
    end = time.monotonic() + (_PATIENCE_S if seconds is None else seconds)
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    return not any(thread.is_alive() for thread in threads)


class Watch:
    """The watchdog of one process.

    Args:
        clock: Returns seconds.
        start: Runs a function in a thread: the polls.
        end: Ends the process after all reports.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        start: Callable[[Run], object] = start_daemon,
        end: Run = os.abort,
    ) -> None:
        self._clock = clock
        self._start = start
        self._end = end
        self._lines: dict[Watched, float] = {}  # communicator -> time of its last progress report
        self._lock = threading.RLock()  # reentrant, because a finalizer may interrupt a call
        self._runs = False
        self._failed = False  # True after the program failed and is about to end

    def add(self, line: Watched) -> None:
        """Watch a communicator from now on."""
        with self._lock:
            self._lines[line] = self._clock()
            runs, self._runs = self._runs, True
        if not runs:
            self._start(self._run)

    def remove(self, line: Watched) -> None:
        """Stop watching a communicator. No poll of it is under way when this returns."""
        with self._lock:
            self._lines.pop(line, None)

    def give_up(self) -> None:
        """Fail pending collectives, because the program failed and must not wait for them at its end."""
        self._failed = True
        with self._lock:
            stuck = [line for line in self._lines if line.head() is not None]
        error = DistBackendError("the program of this rank has ended with an error")
        for line in stuck:
            if not line.fail(error):
                _quit()

    # -- as a `runtime.devices.machine.Watcher` -----------------------------------------------------------------
    def before_open(self, machine: Machine) -> None:
        pass

    def after_open(self, machine: Machine) -> None:
        pass

    def before_close(self, machine: Machine) -> None:
        """Handle the end of the process: leave the groups that the program has not destroyed."""
        with self._lock:
            lines, self._lines = list(self._lines), {}
        remaining: list[Watched] = []
        with suppress(RuntimeError):  # since Python 3.12 no thread can start while the interpreter ends
            within(*[line.publish_progress for line in lines])
            leaving = [] if self._failed else [line for line in lines if not line.describe_ended_processes()]
            if within(*[partial(line.close, False) for line in leaving]):
                remaining = leaving
        for line in lines:
            if line not in remaining:
                line.forget()

    # -- looks ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while self._is_needed():
            self.look()
            time.sleep(_LOOK_S)

    def _is_needed(self) -> bool:
        with self._lock:
            self._runs = bool(self._lines)
            return self._runs

    def look(self) -> None:
        """Poll each communicator once, and act on those that make no progress."""
        with self._lock:
            now = self._clock()
            found = [(line, why) for line in self._lines if (why := self._trouble(line, now))]
            due = [line for line, last in self._lines.items() if now - last > max(1.0, line.limit_s / _TELL)]
            self._lines.update(dict.fromkeys(due, now))
        for line in due:
            line.publish_progress()
        for line, why in found:
            if line in self._lines:  # an earlier failure of the same group may have removed it
                self._fail(line, why)

    def _trouble(self, line: Watched, now: float) -> str:
        """Return the reason why a communicator's first pending collective will not finish; "" while it may."""
        head = line.head()
        if head is None:
            return ""
        if head.since is None:
            head.since = now
        spent = now - head.since
        what = f"call {head.number} of {line.title}"
        if failure := line.failure():
            return f"collective failed: {what}: {failure}"
        if spent > line.limit_s + _SLACK_S:
            limit = f"the group's timeout is {line.limit_s:g} s"
            return f"collective timed out: {what} has not ended for {spent:.1f} s; {limit}"
        if head.ended is None and spent > _SLACK_S and line.describe_ended_processes():
            head.ended = now
        if head.ended is not None and now - head.ended > _ENDED_S:
            ended = "; ".join(line.describe_ended_processes())
            return f"collective waits forever: {what} has not ended for {spent:.1f} s; {ended}"
        return ""

    # -- what is done -----------------------------------------------------------------------------------------
    def _fail(self, line: Watched, why: str) -> None:
        self.remove(line)
        lines = [why]
        within(lambda: lines.extend(line.lines()))
        error = DistBackendError(
            "\n  ".join([*lines, f"the program of rank {line.rank} is {_describe_position()}"])
        )
        ends = line.handling in (Handling.END, Handling.ABORT_AND_END)
        within(lambda: _say(line.rank, error, ends))
        aborts = line.handling in (Handling.ABORT, Handling.ABORT_AND_END)
        freed = not aborts
        with suppress(RuntimeError):  # a failing abort has freed nothing
            freed = freed or line.fail(error)
        if ends or not freed:  # waits for the device would never end
            self._end()


def _quit() -> None:
    """End the process after its error was printed, as Python would."""
    sys.stdout.flush()
    os._exit(1)


def _say(rank: int, error: Exception, ends: bool) -> None:
    text = f"{type(error).__module__}.{type(error).__name__}: {error}\n"
    if ends:
        note(error, text)
    sys.stdout.flush()  # print the program's output first
    sys.stderr.write(by_rank(rank, text))
    sys.stderr.flush()


def _describe_position() -> str:
    """Return text that names the line where the program's main thread is now."""
    site = thread_site(threading.main_thread().ident)
    return "at its end" if site is None else f"at {place(site)} ({source(site)})"


process = Watch()
system.watch(process)
