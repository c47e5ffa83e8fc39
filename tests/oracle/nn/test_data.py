"""`torch.utils.data` against PyTorch's: orders for the same seed, batches, the words of errors, what workers see."""

from __future__ import annotations

import collections
import random
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import torch

import flambeau
from flambeau.core.ipc.exception_wrapper import ExceptionWrapper
from flambeau.utils.data._utils import collate as our_rules

PACKAGES = pytest.mark.parametrize("package", [flambeau, torch], ids=["flambeau", "torch"])
Pair = collections.namedtuple("Pair", "x y")


def plain(value: Any) -> Any:
    """A value of either package as plain Python, types kept apart."""
    if isinstance(value, (flambeau.Tensor, torch.Tensor)):
        return ["tensor", str(value.dtype), list(value.shape), value.tolist()]
    if isinstance(value, collections.abc.Mapping):
        return [type(value).__name__, {k: plain(v) for k, v in value.items()}]
    if isinstance(value, (list, tuple, collections.deque)):
        return [type(value).__name__, *map(plain, value)]
    return value


def outcome(call: Any) -> Any:
    """What a call gives, or raises, and what it warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = plain(call())
        except Exception as error:
            found = (type(error).__name__, str(error))
    return found, [str(w.message) for w in caught]


def both(call: Any) -> None:
    """Assert that a call of a package does the same in both."""
    assert outcome(lambda: call(flambeau)) == outcome(lambda: call(torch))


# -- orders ---------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 2**62),
    replacement=st.booleans(),
    count=st.none() | st.integers(1, 100),
    own=st.booleans(),
)
def test_random_sampler(n: int, seed: int, replacement: bool, count: int | None, own: bool) -> None:
    def order(package: Any) -> Any:
        package.manual_seed(seed)
        generator = package.Generator().manual_seed(seed) if own else None
        sampler = package.utils.data.RandomSampler(range(n), replacement, count, generator)
        state = package.random.get_rng_state() if generator is None else generator.get_state()
        return list(sampler), list(sampler), len(sampler), state.tolist(), package.rand(1).item()

    assert order(flambeau) == order(torch)


@given(n=st.integers(1, 30), seed=st.integers(0, 2**62))
def test_subsets_and_splits(n: int, seed: int) -> None:
    def order(package: Any) -> Any:
        data = package.utils.data
        package.manual_seed(seed)
        subset = list(data.SubsetRandomSampler([i * i for i in range(n)]))
        third = n // 3
        by_count = [list(part.indices) for part in data.random_split(range(n), [n - third, third])]
        return subset, by_count, package.rand(1).item()

    both(order)


@given(
    n=st.integers(3, 60), shares=st.lists(st.integers(1, 9), min_size=1, max_size=4), seed=st.integers(0, 99)
)
def test_splits_by_fractions(n: int, shares: list[int], seed: int) -> None:
    fractions = [share / sum(shares) for share in shares]

    def split(package: Any) -> Any:
        generator = package.Generator().manual_seed(seed)
        parts = package.utils.data.random_split(list(range(n)), fractions, generator)
        return [[part[i] for i in range(len(part))] for part in parts]

    both(split)


@given(
    weights=st.lists(st.floats(0.1, 9), min_size=2, max_size=9),
    seed=st.integers(0, 2**40),
    replacement=st.booleans(),
)
def test_weighted_sampler(weights: list[float], seed: int, replacement: bool) -> None:
    def order(package: Any) -> Any:
        generator = package.Generator().manual_seed(seed)
        count = 20 if replacement else len(weights)
        sampler = package.utils.data.WeightedRandomSampler(weights, count, replacement, generator)
        return list(sampler), len(sampler)

    assert order(flambeau) == order(torch)


@given(
    n=st.integers(1, 30),
    ranks=st.integers(1, 7),
    shuffle=st.booleans(),
    drop=st.booleans(),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 9),
)
def test_distributed_sampler(n: int, ranks: int, shuffle: bool, drop: bool, seed: int, epoch: int) -> None:
    def orders(package: Any) -> Any:
        found = []
        for rank in range(ranks):
            sampler = package.utils.data.DistributedSampler(range(n), ranks, rank, shuffle, seed, drop)
            sampler.set_epoch(epoch)
            found.append((list(sampler), len(sampler), sampler.total_size))
        return found

    if drop and n < ranks:
        return  # PyTorch divides by nothing there
    assert orders(flambeau) == orders(torch)


@given(n=st.integers(0, 20), size=st.integers(1, 7), drop=st.booleans())
def test_batch_sampler(n: int, size: int, drop: bool) -> None:
    def batches(package: Any) -> Any:
        sampler = package.utils.data.BatchSampler(range(n), size, drop)
        return list(sampler), len(sampler)

    assert batches(flambeau) == batches(torch)


# -- batches --------------------------------------------------------------------------------------------------

numbers = st.one_of(
    st.integers(-9, 9), st.floats(allow_nan=False, width=32), st.booleans(),
    st.integers(-9, 9).map(np.int16), st.floats(allow_nan=False, width=32).map(np.float32),
    st.integers(0, 3).map(lambda n: np.arange(n, dtype=np.float64)), st.integers(0, 5).map(lambda n: ("t", n)),
    st.text(max_size=3), st.binary(max_size=3), st.none(),
)  # fmt: skip
samples = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.lists(inner, min_size=1, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1).map(collections.OrderedDict),
        st.tuples(inner, inner).map(lambda p: Pair(*p)),
    ),
    max_leaves=6,
)


def with_tensors(sample: Any, package: Any) -> Any:
    if isinstance(sample, tuple) and len(sample) == 2 and sample[0] == "t" and isinstance(sample[1], int):
        return package.arange(sample[1])
    if isinstance(sample, Pair):
        return Pair(*(with_tensors(x, package) for x in sample))
    if isinstance(sample, (list, tuple)):
        return type(sample)(with_tensors(x, package) for x in sample)
    if isinstance(sample, dict):
        return type(sample)((k, with_tensors(v, package)) for k, v in sample.items())
    return sample


@given(samples, st.integers(1, 3))
def test_equal_samples_collate_alike(sample: Any, count: int) -> None:
    both(lambda package: package.utils.data.default_collate([with_tensors(sample, package)] * count))


@given(samples)
def test_samples_convert_alike(sample: Any) -> None:
    both(lambda package: package.utils.data.default_convert(with_tensors(sample, package)))


BATCHES: list[Any] = [
    [], [object()], [[1], [1, 2]], [{"a": 1}, {"b": 1}], [np.array(["a"])], [1, 2.5], [2.5, 1], [1, "a"], [True, 3],
    [np.float32(1), np.float64(2)], [collections.defaultdict(int, a=1)], [range(2), range(2)], [slice(1)],
    [collections.deque([1, 2])], [np.ones(2), np.ones(3)], [np.array(1), np.array(2)], [1j, 2j], [b"a", b"b"],
    [frozenset([1])], [np.ones((2, 2))[:, ::2]] * 2,
]  # fmt: skip


@pytest.mark.parametrize("batch", BATCHES)
def test_odd_batches(batch: Any) -> None:
    both(lambda package: package.utils.data.default_collate(batch))


def test_tensors_of_different_sizes() -> None:
    both(lambda package: package.utils.data.default_collate([package.ones(2), package.ones(3)]))


def test_rules_of_ones_own() -> None:
    def collate(rules: Any) -> Any:
        class Special(int): ...

        def joined(batch: Any, *, collate_fn_map: Any = None) -> Any:
            return ("special", len(batch))

        own = {Special: joined, **rules.default_collate_fn_map}
        return rules.collate([(Special(1), 2), (Special(3), 4)], collate_fn_map=own)

    from torch.utils.data._utils import collate as their_rules

    assert plain(collate(our_rules)) == plain(collate(their_rules))


# -- words of errors ------------------------------------------------------------------------------------------


def some(package: Any) -> Any:
    return package.utils.data.TensorDataset(package.arange(10))


def iterable(package: Any) -> Any:
    class Stream(package.utils.data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(5))

        def __repr__(self) -> str:
            return "Stream()"

    return Stream()


CALLS: list[Any] = [
    lambda t, d: d.DataLoader(some(t), num_workers=-1),
    lambda t, d: d.DataLoader(some(t), timeout=-1),
    lambda t, d: d.DataLoader(some(t), prefetch_factor=2),
    lambda t, d: d.DataLoader(some(t), prefetch_factor=-2, num_workers=1),
    lambda t, d: d.DataLoader(some(t), persistent_workers=True),
    lambda t, d: d.DataLoader(iterable(t), shuffle=True),
    lambda t, d: d.DataLoader(iterable(t), sampler=[1]),
    lambda t, d: d.DataLoader(iterable(t), batch_sampler=[1]),
    lambda t, d: d.DataLoader(some(t), sampler=[1], shuffle=True),
    lambda t, d: d.DataLoader(some(t), batch_sampler=[1], batch_size=2),
    lambda t, d: d.DataLoader(some(t), batch_sampler=[1], shuffle=True),
    lambda t, d: d.DataLoader(some(t), batch_size=None, drop_last=True),
    lambda t, d: d.DataLoader(some(t), batch_size=0),
    lambda t, d: d.DataLoader(some(t), batch_size="1"),
    lambda t, d: d.DataLoader([], shuffle=True),
    lambda t, d: d.DataLoader(some(t), multiprocessing_context="fork"),
    lambda t, d: d.DataLoader(some(t), multiprocessing_context="foo", num_workers=1),
    lambda t, d: d.DataLoader(some(t), multiprocessing_context=3, num_workers=1),
    lambda t, d: setattr(d.DataLoader(some(t)), "batch_size", 2),
    lambda t, d: setattr(d.DataLoader(some(t)), "dataset", 2),
    lambda t, d: setattr(d.DataLoader(some(t)), "persistent_workers", True),
    lambda t, d: setattr(d.DataLoader(some(t)), "collate_fn", None),
    lambda t, d: len(d.DataLoader(iterable(t), batch_size=2)),
    lambda t, d: len(d.DataLoader(some(t), batch_size=3)),
    lambda t, d: len(d.DataLoader(some(t), batch_size=3, drop_last=True)),
    lambda t, d: len(d.DataLoader(some(t), batch_size=None)),
    lambda t, d: list(d.DataLoader(some(t), batch_size=5, pin_memory=True)),
    lambda t, d: bool(str(d.DataLoader(range(4), num_workers=500).num_workers)),
    lambda t, d: d.Dataset()[0],
    lambda t, d: len(d.Dataset()),
    lambda t, d: d.IterableDataset(),
    lambda t, d: d.TensorDataset(t.ones(1), t.ones(2)),
    lambda t, d: d.TensorDataset(t.arange(6), t.arange(12).view(6, 2))[1:3],
    lambda t, d: d.ConcatDataset([]),
    lambda t, d: d.ConcatDataset([iterable(t)]),
    lambda t, d: d.ConcatDataset([some(t), range(3)])[-14],
    lambda t, d: [d.ConcatDataset([range(3), range(10, 12)])[i] for i in range(-5, 5)],
    lambda t, d: d.ConcatDataset([range(3)])[3],
    lambda t, d: [d.ConcatDataset.cumsum(x) for x in ([], [range(3), "ab"], (range(0), [1]))],
    lambda t, d: d.ConcatDataset.cumsum([3]),
    lambda t, d: d.ConcatDataset([range(3)]).cummulative_sizes,
    lambda t, d: len(some(t) + some(t)),
    lambda t, d: list(iterable(t) + iterable(t)),
    lambda t, d: list(d.ChainDataset([some(t)])),
    lambda t, d: len(d.ChainDataset([some(t)])),
    lambda t, d: d.StackDataset(),
    lambda t, d: d.StackDataset(some(t), range(2)),
    lambda t, d: d.StackDataset(a=some(t), b=range(2)),
    lambda t, d: d.StackDataset(some(t), a=some(t)),
    lambda t, d: d.StackDataset(a=some(t), b=range(10))[3],
    lambda t, d: d.StackDataset(some(t), range(10)).__getitems__([1, 2]),
    lambda t, d: d.StackDataset(a=range(10), b=d.Subset(range(10, 30), range(3, 13))).__getitems__([1, 2]),
    lambda t, d: d.Subset(t.arange(10), [3, 4])[[0, 1]],
    lambda t, d: d.Subset(range(10), [3, 4]).__getitems__([1, 0]),
    lambda t, d: d.random_split(range(10), [3, 3]),
    lambda t, d: d.random_split(range(10), [0.5, 0.6]),
    lambda t, d: d.random_split(range(10), [1.5, -0.5]),
    lambda t, d: [len(x) for x in d.random_split(range(10), [0.01, 0.99])],
    lambda t, d: d.RandomSampler(range(3), replacement=3),
    lambda t, d: d.RandomSampler(range(3), num_samples=-1),
    lambda t, d: d.RandomSampler(range(3), num_samples="a"),
    lambda t, d: d.RandomSampler([]),
    lambda t, d: d.WeightedRandomSampler([1.0], 0),
    lambda t, d: d.WeightedRandomSampler([1.0], True),
    lambda t, d: d.WeightedRandomSampler([1.0], 1, replacement=2),
    lambda t, d: d.WeightedRandomSampler([[1.0]], 1),
    lambda t, d: list(d.WeightedRandomSampler([1.0, 2], 5, replacement=False)),
    lambda t, d: d.BatchSampler([1], 0, False),
    lambda t, d: d.BatchSampler([1], True, False),
    lambda t, d: d.BatchSampler([1], 2, 3),
    lambda t, d: len(d.Sampler()),
    lambda t, d: iter(d.Sampler()),
    lambda t, d: d.DistributedSampler(range(3), 2, 2),
    lambda t, d: d.DistributedSampler(range(3)),
    lambda t, d: d.get_worker_info(),
    lambda t, d: d.DataLoader.__mro__[1].__name__,
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_same_result_or_same_words(number: int) -> None:
    def call(package: Any) -> Any:
        found = CALLS[number](package, package.utils.data)
        return type(found).__name__ if hasattr(found, "__dict__") and not isinstance(found, str) else found

    both(call)


def test_a_stream_longer_than_it_says() -> None:
    def run(package: Any) -> Any:
        class Stream(package.utils.data.IterableDataset):
            def __iter__(self) -> Any:
                return iter(range(5))

            def __len__(self) -> int:
                return 3

            def __repr__(self) -> str:
                return "Stream()"

        loader = package.utils.data.DataLoader(Stream(), batch_size=1)
        return len(loader), list(loader)

    both(run)


# -- loaders --------------------------------------------------------------------------------------------------


@given(
    n=st.integers(1, 20),
    size=st.none() | st.integers(1, 6),
    shuffle=st.booleans(),
    drop=st.booleans(),
    seed=st.integers(0, 2**40),
    own=st.booleans(),
)
def test_epochs_of_a_loader(
    n: int, size: int | None, shuffle: bool, drop: bool, seed: int, own: bool
) -> None:
    """The same batches in the same order, and the same numbers left in the generator."""

    def run(package: Any) -> Any:
        package.manual_seed(seed)
        dataset = package.utils.data.TensorDataset(package.arange(n), package.arange(2 * n).view(n, 2) / 2)
        generator = package.Generator().manual_seed(seed + 1) if own else None
        loader = package.utils.data.DataLoader(
            dataset,
            batch_size=size,
            shuffle=shuffle,
            drop_last=drop and size is not None,
            generator=generator,
        )
        return list(loader), list(loader), package.rand(2), package.rand(2, generator=generator)

    both(run)


class Seeds:
    """Samples are what a worker's generators give."""

    def __init__(self, package: str) -> None:
        self.package = package

    def __len__(self) -> int:
        return 6

    def __getitem__(self, i: int) -> Any:
        package = flambeau if self.package == "flambeau" else torch
        info = package.utils.data.get_worker_info()
        return {
            "i": i, "worker": info.id, "of": info.num_workers, "seed": info.seed, "torch": package.rand(2).tolist(),
            "torch seed": package.initial_seed(), "numpy": float(np.random.rand()), "python": random.random(),
        }  # fmt: skip


def identity(batch: Any) -> Any:
    return batch


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_have_pytorchs_seeds() -> None:
    def run(package: Any) -> Any:
        package.manual_seed(7)
        dataset = Seeds(package.__name__)
        loader = package.utils.data.DataLoader(
            dataset, 2, shuffle=True, num_workers=2, collate_fn=identity, multiprocessing_context="fork"
        )
        kept = package.utils.data.DataLoader(
            dataset, None, num_workers=1, persistent_workers=True, multiprocessing_context="fork"
        )
        return list(loader), list(loader), list(kept), list(kept), package.rand(1).item()

    assert run(flambeau) == run(torch)


# -- errors from elsewhere ------------------------------------------------------------------------------------


class Odd(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one}{two}")


@pytest.mark.parametrize(
    "error", [lambda: ValueError("bad"), lambda: KeyError("bad"), lambda: Odd(1, 2), lambda: OSError(3, "no")]
)
def test_wrapped_exceptions(error: Any) -> None:
    def raised(wrapper: Any) -> Any:
        try:
            raise error()
        except Exception:
            caught = wrapper(where="in a test")
        return outcome(caught.reraise)

    assert raised(ExceptionWrapper) == raised(torch._utils.ExceptionWrapper)
