"""torch.cuda's names for memory, on virtual GPUs and without any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import flambeau as torch
from flambeau.cuda import memory

MIB = 1 << 20


@pytest.fixture
def two() -> Iterator[None]:
    with torch.virtual(devices=2):
        yield


def floats(nbytes: int, device: str = "cuda") -> torch.Tensor:
    return torch.empty(nbytes // 4, device=device)


def test_without_a_gpu_figures_are_zero() -> None:
    with torch.virtual(devices=0):
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 0
        assert torch.cuda.memory_reserved() == torch.cuda.max_memory_reserved() == 0
        assert torch.cuda.memory_stats() == {}
        torch.cuda.empty_cache()
        with pytest.raises(RuntimeError):
            torch.cuda.reset_peak_memory_stats()


def test_figures_before_first_use_open_nothing() -> None:
    with torch.virtual(devices=1):
        assert torch.cuda.memory_allocated(0) == 0
        assert not torch.cuda.is_initialized()


@pytest.mark.usefixtures("two")
def test_one_float_takes_512_bytes_of_a_2_mib_segment() -> None:
    x = torch.ones(1, device="cuda")
    assert torch.cuda.memory_allocated() == 512
    assert torch.cuda.memory_reserved() == 2 * MIB
    del x
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_reserved() == 2 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert torch.cuda.max_memory_allocated() == 512
    assert torch.cuda.max_memory_reserved() == 2 * MIB


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("device", [1, "cuda:1", torch.device("cuda:1")])
def test_each_way_to_name_a_device(device: object) -> None:
    x = floats(5 * MIB, "cuda:1")
    assert torch.cuda.memory_allocated() == torch.cuda.memory_allocated("cuda") == 0
    assert torch.cuda.memory_allocated(device) == x.nelement() * 4
    assert torch.cuda.memory_reserved(device) == 20 * MIB
    with torch.cuda.device(1):
        assert torch.cuda.memory_allocated() == torch.cuda.memory_allocated(None) == 5 * MIB
    with pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        torch.cuda.memory_allocated("cpu")


@pytest.mark.usefixtures("two")
def test_peaks_start_again() -> None:
    x = floats(4 * MIB)
    y = floats(2 * MIB)
    del y
    assert torch.cuda.max_memory_allocated() == 6 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 4 * MIB == x.nelement() * 4
    y = floats(MIB)
    assert torch.cuda.max_memory_allocated() == 5 * MIB
    del x, y
    torch.cuda.empty_cache()
    assert torch.cuda.max_memory_reserved() == 22 * MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_reserved() == 0


@pytest.mark.usefixtures("two")
def test_deprecated_names_warn_and_answer() -> None:
    x = floats(MIB)
    for old, new in (("memory_cached", "memory_reserved"), ("max_memory_cached", "max_memory_reserved")):
        with pytest.warns(FutureWarning, match=f"`torch.cuda.{old}` has been renamed to `torch.cuda.{new}`"):
            assert getattr(torch.cuda, old)() == 2 * MIB
    del x
    for name in ("reset_max_memory_allocated", "reset_max_memory_cached"):
        with pytest.warns(
            FutureWarning, match=f"torch.cuda.{name} now calls torch.cuda.reset_peak_memory_stats"
        ):
            getattr(torch.cuda, name)()
    assert torch.cuda.max_memory_allocated() == 0


@pytest.mark.usefixtures("two")
def test_mem_get_info_counts_what_is_reserved() -> None:
    free, total = torch.cuda.mem_get_info()
    x = floats(100 * MIB)
    after, same = torch.cuda.mem_get_info(0)
    assert (free - after, total) == (100 * MIB, same)
    assert torch.cuda.mem_get_info("cuda:1")[0] >= free
    assert total == torch.cuda.get_device_properties(0).total_memory
    del x


@pytest.mark.usefixtures("two")
def test_fraction() -> None:
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    total = torch.cuda.get_device_properties(1).total_memory
    torch.cuda.set_per_process_memory_fraction(0.001, 1)
    assert torch.cuda.get_per_process_memory_fraction("cuda:1") == 0.001
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"CUDA out of memory\. Tried .* allowed; "):
        floats(total // 500, "cuda:1")
    assert torch.cuda.memory_reserved(1) == 0
    floats(total // 500, "cuda:0")
    with pytest.raises(TypeError, match="Invalid type for fraction argument, must be `float`"):
        torch.cuda.set_per_process_memory_fraction(1)
    with pytest.raises(ValueError, match=r"Invalid fraction value: 1\.5\. Allowed range: 0~1"):
        torch.cuda.set_per_process_memory_fraction(1.5)


@pytest.mark.usefixtures("two")
def test_stats_have_every_figure_of_every_pool() -> None:
    kept = [floats(4), floats(3 * MIB)]
    floats(1024)
    stats = torch.cuda.memory_stats()
    for figure in (
        "allocation", "allocated", "allocated_bytes", "requested_bytes", "segment", "reserved_bytes",
        "active", "active_bytes", "inactive_split", "inactive_split_bytes",
    ):  # fmt: skip
        for kind in ("current", "peak", "allocated", "freed"):
            pools = [stats[f"{figure}.{pool}.{kind}"] for pool in ("all", "large_pool", "small_pool")]
            assert pools[0] == pools[1] + pools[2] or kind == "peak"
    assert stats["allocation.all.current"] == stats["allocated.all.current"] == len(kept)
    assert stats["allocation.small_pool.allocated"] == 2
    assert stats["requested_bytes.small_pool.current"] == 4
    assert stats["segment.all.current"] == 2
    assert stats["num_ooms"] == stats["num_alloc_retries"] == 0
    assert stats["num_device_alloc"] == 2
    assert list(stats) == sorted(stats)
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0


@pytest.mark.usefixtures("two")
def test_out_of_memory_leaves_tensors_and_figures() -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(torch.cuda.OutOfMemoryError, match="GPU 0 has a total capacity of"):
        floats(1 << 45)
    assert torch.cuda.memory_allocated() == 512
    assert (x + 1).tolist() == [2.0, 2.0, 2.0]
    assert torch.cuda.memory_stats()["num_ooms"] == 1


def test_memory_is_the_module() -> None:
    assert torch.cuda.memory is memory
    assert all(getattr(torch.cuda, name) is getattr(memory, name) for name in memory.__all__)
