"""Samplers: the order of a dataset's indices. The random ones draw PyTorch's numbers for the same seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar

from flambeau.core.dtype import float64, int64
from flambeau.runtime.generator import Generator
from flambeau.tensor.exchange.interop import as_tensor
from flambeau.tensor.functions.creation import empty
from flambeau.tensor.functions.random import multinomial, randint, randperm

T_co = TypeVar("T_co", covariant=True)
_AT_ONCE = 32  # indices drawn with replacement in one call, as in PyTorch


class Sampler(Generic[T_co]):
    """An iterable of indices, or of lists of indices. Subclasses define `__iter__`, and `__len__` if they can."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError


class SequentialSampler(Sampler[int]):
    """The indices in order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """The indices in random order, or drawn with replacement.

    Without a generator, each pass creates one, seeded by a number from the default generator.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise TypeError(f"replacement should be a boolean value, but got replacement={replacement}")
        if not isinstance(self.num_samples, int) or self.num_samples <= 0:
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={self.num_samples}"
            )

    @property
    def num_samples(self) -> int:
        """Return the number of indices of a pass; default: the dataset's length."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        n = len(self.data_source)
        source = Generator().manual_seed(drawn_seed(None)) if self.generator is None else self.generator
        wholes, rest = divmod(self.num_samples, _AT_ONCE if self.replacement else n)
        for _ in range(wholes):
            yield from self._draw(n, source)
        yield from self._draw(n, source, rest)

    def _draw(self, n: int, source: Generator, count: int | None = None) -> list[int]:
        found: Any
        if self.replacement:
            count = _AT_ONCE if count is None else count
            found = randint(high=n, size=(count,), dtype=int64, generator=source)
            return list(found.tolist())
        found = randperm(n, generator=source)
        return list(found.tolist()[:count])

    def __len__(self) -> int:
        return self.num_samples


def drawn_seed(generator: Generator | None) -> int:
    """Return a seed of 63 bits from a generator, the default one if None."""
    number: Any = empty((), dtype=int64).random_(generator=generator)
    return int(number.item())


class SubsetRandomSampler(Sampler[int]):
    """A sampler of the given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        order: Any = randperm(len(self.indices), generator=self.generator)
        for i in order.tolist():
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """A sampler that draws indices with given weights, which need not add up to one."""

    def __init__(
        self,
        weights: Sequence[float],
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        if not _is_positive(num_samples):
            raise ValueError(
                f"num_samples should be a positive integer value, but got num_samples={num_samples}"
            )
        if not isinstance(replacement, bool):
            raise ValueError(f"replacement should be a boolean value, but got replacement={replacement}")
        self.weights = as_tensor(weights, dtype=float64)
        if self.weights.ndim != 1:
            raise ValueError(
                f"weights should be a 1d sequence but given weights have shape {self.weights.meta.shape}"
            )
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        drawn: Any = multinomial(self.weights, self.num_samples, self.replacement, generator=self.generator)
        yield from iter(drawn.tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of `batch_size` indices of another sampler; the last may be shorter, or is left out."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if not _is_positive(batch_size):
            raise ValueError(
                f"batch_size should be a positive integer value, but got batch_size={batch_size}"
            )
        if not isinstance(drop_last, bool):
            raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield batch

    def __len__(self) -> int:
        n = len(self.sampler)  # type: ignore[arg-type]
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)


def _is_positive(n: Any) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and n > 0
