"""Memory shared with NumPy, DLPack and buffers: both see each change, and it lives as long as either side."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import flambeau as torch

SHARED = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
          torch.uint64, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128]  # fmt: skip


@pytest.mark.parametrize("kind", SHARED, ids=lambda d: d.name)
def test_numpy_round_trip_shares_memory(kind: Any) -> None:
    x = torch.zeros(2, 3, dtype=kind)
    a = x.numpy()
    a[1, 2] = 1
    assert x.tolist()[1][2] == 1 and a.dtype == kind.numpy and a.shape == (2, 3)
    y = torch.from_numpy(a)
    y.fill_(0)
    assert not a.any() and y.data_ptr() == x.data_ptr() and y.dtype is kind


def test_numpy_keeps_strides() -> None:
    x = torch.arange(12).view(3, 4)[:, ::2].t()
    assert x.numpy().strides == (16, 32) and np.array_equal(x.numpy(), np.arange(12).reshape(3, 4)[:, ::2].T)
    a = np.arange(12).reshape(3, 4)[::2, 1:]
    assert torch.from_numpy(a).stride() == (8, 1) and torch.from_numpy(a).tolist() == a.tolist()


def test_an_array_keeps_the_tensors_memory() -> None:
    x = torch.full((1000,), 7)
    storage = weakref.ref(x.memory)
    a = x.numpy()[5:]
    del x
    gc.collect()
    assert storage() is not None and (a == 7).all()
    del a
    assert storage() is None


class Array(np.ndarray[Any, Any]):
    """An array that a weak reference can watch die."""


def test_a_tensor_keeps_the_arrays_memory() -> None:
    for share in (torch.from_numpy, torch.as_tensor, torch.from_dlpack):
        a = np.full(1000, 7).view(Array)
        dead = weakref.ref(a)
        x = share(a)[5:]
        del a
        gc.collect()
        assert dead() is not None or x.tolist() == [7] * 995
        assert x.tolist() == [7] * 995
        del x
        gc.collect()
        assert dead() is None


def test_dlpack_both_ways() -> None:
    for kind in SHARED:
        x = torch.zeros(2, 3, dtype=kind).t()
        a = np.from_dlpack(x)
        x.fill_(1)
        assert (
            (a == 1).all() and a.shape == (3, 2) and a.strides == tuple(s * kind.itemsize for s in x.stride())
        )
        y = torch.from_dlpack(np.ones((2, 3), kind.numpy))
        assert y.dtype is kind and y.tolist() == torch.ones(2, 3, dtype=kind).tolist()
        z = torch.from_dlpack(x)
        assert z.data_ptr() == x.data_ptr() and z.stride() == x.stride()


def test_dlpack_carries_what_numpy_lacks() -> None:
    for kind in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32):
        x = torch.ones(3).to(kind)
        y = torch.from_dlpack(x)
        assert y.dtype is kind and y.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_dlpack_lifetimes(version: Any) -> None:
    x = torch.ones(100)
    storage = weakref.ref(x.memory)
    capsule = x.__dlpack__(max_version=version)
    del x
    gc.collect()
    assert storage() is not None
    y = torch.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="can be consumed only once"):
        torch.from_dlpack(capsule)
    del capsule
    assert y.tolist() == [1.0] * 100 and storage() is not None
    del y
    assert storage() is None
    x = torch.ones(100)
    storage = weakref.ref(x.memory)
    capsule = x.__dlpack__(max_version=version)
    del x, capsule  # never consumed: given back at the next call
    torch.zeros(1).__dlpack__()
    assert storage() is None


def test_dlpack_copies_and_devices() -> None:
    x = torch.ones(2)
    assert x.__dlpack_device__() == (1, 0)
    assert torch.from_dlpack(x, copy=True).data_ptr() != x.data_ptr()
    with pytest.raises(BufferError):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        x.__dlpack__(stream=1)


def test_virtual_tensors_are_exchanged_within_flambeau_only() -> None:
    with torch.virtual(devices=2):
        x = torch.arange(3, device="cuda:1")
        assert x.__dlpack_device__() == (12, 1)
        y = torch.from_dlpack(x)
        assert y.device == x.device and y.data_ptr() == x.data_ptr() and y.tolist() == [0, 1, 2]
        with pytest.raises((BufferError, RuntimeError)):
            np.from_dlpack(x)
        assert np.from_dlpack(x, device="cpu").tolist() == [0, 1, 2]
        with pytest.raises(AttributeError, match="simulated"):
            x.__cuda_array_interface__  # noqa: B018
        assert not hasattr(x, "__cuda_array_interface__")
        with pytest.raises(
            TypeError, match=r"can't convert cuda:1 device type tensor to numpy. Use Tensor.cpu\(\)"
        ):
            x.numpy()
        with pytest.raises(TypeError, match="can't convert cuda:1"):
            np.asarray(x)
        assert x.numpy(force=True).tolist() == [0, 1, 2]
        assert torch.ones(1).pin_memory().__dlpack_device__() == (3, 0)
        before = torch.cuda.memory_allocated(1)
        del y
        assert torch.cuda.memory_allocated(1) == before
        del x
        torch.zeros(1).__dlpack__()  # gives back what NumPy did not consume
        assert torch.cuda.memory_allocated(1) == 0


def test_what_numpy_cannot_hold_is_refused() -> None:
    for kind, name in (
        (torch.bfloat16, "BFloat16"),
        (torch.float8_e5m2, "Float8_e5m2"),
        (torch.complex32, "ComplexHalf"),
    ):
        with pytest.raises(TypeError, match=f"Got unsupported ScalarType {name}"):
            torch.ones(2).to(kind).numpy()


def test_arrays_that_are_refused() -> None:
    with pytest.raises(TypeError, match=r"expected np.ndarray \(got int\)"):
        torch.from_numpy(1)
    with pytest.raises(ValueError, match="At least one stride in the given numpy array is negative"):
        torch.from_numpy(np.arange(3)[::-1])
    with pytest.raises(ValueError, match="byte order different from the native"):
        torch.from_numpy(np.array([1], ">i4"))
    with pytest.raises(TypeError, match=r"can't convert np.ndarray of type numpy.str_"):
        torch.from_numpy(np.array(["a"]))
    with pytest.raises(ValueError, match="strides not a multiple of the element byte size"):
        torch.from_numpy(np.zeros(2, [("a", "i1"), ("b", "i4")])["b"])
    with pytest.warns(UserWarning, match="The given NumPy array is not writable"):
        torch.from_numpy(np.broadcast_to(np.arange(3), (2, 3)))
    with pytest.raises(RuntimeError, match="Trying to resize storage that is not resizable"):
        torch.from_numpy(np.zeros(2)).resize_(5)


def test_array_protocol() -> None:
    x = torch.ones(3)
    assert np.asarray(x).ctypes.data == x.data_ptr() and np.array(x).ctypes.data != x.data_ptr()
    assert np.asarray(x, dtype="int32").dtype == np.int32
    assert not hasattr(x, "__cuda_array_interface__")


def test_buffers_are_shared() -> None:
    memory = bytearray(8)
    x = torch.frombuffer(memory, dtype=torch.int32)
    x[1] = -1
    assert memory == b"\0" * 4 + b"\xff" * 4
    with pytest.warns(UserWarning, match="The given buffer is not writable"):
        torch.frombuffer(b"abcd", dtype=torch.int32)
