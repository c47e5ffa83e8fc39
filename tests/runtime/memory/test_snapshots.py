"""Dumps of snapshots: their pickles are written by NumPy, and hold what `_snapshot()` returns."""

from __future__ import annotations

import gc
import os
import pickle
import pickletools
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flambeau as torch
from flambeau.runtime.memory.history import History
from flambeau.runtime.memory_reports import traces
from flambeau.runtime.memory_reports.traces import MemoryTrace, Parts

memory = torch.cuda.memory
MIB = 1 << 20

# What MemoryViz.js, the reader of pytorch.org/memory_viz, knows.
VIEWERS = {
    "APPENDS", "BINGET", "BININT", "BININT1", "BININT2", "EMPTY_DICT", "EMPTY_LIST", "FRAME", "LONG1", "LONG_BINGET",
    "MARK", "MEMOIZE", "PROTO", "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE2", "APPEND", "NEWFALSE", "BINPUT",
    "BINUNICODE", "EMPTY_TUPLE", "NEWTRUE", "NONE", "BINFLOAT", "TUPLE", "TUPLE1", "TUPLE3", "LONG_BINPUT", "LIST",
    "DICT", "SETITEM",
}  # fmt: skip


def dumped(path: Path) -> dict[str, Any]:
    memory._dump_snapshot(path / "snapshot.pickle")
    found: dict[str, Any] = pickle.loads((path / "snapshot.pickle").read_bytes())
    return found


def unlooked(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Without the events of its own and earlier looks."""
    seen = [[e for e in trace if e["action"] != "snapshot"] for trace in snapshot["device_traces"]]
    return snapshot | {"device_traces": seen}


def program() -> list[torch.Tensor]:
    """Two devices, streams, a MemPool, a refused request, memory that waits for another stream."""
    side = torch.cuda.Stream()
    kept = [torch.ones(n, device=f"cuda:{n % 2}") for n in (3, 400, 5 * MIB, 3, 3, MIB)]
    del kept[1]
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()), torch.profiler.record_function("pool"):
        kept.append(torch.empty(100, device="cuda"))
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**9)
        kept.append(torch.ones(7, device="cuda"))
    torch.ones(MIB, device="cuda").record_stream(side)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 40, device="cuda")
    return kept


@pytest.mark.parametrize("context", ["all", "alloc", None])
def test_a_dump_holds_the_snapshot(context: str | None, tmp_path: Path) -> None:
    with torch.virtual(devices=3):
        memory._record_memory_history(context=context)
        kept = program()
        direct, found = memory._snapshot(), dumped(tmp_path)
        assert unlooked(found) == unlooked(direct) and kept
    actions = {event["action"] for event in found["device_traces"][0]}
    assert actions == {
        "alloc",
        "free_requested",
        "free_completed",
        "segment_alloc",
        "segment_free",
        "oom",
        "snapshot",
    }
    assert all(
        list(a) == list(b) for a, b in zip(*(d["device_traces"][0] for d in (found, direct)), strict=False)
    )
    assert len(found["device_traces"][2]) == 2  # a device that was looked at, and did nothing


def test_equal_stacks_are_one_list(tmp_path: Path) -> None:
    with torch.virtual(devices=1):
        memory._record_memory_history()
        kept = [torch.ones(3, device="cuda") for _ in range(50)]
        (trace,) = dumped(tmp_path)["device_traces"]
    assert len(kept) == 50
    frames = [event["frames"] for event in trace if event["action"] == "alloc"]
    assert len(frames) == 50 and len({id(one) for one in frames}) == 1
    assert frames[0][0]["filename"] == __file__


def test_pytorchs_viewer_knows_each_command_of_the_pickle(tmp_path: Path) -> None:
    with torch.virtual(devices=2):
        memory._record_memory_history()
        kept = program()
        dumped(tmp_path)
    content = (tmp_path / "snapshot.pickle").read_bytes()
    used = {opcode.name for opcode, _, _ in pickletools.genops(content)}
    assert used <= VIEWERS and kept
    assert content[:1] == pickle.PROTO and 2 <= content[1] <= 4


def test_what_is_left_out_of_a_dump(tmp_path: Path) -> None:
    with torch.virtual(devices=1):
        memory._record_memory_history(skip_actions=["snapshot", "free_requested", "segment_alloc"])
        kept = [torch.ones(3, device="cuda") for _ in range(3)]
        del kept[0]
        assert [e["action"] for e in dumped(tmp_path)["device_traces"][0]] == [
            *["alloc"] * 3,
            "free_completed",
        ]


def test_a_dump_before_cuda_began_is_empty(tmp_path: Path) -> None:
    memory._dump_snapshot(tmp_path / "snapshot.pickle")
    found = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert found == memory._snapshot() and found["segments"] == found["device_traces"] == []


NUMBERS = st.one_of(st.integers(0, 300), st.integers(-(1 << 63), (1 << 63) - 1))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 8), NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.integers(0, 3), st.integers(0, 99)
        ),
        max_size=60,
    ),
    st.integers(0, 400),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_records_are_the_dictionaries_whatever_they_hold(rows: list[tuple[int, ...]], known: int) -> None:
    """Small and large numbers; also where so much was pickled before that names have long numbers."""
    columns = np.array(rows, np.int64).reshape(-1, 7).T
    pools = [(0, n) for n in range(4)]
    frames = [[{"filename": f"{n}.py", "line": n, "name": f"f{n}"}] * (n > 0) for n in range(100)]
    trace = MemoryTrace(*columns, pools, frames)
    parts = Parts()
    pieces = [parts.head, parts.to_pickle([f"text {n}" for n in range(known)]), pickle.POP]
    for _ in range(2):  # two devices
        pieces += [pickle.EMPTY_LIST, *trace.to_pickle(parts)]
    found = pickle.loads(b"".join([*pieces, pickle.TUPLE2, pickle.STOP]))
    expected = trace.dictionaries()
    assert found == (expected, expected)
    assert [list(event) for event in found[0]] == [list(event) for event in expected]


# -- in the middle of other things --------------------------------------------------------------------------------


# The history grows between dumps: their time is quadratic in their number.
_DUMPS = 20 if os.environ.get("FLAMBEAU_TESTS") == "exhaustive" else 5


def test_dumps_while_other_threads_allocate(tmp_path: Path) -> None:
    with torch.virtual(devices=1, races="off"):
        memory._record_memory_history()
        ended = threading.Event()

        def work() -> None:
            while not ended.is_set():
                torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(1 << 12))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(_DUMPS):
                found = dumped(tmp_path)
                assert all(s["total_size"] == sum(b["size"] for b in s["blocks"]) for s in found["segments"])
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        (trace,) = dumped(tmp_path)["device_traces"]
    live: set[int] = set()
    for event in trace:  # none is missing, none comes twice
        if event["action"] == "alloc":
            assert event["addr"] not in live
            live.add(event["addr"])
        elif event["action"] == "free_completed":
            live.remove(event["addr"])
    assert not live and sum(event["action"] == "snapshot" for event in trace) == _DUMPS + 1


@pytest.mark.parametrize(
    ("owner", "name"), [(History, "read"), (traces, "_known_before"), (Parts, "numbers")]
)
def test_a_destructor_may_take_a_snapshot_in_the_middle_of_a_dump(
    owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[dict[str, Any]] = []
    first = True

    class Looker:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            looked.append(memory._snapshot())

    def interrupted(*args: Any) -> Any:
        nonlocal first
        if first:
            first = False
            Looker()
            gc.collect()
        return call(*args)

    call = getattr(owner, name)
    with torch.virtual(devices=1):
        memory._record_memory_history()
        kept = [torch.ones(n, device="cuda") for n in (3, 4, 500)]
        del kept[1]
        monkeypatch.setattr(owner, name, interrupted)
        found = dumped(tmp_path)
        assert len(looked) == 1 and unlooked(looked[0]) == unlooked(found) and kept
        assert unlooked(found) == unlooked(memory._snapshot())


def test_a_destructor_may_take_a_snapshot_when_python_ends() -> None:
    """Then nothing can be imported any more."""
    program = (
        "import flambeau as torch\n"
        "class Looker:\n"
        "    def __del__(self):\n"
        "        print(torch.cuda.memory_snapshot(), len(torch.cuda.memory._snapshot()['segments']))\n"
        "with torch.virtual(devices=1):\n"
        "    kept = torch.ones(3, device='cuda')\n"
        "    looker = Looker()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[] 0\n", "")
