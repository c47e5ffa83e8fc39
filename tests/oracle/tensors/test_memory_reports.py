"""Reports on memory against PyTorch: its names, its table, its reader of snapshots."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import torch as oracle

import flambeau as torch

MIB = 1 << 20


@pytest.fixture(autouse=True)
def virtual() -> Iterator[None]:
    with torch.virtual(devices=2, profile="v100-16g"):
        yield


def program() -> list[Any]:
    """Memory of two streams, split and whole, live, cached and pending."""
    kept = [torch.ones(n, device="cuda") for n in (3, 1000, MIB, 5 * MIB, 300_000)]
    del kept[1:3]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        kept.append(torch.ones(700_000, device="cuda"))
    torch.cuda._sleep(10**9)
    pending = torch.ones(200_000, device="cuda")
    pending.record_stream(side)
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**9)
    del pending
    return kept


def test_every_public_name_is_there() -> None:
    names = oracle.cuda.memory.__all__
    assert [n for n in names if not hasattr(torch.cuda.memory, n) or not hasattr(torch.cuda, n)] == []
    hidden = (
        "_record_memory_history",
        "_snapshot",
        "_dump_snapshot",
        "_set_allocator_settings",
        "_allocation_traceback",
    )
    assert [n for n in hidden if not hasattr(torch.cuda.memory, n)] == []


@pytest.mark.parametrize("abbreviated", [False, True])
def test_the_summary_is_pytorchs_table(abbreviated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = program()
    stats = torch.cuda.memory_stats()
    stats |= {"allocation.all.allocated": 2_345_678, "allocated_bytes.all.peak": 9 << 30, "num_ooms": 12}
    monkeypatch.setattr(oracle.cuda.memory, "memory_stats", lambda device=None: stats)
    expected = oracle.cuda.memory.memory_summary(device=1, abbreviated=abbreviated)
    nested = torch.cuda.memory_stats_as_nested_dict()
    nested["allocation"]["all"]["allocated"] = 2_345_678
    nested["allocated_bytes"]["all"]["peak"] = 9 << 30
    nested["num_ooms"] = 12
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", lambda device=None: nested)
    assert torch.cuda.memory_summary(1, abbreviated) == expected
    assert kept


def test_pytorchs_own_reader_understands_snapshots(tmp_path: Path) -> None:
    from torch.cuda import _memory_viz

    torch.cuda.memory._record_memory_history()
    kept = program()
    torch.cuda.memory._dump_snapshot(tmp_path / "snapshot.pickle")
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    text = _memory_viz.segsum(snapshot)
    assert "reserved" in text.lower()
    traced = _memory_viz.trace(snapshot)
    assert "alloc" in traced
    page = _memory_viz.trace_plot(snapshot)
    assert "<html" in page.lower() or "<script" in page.lower()
    assert kept


def test_snapshots_have_the_documented_keys() -> None:
    torch.cuda.memory._record_memory_history()
    kept = program()
    snapshot = torch.cuda.memory._snapshot()
    assert set(snapshot) >= {"segments", "device_traces"}
    assert len(snapshot["device_traces"]) == 2
    for segment in snapshot["segments"]:
        assert set(segment) >= {
            "address", "total_size", "stream", "segment_type", "segment_pool_id", "allocated_size", "active_size",
            "blocks", "device",
        }  # fmt: skip
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        for block in segment["blocks"]:
            assert set(block) >= {"size", "requested_size", "address", "state", "frames"}
            if block["state"] == "active_allocated":
                assert [f["name"] for f in block["frames"]][:2] in (
                    ["<listcomp>", "program"],
                    ["program", "test_snapshots_have_the_documented_keys"],
                )
                (life,) = block["history"]
                assert (life["addr"], life["real_size"], life["frames"]) == (
                    block["address"], block["requested_size"], block["frames"],
                )  # fmt: skip
                assert set(block["frames"][0]) == {"filename", "line", "name"}
    states = {block["state"] for segment in snapshot["segments"] for block in segment["blocks"]}
    assert states == {"active_allocated", "active_awaiting_free", "inactive"}
    for entry in snapshot["device_traces"][0]:
        assert set(entry) >= {"action", "size", "stream", "frames", "time_us", "pool_id"}
        assert ("addr" in entry) == (entry["action"] != "oom")
    assert kept
