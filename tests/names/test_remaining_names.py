"""Names of torch.cuda that belong to no group of the specification: sensors, modes of waiting, storages, the old profiler."""

from __future__ import annotations

import array
import ctypes
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch as oracle

import flambeau as torch
from flambeau.driver import driver_registry
from flambeau.driver.cuda.libraries import nvml
from flambeau.observe.tracing.range_recorder import RangeRecorder
from flambeau.runtime.hooks import annotations


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with torch.virtual(devices=2):
        yield
    torch.cuda.set_sync_debug_mode(0)


WAITING = {
    "item": lambda x, pinned, stream: x[0].item(),
    "tolist": lambda x, pinned, stream: x.tolist(),
    "cpu": lambda x, pinned, stream: x.cpu(),
    "cuda": lambda x, pinned, stream: pinned.cuda(),
    "copy_": lambda x, pinned, stream: pinned.copy_(x),
    "nonzero": lambda x, pinned, stream: x.nonzero(),
    "bool": lambda x, pinned, stream: bool(x.any()),
    "stream": lambda x, pinned, stream: stream.synchronize(),
    "print": lambda x, pinned, stream: str(x),
    "mask": lambda x, pinned, stream: x[x > 0],
    "unique": lambda x, pinned, stream: x.unique(),
    "tensor": lambda x, pinned, stream: torch.tensor([1.0], device="cuda"),
}
FREE = {
    "sum": lambda x, pinned, stream: x.sum(),
    "non_blocking": lambda x, pinned, stream: x.copy_(pinned, non_blocking=True),
    "peer": lambda x, pinned, stream: x.to("cuda:1"),
    "device": lambda x, pinned, stream: torch.cuda.synchronize(),
    "event": lambda x, pinned, stream: stream.record_event().synchronize(),
    "on the CPU": lambda x, pinned, stream: pinned.clone().tolist(),
}


@pytest.mark.parametrize("name", [*WAITING, *FREE])
def test_sync_debug_mode(name: str) -> None:
    x, pinned = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory()
    run = (WAITING | FREE)[name]
    stream = torch.cuda.current_stream()
    run(x, pinned, stream)
    pinned.zero_()
    torch.cuda.set_sync_debug_mode("error")
    assert torch.cuda.get_sync_debug_mode() == 2
    if name in FREE:
        run(x, pinned, stream)
        return
    with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
        run(x, pinned, stream)
    torch.cuda.set_sync_debug_mode("default")
    assert pinned.tolist() == [0] * 4, "a call that raises changed nothing"
    torch.cuda.set_sync_debug_mode(1)
    with pytest.warns(UserWarning, match="called a synchronizing CUDA operation") as told:
        run(x, pinned, stream)
    assert {w.filename for w in told} == {__file__}, "the program's line, not one of Flambeau's"


def test_modes_that_are_none() -> None:
    for bad in ("loud", 3, -1, None):
        with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
            torch.cuda.set_sync_debug_mode(bad)
    assert torch.cuda.get_sync_debug_mode() == 0


def test_virtual_gpus_have_a_clock_and_no_sensors() -> None:
    assert torch.cuda.clock_rate() == torch.cuda.clock_rate("cuda:1") == 1410
    for name in ("utilization", "memory_usage", "temperature", "power_draw"):
        with pytest.raises(torch.NotSupportedError, match=f"torch.cuda.{name}: virtual GPUs have no sensors"):
            getattr(torch.cuda, name)()
    for name in ("blas", "solver"):  # A32
        with pytest.raises(torch.NotSupportedError, match=f"virtual GPUs have no handle of cu{name}"):
            getattr(torch.cuda, f"current_{name}_handle")()
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.temperature(7)


def fake_nvml(opened: list[int]) -> Any:
    """NVML as its header has it, of one device."""

    def utilization(device: Any, rates: Any) -> int:
        rates._obj.gpu, rates._obj.memory = 37, 12
        return 0

    def says(found: int, which: int | None = None) -> Any:
        def call(device: Any, *arguments: Any) -> int:
            assert arguments[:-1] == (() if which is None else (which,))
            arguments[-1]._obj.value = found
            return 0

        return call

    return types.SimpleNamespace(
        nvmlInit_v2=lambda: opened.append(1) or 0,
        nvmlShutdown=lambda: opened.pop() and 0,
        nvmlDeviceGetHandleByUUID=lambda uuid, handle: 0 if uuid == b"GPU-abc" else 6,
        nvmlDeviceGetUtilizationRates=utilization,
        nvmlDeviceGetTemperature=says(55, 0),
        nvmlDeviceGetPowerUsage=says(250_000),
        nvmlDeviceGetClockInfo=says(1980, 1),
    )


def test_sensors_are_nvml_s(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    fake = fake_nvml(opened)
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: fake)
    names = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")
    assert [driver_registry.sensor(name, "abc") for name in names] == [37, 12, 55, 250_000, 1980]
    with pytest.raises(torch.DriverError, match="nvmlDeviceGetHandleByUUID failed with NVML error 6"):
        driver_registry.sensor("temperature", "GPU-other")
    assert opened == []


def test_without_nvml_sensors_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError("libnvidia-ml.so.1: cannot open")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(torch.NotSupportedError, match="NVML cannot be loaded"):
        driver_registry.sensor("temperature", "abc")


def test_capabilities() -> None:
    assert torch.cuda.is_tf32_supported() and torch.cuda.is_bf16_supported(including_emulation=False)
    assert torch.cuda.get_arch_list() == ["sm_80"]
    assert torch.cuda.get_gencode_flags() == "-gencode compute=compute_80,code=sm_80"
    with torch.virtual(devices=1, profile="v100-16g"):
        assert not torch.cuda.is_tf32_supported()
        assert torch.cuda.is_bf16_supported() and not torch.cuda.is_bf16_supported(including_emulation=False)
        assert torch.cuda.get_arch_list() == ["sm_70"]
    with torch.virtual(devices=0):
        assert torch.cuda.get_arch_list() == [] and torch.cuda.get_gencode_flags() == ""
        assert not torch.cuda.is_tf32_supported() and not torch.cuda.is_bf16_supported()


@pytest.mark.parametrize("room", [torch, torch.cuda], ids=["cpu", "cuda"])
@pytest.mark.parametrize(
    "name", ["Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"]
)
def test_old_storage_types(room: Any, name: str) -> None:
    kind = getattr(room, f"{name}Storage")
    values = kind([1, 0, 1])
    assert isinstance(values, kind) and isinstance(values, torch.TypedStorage)
    assert values.tolist() == [1, 0, 1] and values.is_cuda == (room is torch.cuda)
    assert len(kind(5)) == 5 and len(kind()) == 0
    assert values.dtype is kind.dtype
    other = torch.DoubleStorage if name != "Double" else torch.FloatStorage
    assert not isinstance(values, other)
    tensor = getattr(room, f"{name}Tensor")(3)
    assert isinstance(tensor, getattr(room, f"{name}Tensor")) and isinstance(tensor.storage(), kind)
    with pytest.raises(RuntimeError, match="Too many positional arguments"):
        kind(1, 2)


def test_the_tools_range_is_marked_in_the_trace() -> None:
    ranges = RangeRecorder(lambda: 0)
    annotations.subscribe(ranges)
    with pytest.raises(ZeroDivisionError), torch.cuda.profiler.profile():
        raise ZeroDivisionError
    annotations.unsubscribe(ranges)
    assert [r.text for r in ranges.found] == ["cudaProfilerStart", "cudaProfilerStop"]


def test_the_tools_range_on_real_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    driver = types.ModuleType("cuda.bindings.driver")
    driver.cuProfilerStart = lambda: (calls.append("start") or 0,)  # type: ignore[attr-defined]
    driver.cuProfilerStop = lambda: (calls.append("stop") or 5,)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    driver_registry.tools_range(True)
    with pytest.raises(torch.DriverError, match="cuProfilerStop failed with CUDA error 5"):
        driver_registry.tools_range(False)
    assert calls == ["start", "stop"]


def test_cudart() -> None:
    runtime = torch.cuda.cudart()
    assert runtime.cudaMemGetInfo(1) == torch.cuda.mem_get_info(1)
    assert runtime.cudaProfilerStart() == runtime.cudaError.success == 0
    assert runtime.cudaGetErrorString(runtime.cudaProfilerStop()) == "no error"
    assert not hasattr(runtime, "cudaMalloc")
    assert torch.cuda.cudart() is runtime


def test_streams_of_the_runtime_library() -> None:
    runtime, native = torch.cuda.cudart(), ctypes.c_uint64()
    with torch.cuda.device(1):
        assert runtime.cudaStreamCreate(ctypes.addressof(native)) == 0 and native.value
        stream = torch.cuda.ExternalStream(native.value)
        assert stream.device_index == 1 and stream.cuda_stream == native.value
        with torch.cuda.stream(stream):
            assert torch.ones(3, device="cuda").sum().item() == 3
        stream.synchronize()
        assert runtime.cudaStreamDestroy(native.value) == 0
        with pytest.raises(RuntimeError, match="has no stream"):
            runtime.cudaStreamDestroy(native.value)


def test_error_codes_of_the_runtime_library() -> None:
    torch.cuda.check_error(torch.cuda.cudaStatus.SUCCESS)
    with pytest.raises(torch.cuda.CudaError, match=r"^out of memory \(2\)$") as caught:
        torch.cuda.check_error(2)
    assert isinstance(caught.value, RuntimeError)
    assert torch.cuda.cudaStatus.ERROR_NOT_READY == 34
    assert torch.cuda.cudart().cudaGetErrorString(12345) == "unrecognized error code"


def test_programs_may_wait_for_errors_that_pytorch_raises() -> None:
    ours, theirs = torch.cuda.DeferredCudaCallError, oracle.cuda.DeferredCudaCallError
    assert ours.__bases__ == theirs.__bases__ and ours.__name__ == theirs.__name__


def test_what_the_build_has() -> None:
    assert torch.cuda.has_half is True and torch.cuda.has_magma is False
    assert not torch.cuda.amp.amp_definitely_not_available()
    with torch.virtual(devices=0):
        assert torch.cuda.amp.amp_definitely_not_available()


def test_caching_can_be_turned_off() -> None:
    torch.cuda.memory.caching_allocator_enable(False)
    x = torch.ones(1 << 10, device="cuda")
    assert torch.cuda.memory_reserved() >= x.nbytes
    del x
    assert torch.cuda.memory_reserved() == 0
    torch.cuda.memory.caching_allocator_enable()
    torch.ones(1 << 10, device="cuda")
    assert torch.cuda.memory_allocated() == 0 and torch.cuda.memory_reserved() > 0


def test_nested_figures_are_the_flat_ones() -> None:
    kept = torch.ones(1 << 10).pin_memory(), torch.ones(3, device="cuda")
    for nested, flat in (
        (torch.cuda.memory_stats_as_nested_dict(), torch.cuda.memory_stats()),
        (torch.cuda.host_memory_stats_as_nested_dict(), torch.cuda.host_memory_stats()),
    ):
        assert nested["allocated_bytes"] and flat
        for key, value in flat.items():
            found: Any = nested
            for part in key.split("."):
                found = found[part]
            assert found == value
    assert all(t.nbytes for t in kept)
    torch.cuda.reset_accumulated_host_memory_stats()
    assert torch.cuda.host_memory_stats()["allocations.allocated"] == 0
    torch.cuda.reset_peak_host_memory_stats()
    del kept


def test_what_graphs_and_events_lack_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"torch.cuda.Event\(external=True\) is not supported"):
        torch.cuda.Event(external=True)
    assert torch.cuda.Event(external=False).device is None
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    for name in ("get_graph_data", "no_such_name"):
        with pytest.raises(
            AttributeError, match=f"'CUDAGraph' object has no attribute '{name}': Flambeau lacks it"
        ):
            getattr(graph, name)
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        _ = torch.cuda.graph(graph).default_capture_stream


@pytest.mark.parametrize("room", ["cpu", "cuda"])
def test_old_tensor_types_refuse_what_is_not_theirs(room: str) -> None:
    """As torch.FloatTensor does in PyTorch: no other dtype, no other kind of device."""
    ours, other = (torch, "cuda") if room == "cpu" else (torch.cuda, "cpu")
    x = torch.ones(2, device=room)
    assert ours.FloatTensor(x).data_ptr() == x.data_ptr() and ours.FloatTensor.is_cuda is (room == "cuda")
    for wrong in (x.double(), x.to(other)):
        with pytest.raises(TypeError, match=rf"expected torch\..*FloatTensor \(got {wrong.type()}\)"):
            ours.FloatTensor(wrong)
    with pytest.raises(
        RuntimeError,
        match=f"legacy constructor expects device type: {room} but device type: {other} was passed",
    ):
        ours.FloatTensor([1.0], device=other)


def test_old_tensor_types_take_a_device_of_their_kind() -> None:
    assert torch.cuda.FloatTensor([1.0], device="cuda:1").device == torch.device("cuda:1")
    with torch.cuda.device(1):
        assert torch.cuda.LongTensor(3).device == torch.device("cuda:1")


@pytest.mark.parametrize("data", [range(3), range(0), array.array("q", [1, 2])], ids=repr)
def test_old_tensor_types_take_any_sequence(data: Any) -> None:
    for name in ("LongTensor", "FloatTensor", "Tensor"):
        assert getattr(torch, name)(data).tolist() == getattr(oracle, name)(data).tolist()
