"""Profiles of memory: who allocates and frees how much, beside PyTorch's profiler on the CPU and the allocator's own figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpus as hardware
import pytest
import torch as oracle
from gpus import either, gpus

import flambeau as torch
from flambeau.profiler import DeviceType, ProfilerActivity, profile, record_function
from flambeau.runtime import system
from flambeau.runtime.hooks import memory_hooks

pytestmark = either


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with gpus(devices=2):
        yield
    assert not memory_hooks._subscribers.members and not torch.core.flags.flags.memory_subscribed
    host: Any = system.host.allocator
    assert (host.allocate, host.allocate_output, host.free) == (host._allocate, host._allocate, host._free)


def program(module: Any) -> Any:
    """A profile of things whose memory both packages must tell alike."""
    before = module.ones(1000)
    activities = [module.profiler.ProfilerActivity.CPU]
    with module.profiler.profile(activities=activities, profile_memory=True) as prof:
        with module.profiler.record_function("block"):
            x = module.empty(1024)
            with module.profiler.record_function("inner"):
                y = x + x
            y = y.exp()
        z = module.empty(100, 3)
        del before
        with module.profiler.record_function("freed"):
            del x
        y.mul_(y)
        w = module.empty(4, 8) @ module.empty(8, 2)
        del z, w
    return prof


def test_memory_is_told_as_pytorch_tells_it() -> None:
    ours, theirs = (
        {
            e.key.replace("aten::mm", "aten::matmul"): (
                e.self_cpu_memory_usage,
                e.cpu_memory_usage,
                e.count,
            )
            for e in program(module).key_averages()
            if e.self_cpu_memory_usage
        }
        for module in (torch, oracle)
    )
    assert ours == theirs and set(ours) >= {"block", "aten::empty", "aten::exp", "[memory]", "freed"}


def test_the_table_s_columns_are_pytorch_s() -> None:
    for averaged in (False, True):
        tables = []
        for module in (torch, oracle):
            prof = program(module)
            events = prof.key_averages() if averaged else prof.events()
            text = events.table(sort_by="self_cpu_memory_usage", row_limit=1, time_unit="us")
            title, row = text.splitlines()[1:4:2]
            tables.append((title.split(), row.split()[0], row.split()[-5:]))
        (title, name, figures), (expected, first, wanted) = tables
        assert title == expected and "Mem" in title
        assert (name, figures) == (first, wanted) and "KB" in figures


def test_device_memory_is_the_allocator_s() -> None:
    torch.ones(1, device="cuda:1")
    start = torch.cuda.memory_allocated(1)
    with profile(profile_memory=True) as prof:
        with record_function("block"):
            x = torch.empty(1000, device="cuda:1")
            y = x + 1
            torch.ones(7, device="cuda:0")
        with torch.cuda.stream(torch.cuda.Stream(1)):  # allocators choose other ways when there are streams
            y2 = torch.ones(100, device="cuda:1")
        del x
    events = {e.key: e for e in prof.key_averages()}
    block, add = events["block"], events["aten::add"]
    assert (add.self_device_memory_usage, add.self_cpu_memory_usage) == (4096, 0)
    assert (block.device_memory_usage, block.self_device_memory_usage) == (8192, -512)
    assert events["[memory]"].self_device_memory_usage == -4096
    notes = [note for note in prof.events().memory if note.device_index == 1]
    assert sum(note.nbytes for note in notes) == torch.cuda.memory_allocated(1) - start
    assert notes[-1].allocated == torch.cuda.memory_allocated(1) and notes[0].allocated == start + 4096
    assert notes[-1].reserved == torch.cuda.memory_reserved(1)
    table = prof.key_averages().table(sort_by="self_cuda_memory_usage", row_limit=1)
    assert "Self CUDA Mem" in table and "4.00 KB" in table
    with pytest.warns(FutureWarning, match="`self_cuda_memory_usage` is deprecated"):
        assert add.self_cuda_memory_usage == 4096
    del y, y2


def test_instants_in_the_trace(tmp_path: Path) -> None:
    def told(module: Any) -> list[dict[str, Any]]:
        file = str(tmp_path / f"{module.__name__}.json")
        program(module).export_chrome_trace(file)
        events = json.loads(Path(file).read_text())["traceEvents"]
        return [e for e in events if e["name"] == "[memory]"]

    ours, theirs = told(torch), told(oracle)
    for key in ("ph", "cat", "s"):
        assert {e[key] for e in ours} == {e[key] for e in theirs}
    wanted = ("Bytes", "Total Reserved", "Device Type", "Device Id")
    assert [[e["args"][k] for k in wanted] for e in ours] == [[e["args"][k] for k in wanted] for e in theirs]
    ours_in_all, theirs_in_all = ([e["args"]["Total Allocated"] for e in told] for told in (ours, theirs))
    assert ours_in_all == [n - theirs_in_all[0] + 4096 for n in theirs_in_all]  # PyTorch's is the process's
    lives = Counter(e["args"]["Addr"] for e in ours)
    assert max(lives.values()) >= 2 and "[memory]" in {e["name"] for e in ours}
    with profile(profile_memory=True) as prof:
        torch.ones(3, device="cuda:1")
    prof.export_chrome_trace(tmp_path / "cuda.json")
    events = json.loads((tmp_path / "cuda.json").read_text())["traceEvents"]
    (first, last) = (e["args"] for e in events if e["name"] == "[memory]")
    assert (first["Bytes"], last["Bytes"]) == (512, -512) and first["Device Type"] == 1 == first["Device Id"]
    assert first["Total Reserved"] >= 512 and first["Addr"] == last["Addr"]


def test_nobody_is_told_afterwards_and_plans_of_before_are_told_later() -> None:
    x = torch.ones(300, device="cuda")
    sizes = []
    for _ in range(2):
        with profile(profile_memory=True) as prof:
            y = x * 3
        sizes.append({e.key: e.self_device_memory_usage for e in prof.key_averages()})
        y = x * 3
        del y
    assert sizes[0]["aten::mul"] == sizes[1]["aten::mul"] == 1536
    with profile() as prof:
        x * 3
    assert not prof.events().memory and "Mem" not in prof.key_averages().table()
    assert all(e.device_memory_usage == 0 for e in prof.events())


def test_profiles_of_memory_within_each_other() -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as outer:
        a = torch.empty(10)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as inner:
            b = torch.empty(20)
        c = torch.empty(30)
    assert [note.nbytes for note in outer.events().memory] == [40, 80, 120]
    assert [note.nbytes for note in inner.events().memory] == [80]
    del a, b, c


def test_a_call_that_fails_costs_nothing() -> None:
    with profile(profile_memory=True) as prof:
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        with pytest.raises(RuntimeError):
            torch.ones(3, device="cuda") + torch.ones(4, device="cuda")
    net = sum(e.self_device_memory_usage for e in prof.events() if e.device_type is DeviceType.CPU)
    assert net == 0


def test_a_training_step_frees_what_it_allocates() -> None:
    net = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    data = torch.ones(32, 64, device="cuda")
    with profile(profile_memory=True) as prof:
        for _ in range(2):
            optimizer.zero_grad()
            net(data).sum().backward()
            optimizer.step()
    rows = {e.key: e for e in prof.key_averages()}
    kept = sum(-(-p.grad.nbytes // 512) * 512 for p in net.parameters())
    assert sum(note.nbytes for note in prof.events().memory) == kept
    assert rows["Optimizer.zero_grad#SGD.zero_grad"].device_memory_usage == -kept
    assert rows["aten::addmm"].self_device_memory_usage == 2 * 32 * 64 * 4
    if not hardware.real:
        assert rows["Optimizer.step#SGD.step"].device_memory_usage == 0
