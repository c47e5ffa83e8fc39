"""`Agent`: the launcher of one node's ranks. It joins other nodes' agents, and ends all ranks when one has failed.

Node 0's agent serves the store, for the agents and for the ranks (TORCHELASTIC_USE_AGENT_STORE). An attempt begins when
all nodes have joined it. It ends when all ranks have ended, or with the first failure; then the agents stop all ranks
on all nodes, and begin the next attempt if a restart is left.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from flambeau.core.ipc.handshake import SECRET, new_secret
from flambeau.distributed.dist_errors import DistError
from flambeau.distributed.launching.cluster_environment import INNER
from flambeau.distributed.launching.stalls import Stalls
from flambeau.distributed.launching.workers import Streams, Worker, Workers
from flambeau.distributed.stores.coordinator import Coordinator
from flambeau.distributed.stores.store import PrefixStore
from flambeau.distributed.stores.tcp_store import TCPStore

_KEPT = "agents"
# seconds between heartbeats of an agent; seconds without one after which it counts as dead
_BEAT_S, _SILENCE_S = 1.0, 30.0
FAILED_ELSEWHERE = 1


@dataclass(frozen=True)
class LaunchPlan:
    """The ranks to start: `command` on `nproc` local ranks of node `node_rank` (None: any) of `nodes`."""

    prog: str
    command: tuple[str, ...]
    # pass --local-rank=N before the program's own arguments, like the older launcher
    local_rank_argument: bool
    arguments: tuple[str, ...]
    nproc: int
    nodes: int
    node_rank: int | None
    host: str
    port: int
    serves: bool | None  # True if this node serves the store; None: the first node does
    run_id: str
    role: str
    max_restarts: int
    interval: float
    shutdown_timeout: float
    join_timeout: timedelta
    signals: tuple[int, ...]
    streams: Streams
    folder: Path
    virtual_local_rank: bool = False


class Interrupted(Exception):
    """A signal requested the end of the launcher."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Agent:
    """The launcher of one node's ranks."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        self.news: SimpleQueue[Any] = SimpleQueue()  # workers that ended; None for a signal
        self.extra: dict[str, str] = {}  # additional environment variables of the ranks
        self.first = 0  # the first rank of this node
        if plan.nodes == 1:  # several nodes use the secret that the user has set
            os.environ.setdefault(SECRET, new_secret())
        self._server = self._serve()
        self._store = PrefixStore(_KEPT, self._server)
        self._node = plan.node_rank if plan.node_rank is not None else self._store.add("nodes", 1) - 1
        self._interrupted: Interrupted | None = None
        self._meeting = False  # waits for other nodes: a signal must not wait, too
        self._beats: dict[int, tuple[bytes, float]] = {}
        self._beat = 0.0

    def _serve(self) -> TCPStore:
        plan = self.plan
        if plan.serves is not False:
            try:
                return TCPStore(plan.host, plan.port, None, True, plan.join_timeout)
            except DistError:
                if plan.serves:
                    raise
        return TCPStore(plan.host, plan.port, None, False, plan.join_timeout)

    def run(self) -> int:
        """Run all attempts. Returns the exit status."""
        handlers = {number: signal.signal(number, self._on_signal) for number in self.plan.signals}
        try:
            for attempt in range(self.plan.max_restarts + 1):
                status = self._attempt(attempt)
                if not status or attempt == self.plan.max_restarts:
                    return status
                self._look_up()
                self._say(f"restarting all ranks: restart {attempt + 1} of {self.plan.max_restarts}")
        except Interrupted as signalled:
            self._say(f"{signalled}: all ranks were ended")
            return 128 + signalled.number
        except DistError as error:
            self._say(f"node {self._node} lost the others: {error}")
            return FAILED_ELSEWHERE
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
        return 0

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._interrupted = Interrupted(number)
        self.news.put(None)
        if self._meeting:
            raise self._interrupted

    def _look_up(self) -> None:
        if self._interrupted is not None:
            raise self._interrupted

    # -- one attempt ------------------------------------------------------------------------------------------
    def _attempt(self, attempt: int) -> int:
        self._meeting = True
        self.first, world = self._meet(attempt)
        self._meeting, plan = False, self.plan
        workers = Workers(plan.role, plan.folder / f"attempt_{attempt}", plan.streams, self.news)
        by = signal.SIGTERM
        try:
            self._look_up()
            for local_rank in range(plan.nproc):
                environment = self._environment(attempt, local_rank, world)
                workers.start(self._command(local_rank), local_rank, self.first + local_rank, environment)
            failed = self._watch(attempt, workers)
        except Interrupted as signalled:
            by = signal.Signals(signalled.number)
            raise
        finally:
            workers.stop(plan.shutdown_timeout, by)
            self.news = SimpleQueue()  # late events of the former ranks go to the former queue
        if failed is None:
            return self._finish(attempt)
        if isinstance(failed, Worker):
            first = _first(failed, workers)
            self._report(first, workers)
            return first.status if first is failed or first.code == 1 else 1
        self._say(failed)
        return FAILED_ELSEWHERE

    def _meet(self, attempt: int) -> tuple[int, int]:
        """Wait for all nodes and the end of their old ranks. Returns this node's first rank and the number of ranks."""
        plan, store = self.plan, self._store
        store.set(f"{attempt}/node/{self._node}", str(plan.nproc))
        counts = [int(n) for n in store.multi_get([f"{attempt}/node/{node}" for node in range(plan.nodes)])]
        if self._server._server is not None:
            server = self._server._server.server
            server.forget(f"/{_KEPT}/")
            server.meetings = Coordinator(sum(counts)) if plan.nodes == 1 else None
            store.set(f"{attempt}/go", "1")
        store.wait([f"{attempt}/go"])
        return sum(counts[: self._node]), sum(counts)

    def _command(self, local_rank: int) -> list[str]:
        named = [f"--local-rank={local_rank}"] if self.plan.local_rank_argument else []
        return [*self.plan.command, *named, *self.plan.arguments]

    def _environment(self, attempt: int, local_rank: int, world: int) -> dict[str, str]:
        """Return the environment variables that PyTorch's launcher sets for a rank."""
        plan = self.plan
        environment = {name: value for name, value in os.environ.items() if not name.startswith(INNER)}
        rank = str(self.first + local_rank)
        environment |= {
            "RANK": rank, "WORLD_SIZE": str(world), "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(plan.nproc),
            "GROUP_RANK": str(self._node), "GROUP_WORLD_SIZE": str(plan.nodes),
            "ROLE_RANK": rank, "ROLE_WORLD_SIZE": str(world), "ROLE_NAME": plan.role,
            "MASTER_ADDR": plan.host, "MASTER_PORT": str(self._server.port),
            "TORCHELASTIC_RESTART_COUNT": str(attempt), "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
            "TORCHELASTIC_RUN_ID": plan.run_id, "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": environment.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }  # fmt: skip
        if plan.nodes == 1:
            environment["FLAMBEAU_EXCHANGE"] = f"{rank}@{plan.host}:{self._server.port}"
        if plan.virtual_local_rank:
            environment |= {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": _nth_device(environment, local_rank)}
        return environment | self.extra

    def _watch(self, attempt: int, workers: Workers) -> Worker | str | None:
        """Wait until all local ranks have ended.

        Returns:
            The rank that failed, the text of a failure on another node, or None.
        """
        left = len(workers.all)
        server = self._server._server
        stalls = (
            Stalls(server.server, lambda: workers.all, self._say) if server and self.plan.nodes == 1 else None
        )
        while left:
            try:
                news = self.news.get(timeout=self.plan.interval)
            except Empty:
                if stalls is not None:
                    stalls.look()
                if failure := self._elsewhere(attempt):
                    return failure
                continue
            self._look_up()
            left -= 1
            self._notify_ended(news)
            if news.code:
                self._publish(attempt, f"rank {news.rank} of node {self._node} failed ({news.ended})")
                return news
        return None

    def _notify_ended(self, worker: Worker) -> None:
        """Notify ranks that wait for the virtual GPUs of a rank that has ended."""
        server = self._server._server
        if server is not None and (meetings := server.server.meetings) is not None:
            server.server.call(partial(meetings.remove_process, worker.process.pid, worker.rank))

    def _finish(self, attempt: int) -> int:
        """Keep the store running until all nodes have finished using it."""
        if self.plan.nodes == 1:
            return 0
        keys = [f"{attempt}/done/{node}" for node in range(self.plan.nodes)]
        self._store.set(keys[self._node], "1")
        while not self._store.check(keys):
            if failure := self._elsewhere(attempt):
                self._say(failure)
                return FAILED_ELSEWHERE
            time.sleep(self.plan.interval)
        if self._server._server is not None:
            time.sleep(2 * self.plan.interval)  # time for the other agents to poll once more
        return 0

    # -- the other nodes --------------------------------------------------------------------------------------
    def _publish(self, attempt: int, what: str) -> None:
        if self.plan.nodes > 1:
            self._store.compare_set(f"{attempt}/failed", "", what)

    def _elsewhere(self, attempt: int) -> str:
        """Publish that this agent is alive. Returns the failure of another node; "" if there is none."""
        if self.plan.nodes == 1:
            return ""
        now = time.monotonic()
        if now - self._beat > _BEAT_S:
            self._beat = now
            self._store.add(f"beat/{self._node}", 1)
            self._listen(attempt, now)
        if not self._store.check([f"{attempt}/failed"]):
            return ""
        return f"{self._store.get(f'{attempt}/failed').decode()}: the ranks of node {self._node} were ended"

    def _listen(self, attempt: int, now: float) -> None:
        for node in range(self.plan.nodes):
            beat = str(self._store.add(f"beat/{node}", 0)).encode()
            if self._beats.get(node, (b"", 0.0))[0] != beat:
                self._beats[node] = (beat, now)
            elif now - self._beats[node][1] > _SILENCE_S:
                self._publish(attempt, f"node {node} has been silent for {_SILENCE_S:g} s")

    # -- reports ----------------------------------------------------------------------------------------------
    def _report(self, failed: Worker, workers: Workers) -> None:
        """Print the rank that failed first, its error, and the results of the others."""
        error = failed.error(is_shown=workers.shows_errors(failed))
        # a rank that has recorded its error may still be running when the others' failure ends it
        how = (
            "ended with the others after its error"
            if error and failed.code == -signal.SIGTERM
            else failed.ended
        )
        lines = [
            f"rank {failed.rank} failed first, and the others were ended",
            f"  rank {failed.rank}: local rank {failed.local_rank} of node {self._node} on {socket.gethostname()}, "
            f"process {failed.process.pid}: {how}",
        ]
        lines += [f"    {line}" for line in error.rstrip().splitlines()]
        log = failed.folder / "stderr.log"
        if log.exists() and not error:
            lines += [f"    {line}" for line in log.read_text(errors="replace").splitlines()[-_LINES:]]
        lines += [f"  rank {w.rank}: {w.ended}" for w in workers.all if w is not failed]
        self._say("\n".join(lines))

    def _say(self, text: str) -> None:
        print(f"{self.plan.prog}: {text}", file=sys.stderr, flush=True)


_LINES = 20  # lines of a log that a report repeats


def _first(failed: Worker, workers: Workers) -> Worker:
    """Return the worker that failed first, by the times of their recorded errors. A dependent rank may end earlier."""
    return (
        min([w for w in workers.all if w.noted_ns], key=lambda w: w.noted_ns) if failed.noted_ns else failed
    )


def _nth_device(environment: Mapping[str, str], number: int) -> str:
    visible: Sequence[str] = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return visible[number] if number < len(visible) and visible[number] else str(number)
