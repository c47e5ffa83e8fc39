"""The worker process: takes tasks from its channel, sends batches back, and ends with its parent."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from flambeau.core.ipc.exception_wrapper import ExceptionWrapper
from flambeau.data.channel import Channel
from flambeau.data.fetch import Fetcher, _DatasetKind
from flambeau.tensor.functions.random import manual_seed


class WorkerInfo:
    """The state of a worker: id, num_workers, seed, and its copy of the dataset."""

    __slots__ = ("dataset", "id", "num_workers", "seed")

    id: int
    num_workers: int
    seed: int
    dataset: Any

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("Cannot assign attributes to WorkerInfo objects")

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={getattr(self, name)}" for name in ("id", "num_workers", "seed", "dataset")
        )
        return f"WorkerInfo({shown})"


_here: list[WorkerInfo] = []  # this process's, if it is a worker


def get_worker_info() -> WorkerInfo | None:
    """Return the state of this DataLoader worker; None in other processes."""
    return _here[-1] if _here else None


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The instructions with which a worker starts."""

    kind: int
    dataset: Any
    batches: bool
    collate: Callable[[Any], Any]
    drop_last: bool
    init: Callable[[int], Any] | None
    base_seed: int
    count: int


@dataclass(frozen=True, slots=True)
class Task:
    """The request for one batch. `index` is the batch's position in the order of batches."""

    index: int
    indices: Any


@dataclass(frozen=True, slots=True)
class Restart:
    """The message that a new pass over the dataset begins."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The message of a worker that has read all of its part of an iterable dataset."""

    worker: int


def run_worker(channel: Channel, number: int, setup: WorkerSetup, inherited: Sequence[Channel]) -> None:
    """Run a worker until its end. `inherited` are other workers' channels, which a fork has copied."""
    for other in inherited:
        other.close()
    # the parent reports the interrupt, or has ended
    with suppress(KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        _serve(channel, number, setup, _incoming(channel))


def _incoming(channel: Channel) -> SimpleQueue[Any]:
    """Return a queue that receives the tasks as they arrive, and None at the end.

    A thread reads them from the socket immediately. Otherwise the parent could block sending a task while the worker
    blocks sending a batch.
    """
    tasks: SimpleQueue[Any] = SimpleQueue()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while (task := channel.receive()) is not None:
                tasks.put(task)
        tasks.put(None)

    threading.Thread(target=listen, daemon=True, name="flambeau-worker-tasks").start()
    return tasks


def _serve(channel: Channel, number: int, setup: WorkerSetup, tasks: SimpleQueue[Any]) -> None:
    where = f"in DataLoader worker process {number}"
    problem = _set_up(number, setup, where)
    fetcher: Fetcher | None = None
    while (task := tasks.get()) is not None:
        if isinstance(task, Restart):
            fetcher = None
            continue
        result: Any = problem
        if result is None:
            try:
                if fetcher is None:
                    fetcher = _DatasetKind.create_fetcher(
                        setup.kind, setup.dataset, setup.batches, setup.collate, setup.drop_last
                    )
                result = fetcher.fetch(task.indices)
            except KeyboardInterrupt:
                raise
            except StopIteration:
                result = Ended(number)
            except Exception:
                result = ExceptionWrapper(where=where)
        _send(channel, task.index, result, where)


def _set_up(number: int, setup: WorkerSetup, where: str) -> ExceptionWrapper | None:
    """Seed the generators of Python, NumPy and Flambeau, differently in each worker. Returns the error of the user's
    function.
    """
    seed = setup.base_seed + number
    _here.append(WorkerInfo(id=number, num_workers=setup.count, seed=seed, dataset=setup.dataset))
    random.seed(seed)
    manual_seed(seed)
    entropy = [number, setup.base_seed & 0xFFFFFFFF, setup.base_seed >> 32, 0]
    np.random.seed(np.random.SeedSequence(entropy).generate_state(4))
    try:
        if setup.init is not None:
            setup.init(number)
    except Exception:
        return ExceptionWrapper(where=where)
    return None


def _send(channel: Channel, index: int, result: Any, where: str) -> None:
    """Send a batch. If the batch cannot be pickled, send the error that says why."""
    try:
        channel.send((index, result))
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception:
        wrapper = result if isinstance(result, ExceptionWrapper) else ExceptionWrapper(where=where)
        if wrapper is result or wrapper.exc_type.__module__ != "builtins":
            wrapper.exc_type = RuntimeError  # the exception's type cannot be pickled
        channel.send((index, wrapper))
