"""Fetchers: the samples of one batch from a dataset, collated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

from flambeau.data.dataset import IterableDataset


class Fetcher(Protocol):
    """A callable that returns the batch of a list of indices; for an iterable dataset, that many next samples.

    Raises StopIteration at the end.
    """

    def fetch(self, indices: Any) -> Any: ...


class _DatasetKind:  # PyTorch's name
    """The kinds of datasets: with indices, or iterated over."""

    Map = 0
    Iterable = 1

    @staticmethod
    def create_fetcher(
        kind: int, dataset: Any, auto_collation: bool, collate_fn: Callable[[Any], Any], drop_last: bool
    ) -> Fetcher:
        """Return the fetcher of a dataset.

        Args:
            kind: One of the kinds of this class.
            dataset: The dataset.
            auto_collation: False if an index is one sample, which is converted alone.
            collate_fn: Combines samples to a batch, or converts a sample.
            drop_last: Drop an incomplete last batch of an iterable dataset.
        """
        if kind == _DatasetKind.Map:
            return MapFetcher(dataset, auto_collation, collate_fn)
        return IterableFetcher(dataset, auto_collation, collate_fn, drop_last)


def kind_of(dataset: Any) -> int:
    """Return the kind of a dataset."""
    return _DatasetKind.Iterable if isinstance(dataset, IterableDataset) else _DatasetKind.Map


class MapFetcher:
    """A fetcher of batches from a dataset with indices."""

    def __init__(self, dataset: Any, batches: bool, collate: Callable[[Any], Any]) -> None:
        self._dataset = dataset
        self._batches = batches
        self._collate = collate

    def fetch(self, indices: Any) -> Any:
        dataset = self._dataset
        if not self._batches:
            return self._collate(dataset[indices])
        whole = getattr(dataset, "__getitems__", None)
        return self._collate([dataset[i] for i in indices] if whole is None else whole(indices))


class IterableFetcher:
    """A fetcher of batches from an iterable dataset, which it reads once."""

    def __init__(self, dataset: Any, batches: bool, collate: Callable[[Any], Any], drop_last: bool) -> None:
        self._samples = iter(dataset)
        self._batches = batches
        self._collate = collate
        self._drop_last = drop_last
        self._ended = False

    def fetch(self, indices: Any) -> Any:
        if self._ended:
            raise StopIteration
        if not self._batches:
            return self._collate(next(self._samples))
        found = list(islice(self._samples, len(indices)))
        self._ended = len(found) < len(indices)
        if not found or (self._drop_last and self._ended):
            raise StopIteration
        return self._collate(found)
