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
        assert torch._C._cuda_exchangeDevice(1) == 0 and torch._C._cuda_exchangeDevice(-1) == 1
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
