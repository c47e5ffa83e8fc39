"""Private names that CUDA programs and libraries of PyTorch use: aliases of public ones."""

from __future__ import annotations

import pytest

import flambeau as torch
from flambeau.cuda import comm
from flambeau.cuda._utils import _get_device_index


def test_a_stream_becomes_current_by_its_numbers():
    with torch.virtual(devices=2):
        assert not torch._C._cuda_hasPrimaryContext(1)
        side = torch.cuda.Stream(device=1)
        torch._C._cuda_setStream(
            stream_id=side.stream_id, device_index=side.device_index, device_type=side.device_type
        )
        assert torch.cuda.current_device() == torch._C._cuda_getDevice() == 1
        assert torch.cuda.current_stream() == side
        assert torch._C._cuda_getCurrentStream(1) == (side.stream_id, 1, side.device_type)
        assert torch._C._cuda_getDefaultStream(1)[0] == torch.cuda.default_stream(1).stream_id
        assert torch._C._cuda_getCurrentRawStream(1) == side.cuda_stream
        torch._C._cuda_setStream(0, 0, 1)
        assert torch.cuda.current_stream() == torch.cuda.default_stream(0)
        with pytest.raises(RuntimeError, match="device_type=1"):
            torch._C._cuda_setStream(0, 1, 20)
        assert torch._C._cuda_exchangeDevice(1) == 0 and torch._C._cuda_exchangeDevice(-1) == -1
        assert torch.cuda._maybe_exchange_device(0) == 1 and torch.cuda._exchange_device(-1) == -1
        assert torch.cuda.current_device() == 0
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            torch.cuda._exchange_device(2)
        assert torch._C._cuda_hasPrimaryContext(1) and torch._C._cuda_getDeviceCount() == 2
        with pytest.raises(RuntimeError, match="device_index=2"):
            torch._C._cuda_hasPrimaryContext(2)


def test_aliases_are_the_public_functions():
    for private, public in (
        ("init", "init"), ("synchronize", "synchronize"), ("emptyCache", "empty_cache"), ("sleep", "_sleep"),
        ("ipc_collect", "ipc_collect"), ("memoryStats", "memory_stats_as_nested_dict"),
        ("memorySnapshot", "memory_snapshot"), ("resetPeakMemoryStats", "reset_peak_memory_stats"),
        ("resetAccumulatedMemoryStats", "reset_accumulated_memory_stats"),
        ("getAllocatorBackend", "get_allocator_backend"), ("canDeviceAccessPeer", "can_device_access_peer"),
        ("isCurrentStreamCapturing", "is_current_stream_capturing"),
        ("getCurrentBlasHandle", "current_blas_handle"),
        ("getCurrentSolverHandle", "current_solver_handle"), ("isInBadFork", "_is_in_bad_fork"),
        ("getMemoryFraction", "get_per_process_memory_fraction"),
        ("setMemoryFraction", "set_per_process_memory_fraction"),
        ("hostMemoryStats", "host_memory_stats_as_nested_dict"),
        ("resetPeakHostMemoryStats", "reset_peak_host_memory_stats"),
        ("resetAccumulatedHostMemoryStats", "reset_accumulated_host_memory_stats"),
        ("get_sync_debug_mode", "get_sync_debug_mode"), ("set_sync_debug_mode", "set_sync_debug_mode"),
        ("changeCurrentAllocator", "change_current_allocator"),
        ("cudaCachingAllocator_enable", "caching_allocator_enable"),
        ("cudaCachingAllocator_raw_delete", "caching_allocator_delete"),
        ("getStreamFromExternal", "get_stream_from_external"), ("setStream", "_set_stream_by_id"),
        ("exchangeDevice", "_exchange_device"), ("maybeExchangeDevice", "_maybe_exchange_device"),
    ):  # fmt: skip
        assert getattr(torch._C, f"_cuda_{private}") is getattr(torch.cuda, public)
    with pytest.raises(AttributeError, match=r"_cuda_nothing.*Flambeau lacks it"):
        torch._C._cuda_nothing  # noqa: B018


@pytest.mark.parametrize(
    ("library", "room"), [("cublas", torch.backends.cuda.matmul), ("cudnn", torch.backends.cudnn)]
)
def test_tf32_switches_follow_the_public_ones(library, room):
    read, write = (getattr(torch._C, f"_{verb}_{library}_allow_tf32") for verb in ("get", "set"))
    before = room.allow_tf32
    try:
        for value in (True, False):
            write(value)
            assert read() is room.allow_tf32 is value
    finally:
        room.allow_tf32 = before


def test_device_index_is_pytorchs():
    theirs = pytest.importorskip("torch.cuda._utils")._get_device_index
    oracle = pytest.importorskip("torch")
    with torch.virtual(devices=2):
        for text in ("cuda:1", "cpu", 0):
            for root, ask in ((torch, _get_device_index), (oracle, theirs)):
                given = root.device(text) if isinstance(text, str) else text
                assert ask(given, optional=False, allow_cpu=True) == {"cuda:1": 1, "cpu": -1, 0: 0}[text]
        torch.cuda.set_device(1)
        assert _get_device_index(None, optional=True) == torch.cuda._get_device_index("cuda", True) == 1
        for ask in (_get_device_index, theirs):
            with pytest.raises(ValueError, match="cuda"):
                ask("cpu", optional=True)


def test_gathered_tensors_keep_their_memory_format():
    forms = {4: torch.channels_last, 5: torch.channels_last_3d}
    with torch.virtual(devices=2):
        for ndim, form in forms.items():
            full = torch.randn(4, 3, *[2] * (ndim - 2), device="cuda").contiguous(memory_format=form)
            for dim in (0, 1, 2):
                parts = comm.scatter(full, (0, 1), dim=dim)
                for place in (0, "cpu"):
                    found = comm.gather(parts, dim, place)
                    assert found.is_contiguous(memory_format=form) and found.cpu().equal(full.cpu())
                plain = comm.gather((parts[0], parts[1].contiguous()), dim, 0)
                assert plain.equal(full)
                assert dim == 1 or plain.is_contiguous()  # one channel alone reads as either format


def test_set_refuses_memory_of_another_device():
    oracle = pytest.importorskip("torch")
    told = []
    for root in (torch, oracle):
        t, other = root.ones(2), root.ones(3, device="meta")
        for source in ((other,), (other.untyped_storage(), 0, (2,), (1,)), (other.untyped_storage(),)):
            with pytest.raises(RuntimeError, match="the devices must match") as error:
                t.set_(*source)
            told.append(str(error.value))
        assert t.tolist() == [1, 1] and t._version == 0
    assert told[:3] == told[3:]
    with torch.virtual(devices=2):
        a, b = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
        with pytest.raises(
            RuntimeError, match='on device "cuda:0" to a storage on different device "cuda:1"'
        ):
            a.set_(b)
        assert a.set_().numel() == 0


def test_a_lazy_call_waits_for_cuda():
    order = []
    with torch.virtual(devices=1):
        assert torch.cuda._is_compiled() and not torch.cuda._initialized
        for number in range(2):
            torch.cuda._lazy_call(lambda n=number: order.append((n, torch.cuda.is_initialized())), seed=True)
        assert order == []
        torch.cuda._lazy_init()
        assert order == [(0, True), (1, True)] and torch.cuda._initialized
        torch.cuda._lazy_call(lambda: order.append("now"))
        assert order[-1] == "now"
        with torch.virtual(devices=1):
            torch.ones(1, device="cuda")
        assert len(order) == 3
        with pytest.raises(ZeroDivisionError):
            torch.cuda._lazy_call(lambda: 1 / 0)


def test_a_lazy_call_that_fails_names_its_line():
    ran = []
    with torch.virtual(devices=1):
        torch.cuda._lazy_call(lambda: 1 / 0)
        torch.cuda._lazy_call(lambda: ran.append(1))
        with pytest.raises(
            torch.cuda.DeferredCudaCallError, match=r"initialization with error: division(.|\n)*test_private"
        ):
            torch.ones(1, device="cuda")
        assert ran == [1] and torch.ones(1, device="cuda").item() == 1


def test_offsets_are_those_of_the_default_generators():
    with torch.virtual(devices=2):
        generator = torch.cuda._get_generator(torch.device("cuda", 1))
        assert generator is torch.cuda.default_generators[1]
        torch.cuda._set_rng_state_offset(12, "cuda:1")
        assert torch.cuda._get_rng_state_offset(1) == generator.get_offset() == 12
        assert torch.cuda._get_rng_state_offset() == 0
        assert torch.cuda._get_device(1) == torch.cuda._get_device("cuda:1") == torch.device("cuda:1")


def test_numbers_of_the_library_are_the_public_ones():
    with torch.virtual(devices=1, profile="h100"):
        major, minor = torch.version.cuda.split(".")
        assert torch._C._cuda_getCompiledVersion() == int(major) * 1000 + int(minor) * 10
        assert torch._C._cuda_getArchFlags() == "sm_90"
        assert isinstance(torch.cuda.Stream(), torch._C._CudaStreamBase)
        assert isinstance(torch.cuda.Event(), torch._C._CudaEventBase)
        assert isinstance(torch.cuda.get_device_properties(0), torch.cuda._CudaDeviceProperties)
        assert not torch._C._cuda_isHistoryEnabled()
        torch._C._cuda_record_memory_history("all")
        assert torch._C._cuda_isHistoryEnabled()
        torch._C._cuda_record_memory_history(None)
        assert not torch._C._cuda_isHistoryEnabled()
        before = torch.cuda.memory_allocated()
        address = torch._C._cuda_cudaCachingAllocator_raw_alloc(1000, torch.cuda.current_stream().cuda_stream)
        assert torch.cuda.memory_allocated() == before + 1024
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
        torch._C._cuda_clearCublasWorkspaces()
        assert torch.cuda.memory_allocated() == before
        assert torch._C._cuda_cudaCachingAllocator_is_enabled()
        with torch.cuda.caching_allocator_disabled():
            assert not torch._C._cuda_cudaCachingAllocator_is_enabled()
        torch._C._cuda_setMemoryFraction(0.5, 0)
        assert torch._C._cuda_getMemoryFraction(0) == 0.5


def test_registered_memory_is_pinned():
    with torch.virtual(devices=2, races="warn") as machine:
        x, runtime = torch.arange(1 << 16, dtype=torch.float32), torch.cuda.cudart()
        assert not x.is_pinned()
        assert runtime.cudaHostRegister(x.data_ptr(), x.nbytes, 0) == runtime.cudaError.success == 0
        assert x.is_pinned() and x[5:].is_pinned() and not torch.ones(3).is_pinned()
        with pytest.raises(RuntimeError, match="already mapped"):
            runtime.cudaHostRegister(x.data_ptr() + 64, 64, 0)
        with pytest.raises(RuntimeError, match="flags 0 to 3"):
            runtime.cudaHostRegister(x.data_ptr(), x.nbytes, 8)
        copy = x.to("cuda", non_blocking=True)
        assert not torch.cuda.current_stream().query(), "the copy is asynchronous"
        x.zero_()  # which is a race with that copy
        assert runtime.cudaHostUnregister(x.data_ptr()) == 0
        assert not x.is_pinned()
        x.to("cuda", non_blocking=True)
        x.fill_(1)  # a copy of pageable memory is over when the call returns
        with pytest.raises(RuntimeError, match="was registered"):
            runtime.cudaHostUnregister(x.data_ptr())
        del copy
        torch.cuda.synchronize()
        (race,) = machine.certificate().races
        assert race.first.operator.startswith("copy") and race.second.operator == "fill"
