"""`Pool`: the worker processes of one iterator, from their start to their end."""

from __future__ import annotations

import math
import os
import signal
from multiprocessing import connection
from time import monotonic
from typing import Any

from flambeau.core.host.long_waits import LongWait
from flambeau.core.host.process_state import describe_processes
from flambeau.data.channel import Channel
from flambeau.data.worker import WorkerSetup, run_worker

_PATIENCE = 5.0  # seconds within which a worker must end before it is terminated


class Pool:
    """The worker processes of an iterator, each with a separate channel.

    The end of a worker is detected immediately, by its channel and by its process. Workers share nothing, so a dead one
    cannot hold a lock.
    """

    def __init__(self, context: Any, setup: WorkerSetup) -> None:
        self._pid = os.getpid()
        self._channels: list[Channel] = []
        self._processes: list[Any] = []
        try:
            for number in range(setup.count):
                self._start(context, number, setup)
        except BaseException:
            self.stop()
            raise

    def _start(self, context: Any, number: int, setup: WorkerSetup) -> None:
        ours, theirs = (Channel(end) for end in context.Pipe(duplex=True))
        self._channels.append(ours)
        forks = context.get_start_method() == "fork"
        arguments = (theirs, number, setup, tuple(self._channels) if forks else ())
        process = context.Process(target=run_worker, args=arguments, daemon=True)
        try:
            process.start()
        finally:
            theirs.close()  # with the worker's own it ends
        self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """Return the processes' ids."""
        return [process.pid for process in self._processes]

    def send(self, worker: int, task: Any) -> None:
        """Send a task.

        Raises:
            RuntimeError: If the worker is dead.
        """
        try:
            self._channels[worker].send(task)
        except OSError:
            raise self._worker_exit_error(worker) from self._why(worker)

    def receive(self, timeout: float = 0) -> Any:
        """Return the next result of any worker; None after `timeout` seconds (0 for no limit).

        Raises:
            RuntimeError: If a worker died.
        """
        waited_for: dict[Any, int] = {c.connection: i for i, c in enumerate(self._channels)}
        waited_for |= {p.sentinel: i for i, p in enumerate(self._processes)}
        end = monotonic() + timeout if timeout else math.inf
        long_wait = LongWait(lambda: f"for a batch of DataLoader workers: {describe_processes(self.pids)}")
        while not (ready := connection.wait(list(waited_for), min(end - monotonic(), long_wait.left_s))):
            if monotonic() >= end:
                return None
            long_wait.report()
        worker = min(waited_for[one] for one in ready)
        try:
            return self._channels[worker].receive()
        except (EOFError, OSError):
            raise self._worker_exit_error(worker) from self._why(worker)

    def hang_up(self) -> None:
        """Make the workers end, and end waits for their answers."""
        for channel in self._channels:
            channel.hang_up()

    def stop(self) -> None:
        """End the workers, first by closing channels, then by signals. Idempotent; in a forked child it does
        nothing.
        """
        if os.getpid() != self._pid:
            return
        self.hang_up()
        for end in ("join", "terminate", "kill"):
            alive = [process for process in self._processes if process.is_alive()]
            for process in alive if end != "join" else ():
                getattr(process, end)()
            deadline = monotonic() + _PATIENCE
            for process in alive:
                process.join(None if end == "kill" else max(0.0, deadline - monotonic()))
        for channel in self._channels:
            channel.close()

    def _worker_exit_error(self, worker: int) -> RuntimeError:
        return RuntimeError(f"DataLoader worker (pid(s) {self._processes[worker].pid}) exited unexpectedly")

    def _why(self, worker: int) -> RuntimeError:
        process = self._processes[worker]
        process.join(_PATIENCE)
        code = process.exitcode
        who = f"DataLoader worker (pid {process.pid})"
        if code is not None and code < 0:
            return RuntimeError(f"{who} is killed by signal: {signal.strsignal(-code)}. ")
        return RuntimeError(
            f"{who} exited unexpectedly with exit code {code}. Details are lost due to multiprocessing. "
            "Rerunning with num_workers=0 may give better error trace."
        )
