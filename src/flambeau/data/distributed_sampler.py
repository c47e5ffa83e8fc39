"""`DistributedSampler`: the part of a dataset that one rank of several loads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized
from importlib import import_module
from itertools import islice
from typing import Any

from flambeau.data.sampler import Sampler
from flambeau.runtime.generator import Generator
from flambeau.tensor.functions.random import randperm


class DistributedSampler(Sampler[int]):
    """A sampler for one rank: every `num_replicas`-th index from `rank` on, in order or in a shuffle that all ranks
    share.

    Each rank gets equally many indices: some occur twice, or with `drop_last` some never. Call `set_epoch` before each
    pass; otherwise each pass has the same order.

    Args:
        num_replicas, rank: Default: those of `torch.distributed`.

    Raises:
        ValueError: If `torch.distributed` is not initialized, or the rank does not exist.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:  # only then are there groups to ask
            group = import_module("flambeau.distributed.world").world().require_default()
            num_replicas = group.size() if num_replicas is None else num_replicas
            rank = group.rank() if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        n = len(dataset)
        self.num_samples = n // num_replicas if drop_last else math.ceil(n / num_replicas)
        self.total_size = self.num_samples * num_replicas

    def __iter__(self) -> Iterator[int]:
        order = self._order()
        whole = order * math.ceil(self.total_size / len(order)) if order else []
        return islice(iter(whole[: self.total_size]), self.rank, None, self.num_replicas)

    def _order(self) -> list[int]:
        n = len(self.dataset)
        if not self.shuffle:
            return list(range(n))
        shuffled: Any = randperm(n, generator=Generator().manual_seed(self.seed + self.epoch))
        return list(shuffled.tolist())

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Use this number in the seed of the next passes' shuffles."""
        self.epoch = epoch
