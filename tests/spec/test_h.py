"""SPEC H: memory management."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from cli.cli_kit import environment

import flambeau as torch

MIB = 1 << 20
KINDS = ("current", "peak", "allocated", "freed")
POOLS = ("all", "large_pool", "small_pool")


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with torch.virtual(devices=2, profile="v100-16g"):
        yield


def floats(nbytes: int, device: Any = "cuda") -> torch.Tensor:
    return torch.empty(nbytes // 4, device=device)


def test_h01_h02_freed_memory_is_used_again_without_asking_or_waiting_for_the_device() -> None:
    x = floats(3 * MIB)
    ptr = x.data_ptr()
    calls = torch.cuda.memory_stats()["num_device_alloc"]
    torch.cuda._sleep(10**9)
    del x
    assert floats(3 * MIB).data_ptr() == ptr
    assert not torch.cuda.current_stream().query()  # nobody waited
    assert torch.cuda.memory_stats()["num_device_alloc"] == calls
    assert torch.cuda.memory_stats()["num_device_free"] == 0


def test_h03_unused_cached_memory_shows_as_used() -> None:
    before = torch.cuda.device_memory_used()
    floats(30 * MIB)
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.device_memory_used() - before == torch.cuda.memory_reserved() == 30 * MIB


@pytest.mark.parametrize("device", [None, 0, "cuda", "cuda:0", torch.device("cuda:0"), torch.device("cuda")])
def test_h04_h05_h06_h07_what_is_allocated_and_reserved_now_and_at_most(device: Any) -> None:
    x, y = floats(5 * MIB), floats(3 * MIB)
    del y
    assert torch.cuda.memory_allocated(device) == 5 * MIB == x.numel() * 4
    assert torch.cuda.max_memory_allocated(device) == 8 * MIB
    assert torch.cuda.memory_reserved(device) == torch.cuda.max_memory_reserved(device) == 20 * MIB
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(device) == 0
    assert torch.cuda.max_memory_reserved(device) == 20 * MIB  # since the beginning of the program


def test_h08_the_peak_of_each_iteration() -> None:
    peaks = []
    for n in (4, 2, 6):
        for reset in (torch.cuda.reset_peak_memory_stats, torch.cuda.reset_peak_stats):
            reset()
            floats(n * MIB)
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks == [4 * MIB, 2 * MIB, 6 * MIB]


@pytest.mark.parametrize("name", ["reset_max_memory_allocated", "reset_max_memory_cached"])
def test_h09_h10_the_old_resets_reset_all_peaks_and_say_so(name: str) -> None:
    floats(30 * MIB)
    torch.cuda.empty_cache()
    with pytest.warns(FutureWarning, match=r"which resets /all/ peak memory stats\."):
        getattr(torch.cuda, name)()
    assert torch.cuda.max_memory_allocated() == torch.cuda.max_memory_reserved() == 0
    assert torch.cuda.memory_stats()["segment.all.peak"] == 0


def test_h11_h12_empty_cache_gives_back_what_nothing_occupies() -> None:
    used = torch.cuda.device_memory_used()
    kept = floats(30 * MIB)
    small = floats(1024)
    floats(40 * MIB)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 32 * MIB == torch.cuda.device_memory_used() - used
    assert torch.cuda.memory_allocated() == 30 * MIB + 1024
    del small, kept


def test_h13_stats_are_non_negative_integers_of_each_device() -> None:
    kept = [floats(5), floats(2 * MIB, "cuda:1")]
    for device in (None, 0, "cuda:1", torch.device("cuda:1")):
        stats = torch.cuda.memory_stats(device)
        assert isinstance(stats, dict)
        assert all(isinstance(value, int) and value >= 0 for value in stats.values())
    assert torch.cuda.memory_stats(1)["allocated_bytes.all.current"] == 2 * MIB
    del kept


@pytest.mark.parametrize(
    "family",
    ["allocated", "allocation", "allocated_bytes", "segment", "reserved_bytes", "active", "active_bytes",
     "inactive_split", "inactive_split_bytes", "requested_bytes"],
)  # fmt: skip
def test_h14_to_h28_every_family_pool_and_metric(family: str) -> None:
    kept = [floats(1000), floats(3 * MIB), floats(40 * MIB)]
    floats(5000)
    stats = torch.cuda.memory_stats()
    nested = torch.cuda.memory_stats_as_nested_dict()
    for pool in POOLS:
        values = {kind: stats[f"{family}.{pool}.{kind}"] for kind in KINDS}
        assert values == nested[family][pool]
        assert values["current"] == values["allocated"] - values["freed"]
        assert values["peak"] >= values["current"]
    for kind in ("current", "allocated", "freed"):
        parts = [stats[f"{family}.{pool}.{kind}"] for pool in POOLS]
        assert parts[0] == parts[1] + parts[2]
    expected = {
        "allocated": (3, 2, 1), "allocation": (3, 2, 1), "allocated_bytes": (43 * MIB + 1024, 43 * MIB, 1024),
        "segment": (3, 2, 1), "reserved_bytes": (62 * MIB, 60 * MIB, 2 * MIB), "active": (3, 2, 1),
        "active_bytes": (43 * MIB + 1024, 43 * MIB, 1024), "inactive_split": (3, 1, 2),
        "inactive_split_bytes": (19 * MIB - 1024, 17 * MIB, 2 * MIB - 1024),
        "requested_bytes": (43 * MIB + 1000, 43 * MIB, 1000),
    }[family]  # fmt: skip
    assert tuple(stats[f"{family}.{pool}.current"] for pool in POOLS) == expected
    del kept


def test_h23_h24_the_pools_divide_at_one_mebibyte() -> None:
    kept = [floats(MIB), floats(MIB + 4)]
    stats = torch.cuda.memory_stats()
    assert stats["allocation.small_pool.current"] == stats["allocation.large_pool.current"] == 1
    del kept


def test_h29_h30_h31_out_of_memory_is_counted_and_survived() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    x = torch.ones(1000, device="cuda")
    floats(total // 2)  # cached: given back for what follows
    y = floats(total * 3 // 4)
    assert torch.cuda.memory_stats()["num_alloc_retries"] == 1
    allocated = torch.cuda.memory_allocated()
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        floats(total)
    assert isinstance(caught.value, torch.OutOfMemoryError)
    assert torch.cuda.memory_stats()["num_ooms"] == 1
    assert torch.cuda.memory_allocated() == allocated
    assert x.sum().item() == 1000 and y.numel()


def test_h32_the_summary_says_the_figures_and_helps_when_memory_is_out() -> None:
    x = floats(3 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        floats(1 << 40)
    full, short = torch.cuda.memory_summary(), torch.cuda.memory_summary(abbreviated=True)
    assert "CUDA OOMs: 1 " in full and "|   3072 KiB |" in full and "from large pool" in full
    assert len(short) < len(full) and "from large pool" not in short
    assert torch.cuda.memory_summary(1).count("device ID 1") == 1
    del x


def test_h33_the_snapshot_holds_every_segment_of_every_device() -> None:
    side = torch.cuda.Stream()
    x, y = floats(3 * MIB), floats(2000, "cuda:1")
    with torch.cuda.stream(side):
        z = floats(40 * MIB)
    segments = torch.cuda.memory_snapshot()
    assert [(s["device"], s["total_size"], s["segment_type"]) for s in segments] == [
        (0, 20 * MIB, "large"), (0, 40 * MIB, "large"), (1, 2 * MIB, "small"),
    ]  # fmt: skip
    assert [s["stream"] for s in segments] == [0, side.cuda_stream, 0]
    blocks = [(b["state"], b["size"], b["requested_size"]) for b in segments[0]["blocks"]]
    assert blocks == [("active_allocated", 3 * MIB, 3 * MIB), ("inactive", 17 * MIB, 0)]
    assert segments[0]["blocks"][0]["address"] == x.data_ptr() == segments[0]["address"]
    assert pickle.loads(pickle.dumps(segments)) == segments
    del y, z


@pytest.mark.parametrize("device", [None, 0, "cuda:0", torch.device("cuda:0")])
def test_h34_the_processes_of_a_device(device: Any) -> None:
    x = floats(40 * MIB)
    lines = torch.cuda.list_gpu_processes(device).splitlines()
    assert lines[0] == "GPU:0"
    assert f"process {os.getpid():>10d} uses" in lines[1] and lines[1].endswith(" MB GPU memory")
    assert float(lines[1].split()[3]) >= 40
    del x


def test_h35_h36_the_fraction_limits_what_is_reserved() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    x = floats(total // 5)
    with pytest.raises(torch.OutOfMemoryError, match="allowed"):
        floats(total // 10)
    floats(total // 3, "cuda:1")  # the other device is as it was
    for wrong in (-0.1, 1.1):
        with pytest.raises(ValueError, match="Allowed range: 0~1"):
            torch.cuda.set_per_process_memory_fraction(wrong)
    torch.cuda.set_per_process_memory_fraction(1.0, torch.device("cuda:0"))
    assert floats(total // 10).numel() and x.numel()


def test_h37_caching_is_switched_off_by_the_environment() -> None:
    program = """
import flambeau as torch
with torch.virtual(devices=1):
    x = torch.ones(1000, device="cuda")
    print(torch.cuda.memory_reserved(), torch.cuda.memory_allocated())
    del x
    print(torch.cuda.memory_reserved(), torch.cuda.memory_stats()["num_device_free"])
"""
    for value, expected in (("1", "4096 4096\n0 1\n"), ("0", "2097152 4096\n2097152 0\n")):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
            env=environment() | {"PYTORCH_NO_CUDA_MEMORY_CACHING": value},
        )  # fmt: skip
        assert (done.stdout, done.stderr) == (expected, "")


def test_h38_the_old_names_of_what_is_reserved() -> None:
    x = floats(3 * MIB)
    with pytest.warns(FutureWarning, match="memory_reserved"):
        assert torch.cuda.memory_cached() == 20 * MIB
    del x
    torch.cuda.empty_cache()
    with pytest.warns(FutureWarning, match="max_memory_reserved"):
        assert torch.cuda.max_memory_cached() == 20 * MIB


def test_h39_a_context_takes_memory_too() -> None:
    x = torch.ones(1, device="cuda")
    assert (
        torch.cuda.device_memory_used() > torch.cuda.memory_reserved() > torch.cuda.memory_allocated() == 512
    )
    del x


def test_h40_without_a_gpu_the_figures_are_0() -> None:
    with torch.virtual(devices=0):
        assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
        assert torch.cuda.max_memory_allocated() == torch.cuda.max_memory_reserved() == 0
        assert torch.cuda.memory_snapshot() == []
