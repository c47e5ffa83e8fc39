"""Run without a GPU: `pytest --virtual-gpus=2 --gpu-schedules=20`."""

import pytest
import torch
from prefetch import Prefetcher

BATCHES = 5


def batches() -> list[torch.Tensor]:
    return [torch.full((64, 64), float(i)) for i in range(BATCHES)]


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.eye(64, device="cuda")


def test_each_batch_arrives_once_and_in_order(weight: torch.Tensor) -> None:
    sums = [(batch @ weight).sum() for batch in Prefetcher(batches())]
    assert [s.item() for s in sums] == [i * 64 * 64 for i in range(BATCHES)]


@pytest.mark.gpu_schedules(50)
def test_batches_may_be_changed_in_place(weight: torch.Tensor) -> None:
    total = torch.zeros(64, 64, device="cuda")
    for batch in Prefetcher(batches()):
        total += batch.add_(1) @ weight
    assert total.sum().item() == sum(range(1, BATCHES + 1)) * 64 * 64


def test_the_second_gpu_gets_its_own_copies() -> None:
    with torch.cuda.device(1):
        sums = [batch.sum().item() for batch in Prefetcher(batches())]
    assert sums == [i * 64 * 64 for i in range(BATCHES)]
