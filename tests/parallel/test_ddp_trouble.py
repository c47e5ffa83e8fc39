"""What becomes of data parallel training when one rank dies, stalls, runs out of memory or does something else.

On virtual GPUs, under several schedules and orders of ranks: every run ends, each with the rank and the line.
"""

from __future__ import annotations

from typing import Any

import pytest

import flambeau as torch
import flambeau.distributed as dist
from flambeau import nn
from flambeau.nn.parallel import DistributedDataParallel
from flambeau.testing.ranks import ranks

SIZE = 3
SCHEDULES = ["earliest", "random:1", "random:2", "adversarial:3", "pct:4:3"]


def trained(trouble: str) -> list[list[float]]:
    """Three steps; in the second the last rank has its trouble."""
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    layers = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)
    model = DistributedDataParallel(nn.Sequential(*layers).cuda(), bucket_cap_mb=1e-4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(3):
        if step == 1 and rank == SIZE - 1:
            if trouble == "ends":
                break
            if not begins_well(trouble):
                continue
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=generator).cuda()).square().mean().backward()
        optimizer.step()
    return [p.tolist() for p in model.parameters()]


def begins_well(trouble: str) -> bool:
    if trouble == "raises":
        raise ValueError("of one rank")
    if trouble == "memory":
        torch.empty(400 << 30, dtype=torch.uint8, device="cuda")
    if trouble == "another call":
        dist.all_reduce(torch.ones(3, device="cuda"))
    if trouble == "stalls":
        torch.cuda._sleep(10**13)
    return trouble != "skips"


ENDS: dict[str, tuple[type[Exception], str]] = {
    "raises": (ValueError, "of one rank"),
    "ends": (RuntimeError, "rank 2 has ended"),
    "memory": (torch.OutOfMemoryError, "Tried to allocate 400.00 GiB. GPU 2 has"),
    "another call": (dist.DistBackendError, "rank 2 (cuda:2) at tests/parallel/test_ddp_trouble.py:"),
    "skips": (RuntimeError, "which has not arrived"),
}


@pytest.mark.parametrize("trouble", ENDS)
@pytest.mark.parametrize(("order", "schedule"), [*enumerate(SCHEDULES)])
def test_every_run_ends_with_what_went_wrong(trouble: str, order: int, schedule: str) -> None:
    kind, text = ENDS[trouble]
    with pytest.raises(kind) as told:
        ranks(trained, SIZE, trouble, schedule=schedule, order=order, poison=True)
    assert text in str(told.value)


def test_a_stall_changes_nothing_but_the_time() -> None:
    want: Any = ranks(trained, SIZE, "")
    for order, schedule in enumerate(SCHEDULES):
        assert ranks(trained, SIZE, "stalls", schedule=schedule, order=order, races="error") == want
    assert want[0] == want[1] == want[2]


def unused(level: Any) -> str:
    dist.init_process_group("gloo")
    if level is not None:
        dist.set_debug_level(level)
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    model.forward = lambda x: model["used"](x)
    parallel = DistributedDataParallel(model)
    parallel(torch.ones(1, 2)).sum().backward()
    with pytest.raises(
        RuntimeError, match="Parameter indices which did not receive grad for rank 0: 2 3"
    ) as told:
        parallel(torch.ones(1, 2))
    return str(told.value)


@pytest.mark.parametrize("level", [None, dist.DebugLevel.INFO])
def test_parameters_without_gradients_are_named_where_the_debug_level_was_set(level: Any) -> None:
    (text,) = ranks(unused, 1, level)
    assert ("unused.weight, unused.bias" in text) is (level is not None)
    assert ("TORCH_DISTRIBUTED_DEBUG" in text) is (level is None)
