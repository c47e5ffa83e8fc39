"""Virtual GPUs without data: the same times, the same memory, the same errors of memory; nobody reads a value."""

import resource

import pytest

import flambeau as torch
from flambeau import nn


def step(machine):
    """A training step; the host's and the device's simulated time, the trace, memory at most."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    batch, side = torch.ones(32, 64).pin_memory(), torch.cuda.Stream()
    for _ in range(3):
        with torch.cuda.stream(side):
            inputs = batch.to("cuda", non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        net(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.synchronize()
    return machine.driver.time_ns(), machine.driver.trace_hash(), torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("schedule", ["earliest", "random:3"])
def test_without_data_time_order_and_memory_are_the_same(schedule):
    with torch.virtual(1, profile="h100", schedule=schedule) as machine:
        real = step(machine)
    with torch.virtual(1, profile="h100", schedule=schedule, data=False) as machine:
        assert step(machine) == real


def test_reading_a_value_raises_and_says_why():
    with torch.virtual(1, data=False):
        x = torch.ones(4, device="cuda")
        for read in (x.sum().item, x.tolist, x.cpu, x.nonzero, lambda: str(x), lambda: bool((x > 0).all())):
            with pytest.raises(torch.NotSupportedError, match=r"no data.*FLAMBEAU_VIRTUAL_DATA"):
                read()
        assert torch.ones(0, device="cuda").cpu().shape == (0,)
        assert x.add(1).shape == (4,)  # the machine goes on


def test_no_memory_is_committed_but_the_device_runs_out():
    with torch.virtual(1, profile="a100-40g", data=False):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        x = torch.zeros(7 << 30, device="cuda")  # 28 GiB of floats
        x.add_(1)
        torch.cuda.synchronize()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty_like(x)


def test_the_environment_asks_for_it(monkeypatch):
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_DATA", "0")
    with torch.virtual(1), pytest.raises(torch.NotSupportedError, match="no data"):
        torch.ones(1, device="cuda").item()
    with torch.virtual(1, data=True):
        assert torch.ones(1, device="cuda").item() == 1
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_DATA", "off")
    with pytest.raises(ValueError, match=r"FLAMBEAU_VIRTUAL_DATA='off': must be one of 0, 1"):
        torch.virtual(1)
