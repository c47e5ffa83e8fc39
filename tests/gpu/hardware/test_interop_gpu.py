"""Memory and streams shared with PyTorch and CuPy on a real GPU, both ways, without copies."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from gpu_kit import needs_gpu

import flambeau
from flambeau.core.dtype import bfloat16, bool_, complex64, float16, float32, float64, int8, int64, uint8

pytestmark = needs_gpu

KINDS = (bool_, uint8, int8, int64, float16, float32, float64, complex64)


class _Others:
    """Libraries that may be on the machine."""

    @property
    def torch(self) -> Any:
        module = pytest.importorskip("torch")
        if not module.cuda.is_available():
            pytest.skip("this PyTorch has no CUDA")
        return module

    @property
    def cupy(self) -> Any:
        return pytest.importorskip("cupy")


others = _Others()


def test_a_tensor_says_where_it_lies() -> None:
    x = flambeau.ones(3, device="cuda")
    assert x.__dlpack_device__() == (2, 0)
    about = x.__cuda_array_interface__
    assert about["version"] == 3 and about["data"] == (x.data_ptr(), False) and about["typestr"] == "<f4"
    assert about["shape"] == (3,) and about["strides"] is None and about["stream"] == 1
    assert flambeau.ones(3, 4, device="cuda").t().__cuda_array_interface__["strides"] == (4, 16)
    with flambeau.cuda.stream(flambeau.cuda.Stream()) as _:
        stream = flambeau.cuda.current_stream().cuda_stream
        assert x.__cuda_array_interface__["stream"] == stream


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_to_pytorch_and_back(kind: Any) -> None:
    torch = others.torch
    x = flambeau.arange(12, device="cuda").to(kind).view(3, 4).t()
    y = torch.from_dlpack(x)
    assert (
        y.data_ptr() == x.data_ptr() and y.is_cuda and tuple(y.shape) == (4, 3) and y.stride() == x.stride()
    )
    y.fill_(1)
    torch.cuda.synchronize()
    assert x.tolist() == flambeau.ones(4, 3, dtype=kind).tolist()
    z = flambeau.from_dlpack(y)
    assert (
        z.data_ptr() == x.data_ptr() and z.dtype is kind and z.device == x.device and z.stride() == x.stride()
    )
    made = torch.ones(5, device="cuda", dtype=getattr(torch, kind.name))
    assert flambeau.from_dlpack(made).tolist() == made.tolist()
    assert flambeau.from_dlpack(made).data_ptr() == made.data_ptr()


def test_bfloat16_to_pytorch() -> None:
    torch = others.torch
    x = flambeau.ones(3, device="cuda", dtype=bfloat16)
    y = torch.from_dlpack(x)
    assert y.dtype is torch.bfloat16 and y.data_ptr() == x.data_ptr() and y.tolist() == [1.0] * 3
    assert flambeau.from_dlpack(y).dtype is bfloat16


def test_views_of_a_storage_keep_their_place() -> None:
    torch = others.torch
    x = flambeau.arange(10, device="cuda")[3:7]
    y = torch.from_dlpack(x)
    assert y.data_ptr() == x.data_ptr() and y.tolist() == [3, 4, 5, 6]
    assert flambeau.from_dlpack(torch.arange(10, device="cuda")[2:]).tolist() == list(range(2, 10))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_to_cupy_and_back(kind: Any) -> None:
    cupy = others.cupy
    x = flambeau.arange(12, device="cuda").to(kind).view(3, 4).t()
    for share in (cupy.from_dlpack, cupy.asarray):  # the second one by __cuda_array_interface__
        y = share(x)
        assert y.data.ptr == x.data_ptr() and y.shape == (4, 3) and y.dtype == kind.numpy
        assert y.strides == tuple(s * kind.itemsize for s in x.stride())
    made = cupy.ones((2, 3), kind.numpy)
    for share in (flambeau.from_dlpack, flambeau.as_tensor, flambeau.asarray):
        z = share(made)
        assert z.data_ptr() == made.data.ptr and z.dtype is kind and z.tolist() == cupy.asnumpy(made).tolist()
    made[...] = 0
    cupy.cuda.get_current_stream().synchronize()
    assert not z.any().item()


class Array:
    """Memory of CuPy's without DLPack: what an array of Numba's is to us."""

    def __init__(self, array: Any, stream: Any = None) -> None:
        self._array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "version": 3, "stream": stream}


def test_an_interface_without_dlpack() -> None:
    cupy = others.cupy
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        made = cupy.arange(10, dtype="f4")[::2]
    x = flambeau.as_tensor(Array(made, stream.ptr), device="cuda")
    assert x.data_ptr() == made.data.ptr and x.tolist() == [0, 2, 4, 6, 8] and x.stride() == (2,)
    del made
    gc.collect()
    assert x.tolist() == [0, 2, 4, 6, 8]


def test_the_consumers_stream_waits_for_the_producer() -> None:
    """A slow producer on a stream of ours, a consumer on one of theirs, and nobody waits on the host."""
    torch = others.torch
    ours, theirs = flambeau.cuda.Stream(), torch.cuda.Stream()
    x = flambeau.zeros(1 << 20, device="cuda")
    flambeau.cuda.synchronize()
    with flambeau.cuda.stream(ours):
        flambeau.cuda._sleep(200_000_000)
        x.fill_(3)
        capsule = x.__dlpack__(stream=theirs.cuda_stream, max_version=(1, 0))
    assert not ours.query()
    with torch.cuda.stream(theirs):
        total = torch.from_dlpack(capsule).sum()
    theirs.synchronize()
    assert total.item() == 3 << 20


def test_the_producers_stream_is_waited_for() -> None:
    torch = others.torch
    ours, theirs = flambeau.cuda.Stream(), torch.cuda.Stream()
    y = torch.zeros(1 << 20, device="cuda")
    flambeau.from_dlpack(y).sum()  # compiled: else the sleep below is over first
    torch.cuda.synchronize()
    with torch.cuda.stream(theirs), flambeau.cuda.stream(ours):
        torch.cuda._sleep(200_000_000)
        y.fill_(3)
        x = flambeau.from_dlpack(y)
        total = x.sum()
    assert not ours.query()
    ours.synchronize()  # the default stream, where it is read, waits for no other
    assert total.item() == 3 << 20


def test_streams_of_other_libraries() -> None:
    torch = others.torch
    flambeau.ones(1000, device="cuda") + 1  # compiled: else the sleeps below are over first
    torch.cuda._sleep(1)
    theirs = torch.cuda.Stream()
    for stream in (
        flambeau.cuda.ExternalStream(theirs.cuda_stream),
        flambeau.cuda.get_stream_from_external(theirs.cuda_stream, "cuda:0"),
    ):
        assert stream.cuda_stream == theirs.cuda_stream and stream != flambeau.cuda.default_stream()
        with flambeau.cuda.stream(stream):
            flambeau.cuda._sleep(100_000_000)
            x = flambeau.ones(1000, device="cuda") + 1
        assert not theirs.query() and not stream.query()
        theirs.synchronize()
        assert stream.query() and x.sum().item() == 2000
    mine = flambeau.cuda.Stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(mine.cuda_stream)):
        torch.cuda._sleep(100_000_000)
    assert not mine.query()
    mine.synchronize()
    assert mine.query()


def test_refusals() -> None:
    x = flambeau.ones(3, device="cuda")
    with pytest.raises(BufferError, match="per-thread default stream is not supported"):
        x.__dlpack__(stream=2)
    with pytest.raises(BufferError, match="unsupported stream on CUDA: 0"):
        x.__dlpack__(stream=0)
    with pytest.raises(TypeError, match="stream must be"):
        x.__dlpack__(stream="1")
    assert x.__dlpack__(stream=-1) is not None and x.__dlpack__(stream=None) is not None


def test_copies_to_numpy_alone() -> None:
    x = flambeau.arange(3, device="cuda")
    assert np.from_dlpack(x, device="cpu").tolist() == [0, 1, 2]
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        np.asarray(x)


def test_an_exported_tensor_keeps_its_memory() -> None:
    torch = others.torch
    gc.collect()  # of what tests before held
    before = flambeau.cuda.memory_allocated()
    x = flambeau.full((1 << 20,), 7.0, device="cuda")
    y = torch.from_dlpack(x)
    del x
    gc.collect()
    flambeau.zeros(1 << 20, device="cuda")
    assert (y == 7).all().item() and flambeau.cuda.memory_allocated() > before
    del y
    gc.collect()
    assert flambeau.cuda.memory_allocated() == before
