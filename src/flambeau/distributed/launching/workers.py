"""`Workers`: the ranks of one node as processes: starting, watching and ending them, and redirecting their streams."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
OUT, ERR = 1, 2
FOLDER = "\0"  # stands for the rank's own folder in a command


@dataclass(frozen=True)
class Streams:
    """The targets of the output streams of each local rank: bits OUT and ERR by local rank; -1 stands for all other
    ranks.

    Attributes:
        redirects: Streams that go to files.
        tee: Streams that go to files and to the console.
        shown: Local ranks whose output is shown on the console; None for all.
    """

    redirects: Mapping[int, int]
    tee: Mapping[int, int]
    shown: frozenset[int] | None

    def plan(self, local_rank: int, bit: int) -> tuple[bool, bool]:
        """Return two flags: whether a stream is written to a file, and whether to the console."""
        redirected = self._of(self.redirects, local_rank) & bit
        teed = self._of(self.tee, local_rank) & bit
        visible = self.shown is None or local_rank in self.shown
        return bool(redirected or teed or not visible), bool(visible and (teed or not redirected))

    @staticmethod
    def _of(bits: Mapping[int, int], local_rank: int) -> int:
        return bits.get(local_rank, bits.get(-1, 0))


def stream_bits(text: str) -> dict[int, int]:
    """Return the redirected streams of each local rank from text such as "3" or "0:3,1:1".

    Raises:
        ValueError: If it is neither.
    """
    try:
        if ":" not in text:
            found = {-1: int(text)}
        else:
            pairs = (part.split(":") for part in text.split(","))
            found = {int(rank): int(bits) for rank, bits in pairs}
    except ValueError:
        raise ValueError(f"{text!r}: must be 0 to 3, or LOCAL_RANK:0 to 3,...") from None
    if not all(0 <= bits <= 3 for bits in found.values()):
        raise ValueError(f"{text!r}: streams are 0 none, 1 stdout, 2 stderr, 3 both")
    return found


@dataclass
class Worker:
    """One rank's process. `code` is its exit status once it has ended, negative for a signal."""

    local_rank: int
    rank: int
    process: subprocess.Popen[bytes]
    folder: Path
    pumps: list[threading.Thread] = field(default_factory=list)
    code: int | None = None
    absence = ""  # a worker's process is always seen

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def status(self) -> int:
        """Return the exit status as a shell reports it."""
        return 128 - self.code if self.code is not None and self.code < 0 else self.code or 0

    @property
    def ended(self) -> str:
        """Return text that says how the worker ended."""
        if self.code is None:
            return "still runs"
        if self.code >= 0:
            return f"exit status {self.code}"
        with suppress(ValueError):
            return f"killed by {signal.Signals(-self.code).name}"
        return f"killed by signal {-self.code}"

    @property
    def noted_ns(self) -> int:
        """Return the time of the worker's recorded error; 0 without one."""
        with suppress(OSError):
            return (self.folder / "error.json").stat().st_mtime_ns
        return 0

    def error(self, is_shown: bool) -> str:
        """Return the recorded exception of the rank, by Flambeau or by `elastic`'s `record`; "" if there is none.

        Args:
            is_shown: True if its traceback is on the console already: then only the error's first line.
        """
        with suppress(OSError, ValueError, KeyError, TypeError):
            noted = json.loads((self.folder / "error.json").read_text())["message"]
            message: str = noted if isinstance(noted, str) else noted["message"]
            if is_shown:
                return message.partition("\n")[0]
            return message if noted is message else noted.get("extraInfo", {}).get("py_callstack") or message
        return ""


class Workers:
    """The ranks of one attempt. The queue `news` receives a Worker when it ends, and events of other threads."""

    def __init__(self, role: str, folder: Path, streams: Streams, news: SimpleQueue[Any]) -> None:
        self.all: list[Worker] = []
        self._role = role
        self._folder = folder
        self._streams = streams
        self._news = news
        self._console = threading.Lock()

    def shows_errors(self, worker: Worker) -> bool:
        """Return True if the rank's stderr is on the console."""
        return self._streams.plan(worker.local_rank, ERR)[1]

    def start(
        self, command: Sequence[str], local_rank: int, rank: int, environment: Mapping[str, str]
    ) -> None:
        """Start one rank.

        Raises:
            OSError: If the program cannot be executed.
        """
        folder = self._folder / str(local_rank)
        folder.mkdir(parents=True, exist_ok=True)
        ends, pumped = [], []
        for bit, name, console in ((OUT, "stdout", sys.stdout), (ERR, "stderr", sys.stderr)):
            to_file, to_console = self._streams.plan(local_rank, bit)
            if to_file and to_console:
                pumped.append((name, console))
                ends.append(subprocess.PIPE)
            else:
                ends.append((folder / f"{name}.log").open("wb") if to_file else None)  # type: ignore[arg-type]
        try:
            process = subprocess.Popen(
                [part.replace(FOLDER, str(folder)) for part in command],
                env={**environment, "TORCHELASTIC_ERROR_FILE": str(folder / "error.json")},
                stdout=ends[0], stderr=ends[1], start_new_session=True, preexec_fn=_END_WITH_PARENT,
            )  # fmt: skip
        finally:
            for end in ends:
                if hasattr(end, "close"):
                    end.close()
        worker = Worker(local_rank, rank, process, folder)
        worker.pumps = [self._pump(worker, name, console) for name, console in pumped]
        self.all.append(worker)
        threading.Thread(target=self._await, args=(worker,), daemon=True).start()

    def _await(self, worker: Worker) -> None:
        worker.code = worker.process.wait()
        for pump in worker.pumps:
            pump.join()
        self._news.put(worker)

    def _pump(self, worker: Worker, name: str, console: IO[str]) -> threading.Thread:
        """Copy a stream to its file, and to the console with the rank before each line."""
        source: IO[bytes] = getattr(worker.process, name)
        prefix = f"[{self._role}{worker.rank}]:"

        def copy() -> None:
            with source, (worker.folder / f"{name}.log").open("wb") as file:
                for line in source:
                    file.write(line)
                    file.flush()
                    with self._console:
                        console.write(prefix + line.decode(errors="replace"))
                        console.flush()

        thread = threading.Thread(target=copy, daemon=True)
        thread.start()
        return thread

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self.all if worker.code is None]

    def stop(self, timeout: float, number: int = signal.SIGTERM) -> None:
        """End running ranks and all that they have started, by a signal and then by SIGKILL."""
        for worker in self.running:
            _signal(worker, number)
            _signal(worker, signal.SIGCONT)  # a stopped process handles signals only after it continues
        end = time.monotonic() + timeout
        while self.running and time.monotonic() < end:
            with suppress(Empty):
                self._news.get(timeout=0.05)
        for worker in self.all:
            _signal(worker, signal.SIGKILL)  # processes that the rank has started and not ended
        for worker in self.all:
            worker.code = worker.process.wait()


def _signal(worker: Worker, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.process.pid, number)


def _make_end_with_parent() -> Callable[[], None] | None:
    """Return a function that makes Linux end a rank together with its launcher. The launcher creates it before it
    forks.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


_END_WITH_PARENT = _make_end_with_parent()
