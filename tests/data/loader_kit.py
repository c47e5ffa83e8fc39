"""Datasets that do what the tests of workers need: top-level, so that spawned processes find them."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np

import flambeau as torch
from flambeau.utils.data import Dataset, IterableDataset, get_worker_info


class Numbers(Dataset[int]):
    """0, 1, 2, ..."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return i


class Process(Numbers):
    """(index, the worker's process)."""

    def __getitem__(self, i: int) -> Any:
        return i, os.getpid()


class Large(Numbers):
    """Samples too large for a socket: a tensor, an array, a tensor of bfloat16, and a column of a matrix."""

    def __getitem__(self, i: int) -> Any:
        wide = torch.full((200, 300), i)
        return {
            "tensor": wide.float(), "array": np.full((100, 500), i), "half": wide.bfloat16(), "column": wide[:, 7],
            "text": "x" * 40_000,
        }  # fmt: skip


class Views(Numbers):
    """Rows of one large tensor."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.all = torch.arange(count * 1_000_000).view(count, -1)

    def __getitem__(self, i: int) -> Any:
        return self.all[i, :3]


class Slow(Numbers):
    """Even workers take longer."""

    def __getitem__(self, i: int) -> Any:
        info = get_worker_info()
        assert info is not None
        if info.id % 2 == 0:
            time.sleep(0.01)
        return i


class Failing(Numbers):
    """The fifth sample does it: raises, dies, hangs."""

    def __init__(self, how: str) -> None:
        super().__init__(8)
        self.how = how

    def __getitem__(self, i: int) -> Any:
        if i == 4:
            getattr(self, self.how)()
        return i

    def raises(self) -> None:
        raise ValueError("bad sample")

    def is_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def is_terminated(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def exits(self) -> None:
        os._exit(3)

    def hangs(self) -> None:
        while True:
            time.sleep(10)

    def uses_cuda(self) -> None:
        torch.ones(1, device="cuda")


class Stream(IterableDataset[Any]):
    """Each worker's own numbers, later workers more of them."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(2 * (number + 1)):
            yield number * 100 + i + 0 * workers


class Trained(Numbers):
    """Samples that require gradients: a leaf, or not."""

    def __init__(self, leaf: bool) -> None:
        super().__init__(2)
        self.leaf = leaf

    def __getitem__(self, i: int) -> Any:
        weight = torch.full((2,), i + 1.0).requires_grad_()
        return weight if self.leaf else weight * 2


class Custom:
    """A batch of a type of its own that knows how to pin itself."""

    def __init__(self, samples: list[Any]) -> None:
        self.values = torch.tensor(samples)
        self.pinned_by: str | None = None

    def pin_memory(self) -> Custom:
        self.values = self.values.pin_memory()
        self.pinned_by = "itself"
        return self


class Unpinnable:
    """A batch that cannot be pinned."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def pin_memory(self) -> None:
        raise ValueError("never")


def take(samples: Any) -> Any:
    return samples


def unpicklable(samples: Any) -> Any:
    return lambda: samples


def broken_init(number: int) -> None:
    raise RuntimeError(f"no worker {number}")
