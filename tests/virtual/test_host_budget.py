"""The host memory that virtual GPUs take: asked for before it is committed, refused as the host's limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flambeau as torch
from flambeau.core.host import host_memory
from flambeau.core.host.host_memory import count_without_page
from flambeau.driver.virtual.memory.arena import Arena
from flambeau.driver.virtual.memory.host_budget import HostBudget, count_uncommitted

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how much the host seems to have; `asked` counts the questions."""

    class Host:
        asked = 0
        size: int | None = GIB

        def available(self) -> int | None:
            self.asked += 1
            return self.size

    made = Host()
    monkeypatch.setattr(host_memory, "available", made.available)
    return made


def ones(where: str) -> Any:
    return torch.empty(30 * MIB, dtype=torch.uint8, device=where).fill_(1)


def test_a_result_that_the_host_cannot_hold_is_refused_at_the_call(host: Any) -> None:
    with torch.virtual(devices=1, profile="a100-40g"):
        x = torch.ones(1, device="cuda")
        before = torch.cuda.memory_allocated()
        with pytest.raises(torch.HostMemoryError) as caught:
            x.repeat(1, 1 << 33)
        text = str(caught.value)
        assert not isinstance(caught.value, torch.cuda.OutOfMemoryError)
        del caught  # its traceback holds the result
        assert "34,359,738,368 more bytes of host memory" in text and "limit of the host" in text
        assert "data=False" in text
        assert "out of memory" not in text.lower()  # which programs take for the GPU's
        assert torch.cuda.memory_allocated() == before
        assert (x + 1).item() == 2  # the device is well
        torch.cuda.synchronize()


def test_without_data_nothing_is_asked(host: Any) -> None:
    with torch.virtual(devices=1, profile="a100-40g", data=False):
        assert torch.ones(1, device="cuda").repeat(1, 1 << 33).shape == (1, 1 << 33)
    assert host.asked == 0


def test_memory_that_is_not_reached_costs_nothing(host: Any) -> None:
    with torch.virtual(devices=1, profile="h100"):
        x = torch.empty(70 * GIB, dtype=torch.uint8, device="cuda")
        x[GIB : GIB + 3] = 7
        assert x[GIB : GIB + 4].tolist()[:3] == [7, 7, 7]
        x[-1] = 3
        assert x[-1] == 3
    assert host.asked == 0


def test_small_programs_do_not_ask(host: Any) -> None:
    host.size = 0
    with torch.virtual(devices=2):
        for _ in range(100):
            assert torch.ones(MIB, device="cuda").sum() == MIB
    assert host.asked == 0


def test_what_accumulates_is_counted(host: Any) -> None:
    """No single tensor is large, and nothing was computed when the last one is refused."""
    with torch.virtual(devices=2, profile="h100"):
        kept: list[Any] = []
        with pytest.raises(torch.HostMemoryError):
            kept.extend(ones(f"cuda:{i % 2}") for i in range(1000))
        assert 20 <= len(kept) <= 34  # of a GiB, less what the host keeps
        held = len(kept)
        del kept[:]
        for i in range(2):
            with torch.cuda.device(i):
                torch.cuda.empty_cache()
        kept = [ones("cuda") for _ in range(held)]


def test_memory_that_is_used_again_is_not_counted_again(host: Any) -> None:
    with torch.virtual(devices=1):
        x = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
        torch.cuda.synchronize()
        host.size = 100 * MIB
        for _ in range(5):
            x.fill_(2)
            del x
            x = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
        assert x.fill_(1)[-1] == 1
        with pytest.raises(torch.HostMemoryError):
            torch.empty(600 * MIB, dtype=torch.uint8, device="cuda").fill_(1)


def test_staged_copies_are_asked_for(host: Any) -> None:
    x = torch.empty(300 * MIB, dtype=torch.uint8)
    with torch.virtual(devices=1):
        y = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
        host.size = 100 * MIB
        with pytest.raises(torch.HostMemoryError, match="'copy_in' needs 314,572,800 more bytes"):
            y.copy_(x)


@pytest.mark.parametrize("written", [True, False])
def test_pinned_memory_is_counted_when_it_is_allocated(host: Any, written: bool) -> None:
    with torch.virtual(devices=1):
        kept: list[Any] = []
        with pytest.raises(torch.HostMemoryError, match="'host_alloc' needs 33,554,432 more bytes"):
            for _ in range(100):
                kept.append(torch.empty(32 * MIB, dtype=torch.uint8, pin_memory=True))
                if written:
                    kept[-1][: 4 * MIB] = 1
                    # as the system says of pages that are committed, which may be huge ones
                    host.size -= 32 * MIB - count_without_page(kept[-1].data_ptr(), 32 * MIB)
        assert 20 <= len(kept) <= 32  # of a GiB, less what the host keeps
        with pytest.raises(torch.HostMemoryError):
            torch.empty(300 * MIB, dtype=torch.uint8, device="cuda").fill_(1)
        held = len(kept)
        del kept[:]
        torch.cuda.synchronize()
        torch.accelerator.empty_host_cache()
        host.size = GIB
        kept = [torch.empty(32 * MIB, dtype=torch.uint8, pin_memory=True) for _ in range(held)]


def test_pinned_memory_without_data_is_not_counted(host: Any) -> None:
    with torch.virtual(devices=1, data=False):
        torch.empty(2 * GIB, dtype=torch.uint8, pin_memory=True)
    assert host.asked == 0


def test_expandable_segments_are_counted(host: Any) -> None:
    with torch.virtual(devices=1):
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        kept: list[Any] = []
        with pytest.raises(torch.HostMemoryError):
            kept.extend(ones("cuda") for _ in range(1000))
        held = len(kept)
        del kept[:]
        torch.cuda.empty_cache()
        kept = [ones("cuda") for _ in range(held)]
        assert held >= 20


def test_hosts_that_do_not_say_have_no_limit(host: Any) -> None:
    host.size = None
    with torch.virtual(devices=1):
        kept = [
            torch.empty(GIB, dtype=torch.uint8, device="cuda").expand(2, GIB)[:, :3].sum() for _ in range(39)
        ]
    assert host.asked <= 1 and len(kept) == 39


def test_pages_that_are_committed_are_told_from_others(host: Any) -> None:
    budget = HostBudget()
    arena = Arena(1, 0, 4 * GIB, 0, False, budget)
    ptr = arena.allocate(100 * MIB)
    arena.reach("x", ptr, 100 * MIB)
    assert count_uncommitted(arena) == 100 * MIB
    arena.bytes[10 * MIB : 30 * MIB] = 1
    assert count_uncommitted(arena) == 80 * MIB
    arena.reach("x", ptr, 10)
    assert count_uncommitted(arena) == 80 * MIB
    arena.release(ptr)
    assert count_uncommitted(arena) == 0 and not arena.granted


def test_what_is_granted_and_not_committed_is_promised(host: Any) -> None:
    budget = HostBudget()
    arena = Arena(1, 0, 40 * GIB, 0, False, budget)
    ptr = arena.allocate(10 * GIB)
    arena.reach("x", ptr, 600 * MIB)
    with pytest.raises(torch.HostMemoryError, match=f"{600 * MIB:,} of that promised before"):
        arena.reach("x", ptr + 600 * MIB, 400 * MIB)
    arena.bytes[: 600 * MIB] = 1  # the host has it now, and says so by having less
    host.size = GIB - 600 * MIB
    with pytest.raises(torch.HostMemoryError, match=" 0 of that promised before"):
        arena.reach("x", ptr + 600 * MIB, GIB)


@pytest.mark.parametrize("seed", range(5))
def test_grants_are_those_of_live_segments(host: Any, seed: int) -> None:
    """What the lease lacks is what the arena has granted, whatever was allocated, reached and freed."""
    import random

    rng = random.Random(seed)
    host.size = None
    budget = HostBudget()
    arena = Arena(1, 0, GIB, 0, False, budget)
    budget.take("x", 0, 1 << 40)  # a lease that never ends
    lease = budget._lease
    live: dict[int, int] = {}
    for _ in range(2000):
        if live and rng.random() < 0.4:
            ptr = rng.choice([*live])
            del live[ptr]
            arena.release(ptr)
        else:
            size = rng.choice((512, 4096, 2 * MIB, 3 * MIB + 512, 20 * MIB, 70 * MIB))
            try:
                live[(ptr := arena.allocate(size))] = size
            except torch.OutOfMemoryError:
                continue
            at = rng.randrange(size)
            n = rng.randrange(size - at) + 1
            arena.reach("x", ptr + at, n)
            low, high = arena.hot
            assert ptr <= low <= ptr + at and ptr + at + n <= high <= ptr + size
        assert lease - budget._lease == len(arena.granted) * arena.chunk
    for ptr in live:
        arena.release(ptr)


def test_a_body_that_finds_no_memory_is_named_as_the_hosts_fault() -> None:
    program = (
        "import resource, sys, flambeau as torch\n"
        "with torch.virtual(devices=1, profile='v100-16g'):\n"
        "    x = torch.ones(3000, 3000, dtype=torch.float16, device='cuda')\n"
        "    x @ x  # loads the kernel\n"
        "    torch.cuda.synchronize()\n"
        "    used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 24), resource.RLIM_INFINITY))\n"
        "    try:\n"
        "        y = x @ x\n"
        "        torch.cuda.synchronize()\n"
        "    except torch.HostMemoryError as error:\n"
        "        print('assert' in str(error), str(error)[:60])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.startswith("False cuda:0: the host had no memory to compute"), done


# -- what the host says ---------------------------------------------------------------------------------------


def system(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


MEMINFO = "MemTotal:       1000 kB\nMemFree:  100 kB\nMemAvailable:   500 kB\n"


def test_the_host_says_how_much_is_available(tmp_path: Path) -> None:
    assert host_memory.available(tmp_path) is None
    assert host_memory.available(system(tmp_path, proc__meminfo=MEMINFO)) == 500 << 10
    assert host_memory.available(system(tmp_path, proc__meminfo="nonsense\n\nMemAvailable:\n")) is None


@pytest.mark.parametrize(
    ("limit", "used", "idle", "left"),
    [
        ("1000", "900", "50", 150),
        ("max", "900", "50", None),
        ("1000", "2000", "0", 0),
        ("nonsense", "1", "1", None),
    ],
)
def test_control_groups_limit_it(tmp_path: Path, limit: str, used: str, idle: str, left: int | None) -> None:
    system(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/a/b\n")
    group = tmp_path / "sys/fs/cgroup/a"
    group.mkdir(parents=True)
    for name, text in (
        ("memory.max", limit),
        ("memory.current", used),
        ("memory.stat", f"anon 3\ninactive_file {idle}\n"),
    ):
        (group / name).write_text(text)
    assert host_memory.available(tmp_path) == (500 << 10 if left is None else left)


def test_control_groups_of_the_first_version_limit_it(tmp_path: Path) -> None:
    system(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="5:cpu:/x\n4:memory:/docker/x\n0::/\n")
    group = tmp_path / "sys/fs/cgroup/memory"  # a container sees its own group as the top
    group.mkdir(parents=True)
    for name, text in (
        ("memory.limit_in_bytes", "1000"),
        ("memory.usage_in_bytes", "400"),
        ("memory.stat", "total_inactive_file 7\n"),
    ):
        (group / name).write_text(text)
    assert host_memory.available(tmp_path) == 607


def test_this_host_says_something_plausible() -> None:
    if not Path("/proc/meminfo").exists():
        pytest.skip("this system has no /proc")
    found = host_memory.available()
    assert found is not None and MIB < found < 1 << 50
