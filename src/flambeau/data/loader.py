"""`DataLoader`: batches of a dataset, loaded here or by worker processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NoReturn, TypeVar

from flambeau.core.ipc.exception_wrapper import ExceptionWrapper
from flambeau.data.collate import default_collate, default_convert
from flambeau.data.dataset import Dataset, IterableDataset
from flambeau.data.fetch import _DatasetKind, kind_of
from flambeau.data.pin import Pinner, pin_memory
from flambeau.data.sampler import BatchSampler, RandomSampler, SequentialSampler, drawn_seed
from flambeau.data.worker import Ended, Restart, Task, WorkerSetup
from flambeau.data.worker_pool import Pool
from flambeau.runtime import current, system
from flambeau.runtime.generator import Generator

T_co = TypeVar("T_co", covariant=True)
_FIXED = {"batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"}


class DataLoader(Generic[T_co]):
    """An iterable over a dataset in batches.

    Args:
        dataset: Samples by index, or an `IterableDataset`.
        batch_size: Number of samples of a batch; None for single samples.
        shuffle: Use a new random order in each pass.
        sampler, batch_sampler: A custom order of indices, or of lists of them.
        num_workers: Number of processes that load; 0 loads in this one.
        collate_fn: Combines a list of samples to a batch.
        pin_memory: Copy batches to pinned memory.
        drop_last: Drop an incomplete last batch.
        timeout: Seconds to wait for a worker's batch; 0 for no limit while the worker lives.
        worker_init_fn: Called in each worker with its number, after seeding.
        multiprocessing_context: A start method ("fork", "spawn", "forkserver"), or a context.
        generator: The generator of random orders and of the workers' seeds; the default one if None.
        prefetch_factor: Number of batches that each worker loads ahead; 2 if None.
        persistent_workers: Keep the workers from pass to pass.
        in_order: Return batches in their order, not in the order of completion.

    Raises:
        ValueError: If options contradict each other.
    """

    _initialized = False

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        _check_workers(num_workers, timeout, prefetch_factor, persistent_workers)
        _check_order(dataset, batch_size, shuffle, sampler, batch_sampler, drop_last)
        self.dataset = dataset
        self.num_workers = num_workers
        self.prefetch_factor = 2 if num_workers and prefetch_factor is None else prefetch_factor
        self.pin_memory = pin_memory
        self.pin_memory_device = pin_memory_device
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.generator = generator
        self.persistent_workers = persistent_workers
        self.in_order = in_order
        self.multiprocessing_context = multiprocessing_context
        self.batch_size = None if batch_sampler is not None else batch_size
        self.drop_last = False if batch_sampler is not None else drop_last
        self.sampler: Any = self._own_sampler(bool(shuffle)) if sampler is None else sampler
        if batch_size is not None and batch_sampler is None:
            batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        self.batch_sampler: Any = batch_sampler
        self.collate_fn: Callable[[Any], Any] = collate_fn or (
            default_convert if batch_sampler is None else default_collate
        )
        self._iterator: _MultiProcessingDataLoaderIter | None = None  # the iterator of persistent workers
        self._initialized = True
        self.check_worker_number_rationality()

    def _own_sampler(self, shuffle: bool) -> Any:
        if isinstance(self.dataset, IterableDataset):
            return _InfiniteSampler()
        dataset: Any = self.dataset
        return RandomSampler(dataset, generator=self.generator) if shuffle else SequentialSampler(dataset)

    @property
    def multiprocessing_context(self) -> Any:
        """Return the context that starts the workers; None is Python's default."""
        return self._context

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        self._context = None if context is None else _context_of(context, self.num_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        if self._initialized and name in _FIXED:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    def __iter__(self) -> Iterator[Any]:
        if not self.num_workers:
            return _SingleProcessDataLoaderIter(self)
        if not self.persistent_workers:
            return _MultiProcessingDataLoaderIter(self)
        if self._iterator is None or self._iterator.stopped:
            self._iterator = _MultiProcessingDataLoaderIter(self)
        else:
            self._iterator.restart(self)
        return self._iterator

    def __len__(self) -> int:
        """Return the number of batches. For an iterable dataset it follows from the dataset's length; iteration warns
        if that is wrong.
        """
        dataset: Any = self.dataset
        if not isinstance(dataset, IterableDataset):
            return len(self._index_sampler)
        n = len(dataset)  # type: ignore[arg-type]
        object.__setattr__(self, "_length_told", n)
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    @property
    def _index_sampler(self) -> Any:
        """Return the sampler that a pass iterates over: the batch sampler, or the sampler of single indices."""
        return self.sampler if self.batch_sampler is None else self.batch_sampler

    # PyTorch's names of the attributes that iterators read: programs write their own loaders with these names.
    @property
    def _auto_collation(self) -> bool:
        return self.batch_sampler is not None

    @property
    def _dataset_kind(self) -> int:
        return kind_of(self.dataset)

    def check_worker_number_rationality(self) -> None:
        """Warn of more workers than this process has processors."""
        if not self.num_workers:
            return
        most = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if self.num_workers > most:
            warnings.warn(
                f"This DataLoader will create {self.num_workers} worker processes in total. Our suggested max "
                f"number of worker in current system is {most}, which is smaller than what this DataLoader is "
                "going to create. Please be aware that excessive worker creation might get DataLoader running "
                "slow or even freeze, lower the worker number to avoid potential slowness/freeze if necessary.",
                stacklevel=3,
            )


# -- arguments --------------------------------------------------------------------------------------------


def _check_workers(count: int, timeout: float, prefetch: int | None, persistent: bool) -> None:
    if count < 0:
        raise ValueError(
            "num_workers option should be non-negative; use num_workers=0 to disable multiprocessing."
        )
    if timeout < 0:
        raise ValueError("timeout option should be non-negative")
    if not count and prefetch is not None:
        raise ValueError(
            "prefetch_factor option could only be specified in multiprocessing.let num_workers > 0 to enable "
            "multiprocessing, otherwise set prefetch_factor to None."
        )
    if prefetch is not None and prefetch < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    if persistent and not count:
        raise ValueError("persistent_workers option needs num_workers > 0")


def _check_order(
    dataset: Any, batch_size: int | None, shuffle: Any, sampler: Any, batch_sampler: Any, drop_last: bool
) -> None:
    if isinstance(dataset, IterableDataset):
        for name, value in (
            ("shuffle", shuffle or None),
            ("sampler", sampler),
            ("batch_sampler", batch_sampler),
        ):
            if value is not None:
                raise ValueError(
                    f"DataLoader with IterableDataset: expected unspecified {name} option, but got {name}={value}"
                )
    if sampler is not None and shuffle:
        raise ValueError("sampler option is mutually exclusive with shuffle")
    if batch_sampler is not None:
        if batch_size != 1 or shuffle or sampler is not None or drop_last:
            raise ValueError(
                "batch_sampler option is mutually exclusive with batch_size, shuffle, sampler, and drop_last"
            )
    elif batch_size is None and drop_last:
        raise ValueError(
            "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
        )


def _context_of(context: Any, workers: int) -> Any:
    if not workers:
        raise ValueError(
            "multiprocessing_context can only be used with multi-process loading (num_workers > 0), but got "
            f"num_workers={workers}"
        )
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        if context not in methods:
            raise ValueError(
                f"multiprocessing_context option should specify a valid start method in {methods!r}, but got "
                f"multiprocessing_context={context!r}"
            )
        return multiprocessing.get_context(context)
    if not isinstance(context, multiprocessing.context.BaseContext):
        raise TypeError(
            "multiprocessing_context option should be a valid context object or a string specifying the start "
            f"method, but got multiprocessing_context={context}"
        )
    return context


class _InfiniteSampler:
    """A placeholder for the indices of an iterable dataset."""

    def __iter__(self) -> Iterator[None]:
        return itertools.repeat(None)


# -- iterators --------------------------------------------------------------------------------------------


class _BaseDataLoaderIter:
    """One pass over a loader's batches."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self._batches = loader._auto_collation
        self._indices = iter(loader._index_sampler)
        self._base_seed = drawn_seed(loader.generator)
        self._pins = loader.pin_memory and system.is_available()
        self._given = 0
        if loader.pin_memory and not self._pins:
            warnings.warn(
                "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory "
                "won't be used.",
                stacklevel=4,
            )

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self._loader._index_sampler)

    def __next__(self) -> Any:
        batch = self._next()
        self._given += 1
        expected = getattr(self._loader, "_length_told", None)
        if expected is not None and self._given > expected:
            _warn_of_length(self._loader, expected, self._given)
        return batch

    def _next(self) -> Any:
        raise NotImplementedError


def _warn_of_length(loader: DataLoader[Any], expected: int, given: int) -> None:
    text = (
        f"Length of IterableDataset {loader.dataset} was reported to be {expected}(when accessing len(dataloader)), "
        f"but {given} samples have been fetched. "
    )
    if loader.num_workers:
        text += (
            "For multiprocessing data-loading, this could be caused by not properly configuring the "
            "IterableDataset replica at each worker. Please see "
            "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
        )
    warnings.warn(text, stacklevel=3)


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    """An iterator of a loader that loads batches in this process."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._fetcher = _DatasetKind.create_fetcher(
            loader._dataset_kind, loader.dataset, self._batches, loader.collate_fn, loader.drop_last
        )

    def _next(self) -> Any:
        batch = self._fetcher.fetch(next(self._indices))
        return pin_memory(batch) if self._pins else batch


class _MultiProcessingDataLoaderIter(_BaseDataLoaderIter):
    """An iterator whose workers load batches ahead.

    Workers get batches in turn, and results are returned in that order regardless of speed. A worker whose part of an
    iterable dataset has ended is skipped from that position on, not from the time when its message arrives.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        super().__init__(loader)
        self._count = loader.num_workers
        self._ahead = max(1, loader.prefetch_factor or 1)
        setup = WorkerSetup(
            loader._dataset_kind, loader.dataset, self._batches, loader.collate_fn, loader.drop_last,
            loader.worker_init_fn, self._base_seed, self._count,
        )  # fmt: skip
        self._pool = Pool(loader.multiprocessing_context or multiprocessing.get_context(), setup)
        threaded = self._pins and not system.is_virtual()  # see Note [Who pins]
        self._pinner = Pinner(self._pool.receive, current.local.device) if threaded else None
        self._stop = weakref.finalize(self, _stop, self._pool, self._pinner)
        self._failed = False
        self._begin()

    def _begin(self) -> None:
        self._active = [True] * self._count
        self._worker = 0  # the worker that gets the next task
        self._owners: dict[int, int] = {}  # index of a batch -> worker that computes it
        self._arrived: dict[int, Any] = {}
        self._sent = self._wanted = 0
        self._fill()

    @property
    def stopped(self) -> bool:
        """Return True if the iterator's workers have ended."""
        return not self._stop.alive

    def restart(self, loader: DataLoader[Any]) -> None:
        """Begin another pass, with the same workers."""
        while self._owners:  # batches of a pass that the program left early
            self._receive()
        self._indices = iter(loader._index_sampler)
        self._given = 0
        for worker in range(self._count):
            self._command(worker, Restart())
        self._begin()

    def _next(self) -> Any:
        while (index := self._ready()) is None:
            if not self._owners:
                self._end()
            self._receive()
        batch = self._arrived.pop(index)
        self._fill()
        if isinstance(batch, ExceptionWrapper):
            batch.reraise()
        return pin_memory(batch) if self._pins and self._pinner is None else batch

    def _end(self) -> NoReturn:
        if self._failed:
            raise RuntimeError("the DataLoader's workers were stopped after an error: start a new iteration")
        if not self._loader.persistent_workers:
            self._stop()
        raise StopIteration

    def _ready(self) -> int | None:
        """Return the next batch of the order, if it has arrived. Skips ends of iterable datasets."""
        arrived = self._arrived
        while self._wanted in arrived if self._loader.in_order else arrived:
            index = self._wanted if self._loader.in_order else next(iter(arrived))
            self._wanted += 1
            if not isinstance(arrived[index], Ended):
                return index
            self._active[arrived.pop(index).worker] = False
            self._fill()
        return None

    def _fill(self) -> None:
        """Send tasks until every worker that has samples left has enough of them."""
        while not self.stopped and self._sent - self._wanted < self._ahead * sum(self._active):
            try:
                indices = next(self._indices)
            except StopIteration:
                return
            worker = self._next_worker()
            self._owners[self._sent] = worker
            self._command(worker, Task(self._sent, indices))
            self._sent += 1

    def _next_worker(self) -> int:
        """Return the worker that is next in order; without order, the worker with the fewest tasks."""
        active = [w for w in range(self._count) if self._active[w]]
        if self._loader.in_order:
            found = next((w for w in active if w >= self._worker), active[0])
        else:
            busy = Counter(self._owners.values())
            found = min(active, key=lambda w: (busy[w], (w - self._worker) % self._count))
        self._worker = (found + 1) % self._count
        return found

    def _command(self, worker: int, task: Any) -> None:
        try:
            self._pool.send(worker, task)
        except BaseException:
            self._fail()
            raise

    def _receive(self) -> None:
        source = self._pool if self._pinner is None else self._pinner
        try:
            found = source.receive(self._loader.timeout)
        except BaseException:  # a worker died, or the user interrupts
            self._fail()
            raise
        if found is None:
            raise RuntimeError(f"DataLoader timed out after {self._loader.timeout:g} seconds")
        index, result = found
        del self._owners[index]
        self._arrived[index] = result

    def _fail(self) -> None:
        self._failed = True
        self._owners.clear()
        self._arrived.clear()  # batches that arrived out of order: after a lost batch none of them is returned
        self._stop()


def _stop(pool: Pool, pinner: Pinner | None) -> None:
    pool.hang_up()
    if pinner is not None:
        pinner.join()
    pool.stop()
