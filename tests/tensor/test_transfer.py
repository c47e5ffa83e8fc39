"""Copies between the host and virtual GPUs: values, order, what blocks, what is pinned."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import flambeau as torch
from flambeau.runtime import system

SLEEP = 100_000_000


@pytest.fixture(autouse=True)
def _machine() -> Iterator[None]:
    with torch.virtual(devices=2):
        yield


def test_host_to_device_and_back() -> None:
    for shape in [(), (0,), (3,), (2, 3), (2, 0, 4)]:
        x = torch.arange(float(np.prod(shape))).view(shape)
        y = x.cuda()
        assert (
            y.device == torch.device("cuda:0") and y.tolist() == x.tolist() and y.cpu().tolist() == x.tolist()
        )


@pytest.mark.parametrize("target", ["cuda:0", "cuda:1", "cpu"])
@pytest.mark.parametrize("source", ["cuda:0", "cuda:1", "cpu"])
def test_copy_converts_broadcasts_and_strides(source: str, target: str) -> None:
    x = torch.tensor([[1.5], [-2.5]]).to(source)
    y = torch.zeros(3, 2, dtype=torch.int32, device=target)
    version = y._version
    assert y.t().copy_(x).tolist() == [[1, 1, 1], [-2, -2, -2]]
    assert y.tolist() == [[1, -2]] * 3
    assert y._version == version + 1


def test_cuda_of_its_own_device_is_itself() -> None:
    x = torch.ones(2, device="cuda:1")
    assert x.cuda(1) is x and x.to("cuda:1") is x and x.to(torch.float32) is x
    assert x.cuda() is not x and x.cuda().device.index == 0
    with torch.cuda.device(1):
        assert x.cuda() is x and x.to("cuda") is x


def test_strides_survive_the_way() -> None:
    x = torch.arange(6).view(2, 3).t()
    assert x.cuda().stride() == (1, 3) and x.cuda().cpu().stride() == (1, 3)


def test_blocking_copy_leaves_the_stream_idle_and_the_result_unpinned() -> None:
    x = torch.ones(4, device="cuda")
    torch.cuda._sleep(SLEEP)
    y = x.cpu()
    assert torch.cuda.current_stream().query() and not y.is_pinned()


def test_non_blocking_to_the_host_is_pinned_and_leaves_the_stream_busy() -> None:
    x = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    y = x.to("cpu", non_blocking=True)
    assert y.is_pinned() and not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert y.tolist() == [1.0] * 4


def test_non_blocking_from_pinned_leaves_the_stream_busy() -> None:
    x = torch.arange(4).pin_memory()
    torch.cuda._sleep(SLEEP)
    y = x.cuda(non_blocking=True)
    assert not torch.cuda.current_stream().query()
    assert y.tolist() == [0, 1, 2, 3]


def test_pageable_source_may_be_changed_on_return() -> None:
    x = torch.arange(4)
    torch.cuda._sleep(SLEEP)
    y = x.cuda(non_blocking=True)
    x.zero_()
    assert y.tolist() == [0, 1, 2, 3]


def test_pinned_source_is_read_when_the_copy_runs() -> None:
    x = torch.arange(4).pin_memory()
    torch.cuda._sleep(SLEEP)
    y = x.cuda(non_blocking=True)
    x.zero_()
    assert y.tolist() == [0, 0, 0, 0]


def test_a_converting_copy_reads_its_pinned_source_when_it_runs() -> None:
    x = torch.arange(4.0).pin_memory()
    torch.cuda._sleep(SLEEP)
    y = x.to("cuda", torch.float16, non_blocking=True)
    assert not torch.cuda.current_stream().query()
    x.fill_(2)
    assert y.dtype is torch.float16 and y.tolist() == [2.0] * 4


def test_a_converting_copy_writes_its_pinned_target_when_it_runs() -> None:
    x = torch.arange(4, device="cuda")
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    y = x.to("cpu", torch.float16, non_blocking=True)
    z = torch.zeros(4, dtype=torch.int16, pin_memory=True).copy_(x, non_blocking=True)
    assert y.is_pinned() and not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert y.tolist() == z.tolist() == [0, 1, 2, 3]


def test_a_copy_into_a_pinned_target_with_gaps_blocks() -> None:
    x, y = torch.arange(4, device="cuda"), torch.zeros(4, 2, dtype=torch.int64, pin_memory=True)
    torch.cuda._sleep(SLEEP)
    assert y[:, 0].copy_(x, non_blocking=True).tolist() == [0, 1, 2, 3]
    assert torch.cuda.current_stream().query() and y[:, 1].tolist() == [0] * 4


def test_a_pinned_source_with_gaps_is_read_before_the_call_returns() -> None:
    x = torch.arange(8).view(4, 2).pin_memory()
    torch.cuda._sleep(SLEEP)
    y, z = x[:, 0].to("cuda", non_blocking=True), x[0].expand(3, 2).to("cuda", non_blocking=True)
    x.zero_()
    assert y.tolist() == [0, 2, 4, 6] and z.tolist() == [[0, 1]] * 3


@pytest.mark.parametrize("inwards", [True, False])
def test_a_blocking_copy_converts_on_the_host(inwards: bool) -> None:
    """As PyTorch's, for the sake of the device's memory."""
    x = torch.ones(1000) if inwards else torch.ones(1000, device="cuda")
    y = torch.empty(1000, dtype=torch.float64, device="cuda" if inwards else "cpu")
    before = torch.cuda.max_memory_allocated()
    assert y.copy_(x).tolist() == [1.0] * 1000
    assert torch.cuda.max_memory_allocated() == before


def test_a_captured_copy_converts_at_each_launch() -> None:
    x, graph = torch.ones(4).pin_memory(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x.to("cuda", torch.float16, non_blocking=True)
    for value in (2.0, 3.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [value] * 4


def test_a_pinned_block_waits_for_its_copy() -> None:
    x = torch.arange(4).pin_memory()
    ptr = x.data_ptr()
    torch.cuda._sleep(SLEEP)
    y = x.cuda(non_blocking=True)
    del x
    assert torch.empty(4, dtype=torch.int64, pin_memory=True).data_ptr() != ptr
    assert y.tolist() == [0, 1, 2, 3]


def test_a_pinned_block_without_copies_is_used_again_at_once() -> None:
    x = torch.empty(4, pin_memory=True)
    ptr = x.data_ptr()
    del x
    assert torch.empty(4, pin_memory=True).data_ptr() == ptr


def test_pinning() -> None:
    x = torch.arange(3)
    y = x.pin_memory()
    assert y.is_pinned() and not x.is_pinned() and y.pin_memory() is y and y.tolist() == x.tolist()
    for z in (
        torch.zeros(2, pin_memory=True),
        torch.full((2,), 3, pin_memory=True),
        torch.tensor([1], pin_memory=True),
    ):
        assert z.is_pinned()
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.zeros(2, device="cuda", pin_memory=True)
    with pytest.raises(
        RuntimeError, match=r"cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
    ):
        torch.zeros(2, device="cuda").pin_memory()
    assert x.untyped_storage().pin_memory().is_pinned()


ALIASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "from_numpy": lambda h: torch.from_numpy(h.numpy()),
    "as_tensor": lambda h: torch.as_tensor(h.numpy()),
    "frombuffer": lambda h: torch.frombuffer(memoryview(h.numpy()), dtype=torch.float32),
    "dlpack": lambda h: torch.from_dlpack(h),
    "dlpack of an array": lambda h: torch.from_dlpack(h.numpy()),
    "offset": lambda h: torch.from_numpy(h.numpy()[7:]),
    "storage": lambda h: torch.empty(0).set_(torch.from_numpy(h.numpy()[3:]).untyped_storage()),
    "array": lambda h: torch.from_numpy(np.asarray(h))[2:],
    "bytes": lambda h: torch.from_numpy(h.numpy().view(np.uint8)).view(torch.float32),
    "ctypes": lambda h: torch.from_numpy(
        np.ctypeslib.as_array((ctypes.c_float * 100).from_address(h.data_ptr()))
    ),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_another_object_over_pinned_memory_is_pinned(alias: str) -> None:
    """Page-locked goes by address, for CUDA and so for PyTorch."""
    h = torch.zeros(100).pin_memory()
    a = ALIASES[alias](h)
    assert a.is_pinned() and a.untyped_storage().is_pinned() and a.pin_memory() is a
    assert a.__dlpack_device__() == (3, 0)
    torch.cuda._sleep(SLEEP)
    x = a.cuda(non_blocking=True)
    assert not torch.cuda.current_stream().query()
    h.fill_(1)
    assert x.tolist() == [1.0] * a.numel()
    y = torch.full((a.numel(),), 2.0, device="cuda")
    torch.cuda._sleep(SLEEP)
    a.copy_(y, non_blocking=True)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()
    assert a.tolist() == [2.0] * a.numel() == h.tolist()[-a.numel() :]


def test_memory_that_is_pinned_in_part_is_pageable() -> None:
    h = torch.arange(128.0).pin_memory()  # 512 bytes: all of its block
    last = h.data_ptr() + 508
    assert torch.from_numpy(np.ctypeslib.as_array((ctypes.c_float * 1).from_address(last))).is_pinned()
    a = torch.from_numpy(np.ctypeslib.as_array((ctypes.c_float * 2).from_address(last)))
    assert not a.is_pinned() and a.pin_memory() is not a
    torch.cuda._sleep(SLEEP)
    x = a.cuda(non_blocking=True)
    h.zero_()
    assert x.tolist()[0] == 127
    del h
    torch.accelerator.empty_host_cache()
    assert not a[:1].is_pinned()


def test_a_pinned_block_waits_for_a_copy_through_another_object() -> None:
    for offset in (0, 1):
        h = torch.arange(4).pin_memory()
        ptr = h.data_ptr()
        torch.cuda._sleep(SLEEP)
        y = torch.from_numpy(h.numpy()[offset:]).cuda(non_blocking=True)
        del h
        assert torch.empty(4, dtype=torch.int64, pin_memory=True).data_ptr() != ptr
        assert y.tolist() == [0, 1, 2, 3][offset:]


def test_copy_between_devices_waits_for_both_current_streams() -> None:
    """Whatever is queued on either side comes first, and what is queued afterwards comes after."""
    for schedule in ["earliest", *[f"adversarial:{i}" for i in range(4)]]:
        with torch.virtual(devices=2, schedule=schedule, races="error"):
            x, y = torch.zeros(1000, device="cuda:0"), torch.zeros(1000, device="cuda:1")
            with torch.cuda.device(0):
                torch.cuda._sleep(SLEEP)
            x.fill_(3)
            y.fill_(1)
            y.copy_(x)
            x.fill_(7)
            assert set(y.tolist()) == {3.0} and set(x.tolist()) == {7.0}


def test_copy_between_devices_does_not_wait_on_the_host() -> None:
    x = torch.ones(4, device="cuda:0")
    torch.cuda._sleep(SLEEP)
    y = x.cuda(1)
    assert not torch.cuda.current_stream(0).query()
    assert y.tolist() == [1.0] * 4


def test_the_old_name_of_non_blocking() -> None:
    x = torch.ones(2).pin_memory()
    torch.cuda._sleep(SLEEP)
    for move in (lambda: x.to("cuda", **{"async": True}), lambda: x.cuda(**{"async": True})):
        with pytest.warns(UserWarning, match="deprecated") as told:
            move()
        assert told[0].filename == __file__
        assert not torch.cuda.current_stream().query()
    with pytest.warns(UserWarning, match="deprecated"):
        torch.zeros(2, device="cuda").copy_(x, **{"async": True})


def test_item_waits() -> None:
    x = torch.zeros(1, device="cuda")
    torch.cuda._sleep(SLEEP)
    x.fill_(5)
    assert x.item() == 5.0 and torch.cuda.current_stream().query()
    assert float(x) == 5.0 and int(x) == 5 and bool(x)


def test_refusals_change_nothing() -> None:
    x, y = torch.zeros(2, device="cuda"), torch.ones(3)
    before = torch.cuda.memory_allocated()
    with pytest.raises(
        RuntimeError, match=r"The size of tensor a \(2\) must match the size of tensor b \(3\)"
    ):
        x.copy_(y)
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
        x[:1].expand(3).copy_(y)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        y.cuda(7)
    with pytest.raises(RuntimeError, match="Invalid device"):
        y.cuda("cpu")
    assert x.tolist() == [0, 0] and x._version == 0 and torch.cuda.memory_allocated() == before


def test_factories_follow_the_context_and_new_does_not() -> None:
    x = torch.ones(2, device="cuda:1")
    with torch.cuda.device(1):
        assert torch.zeros(1, device="cuda").device.index == 1
    for y in (x.new_zeros(2), x.new_full((2,), 3), x.new_tensor([1]), x.new_empty(2), torch.ones_like(x)):
        assert y.device == x.device and y.dtype is x.dtype
    assert torch.tensor([1, 2], device="cuda:1").tolist() == [1, 2]


def test_nothing_happens_on_other_devices() -> None:
    x = torch.arange(5.0, device="cuda:1")
    repr(x), x.cpu(), x.item if x.numel() == 1 else None, x.tolist()
    torch.empty(3, pin_memory=True)
    assert torch.cuda.memory_reserved(0) == 0


def test_memory_is_back_when_the_name_is_gone() -> None:
    before = torch.cuda.memory_allocated()
    x = torch.arange(1000.0).cuda()
    y = x.to(torch.float64).t() if x.dim() == 2 else x.double().cpu()
    del x, y
    assert torch.cuda.memory_allocated() == before


def test_types_by_name() -> None:
    x = torch.ones(2)
    assert x.cuda().type() == "torch.cuda.FloatTensor" and x.type("torch.DoubleTensor").dtype is torch.float64
    y = x.type("torch.cuda.LongTensor")
    assert y.device.type == "cuda" and y.dtype is torch.int64
    with pytest.raises(ValueError, match="invalid type: 'foo'"):
        x.type("foo")


def test_resize_and_deepcopy() -> None:
    x = torch.arange(4.0, device="cuda")
    y = copy.deepcopy(x)
    x.resize_(2, 4)
    assert x.view(-1)[:4].tolist() == [0, 1, 2, 3] and x.shape == (2, 4)
    y.fill_(9)
    assert y.device == x.device and x.view(-1)[0].item() == 0


def test_tensors_of_a_closed_machine_raise() -> None:
    with torch.virtual(devices=1):
        x = torch.ones(2, device="cuda")
    for use in (
        x.cpu,
        x.item if x.numel() == 1 else x.tolist,
        lambda: torch.zeros(2).copy_(x),
        lambda: repr(x),
    ):
        with pytest.raises(RuntimeError, match="closed or left"):
            use()


def test_the_host_driver_hears_of_reads_and_writes() -> None:
    seen = []
    driver, touch = system.host.driver, system.host.driver.host_touch
    driver.host_touch = lambda ptr, nbytes, write: seen.append((ptr, nbytes, write))
    try:
        x = torch.ones(3)
        x.tolist(), x.numpy()
        assert seen == [(x.data_ptr(), 12, False)]  # of a read: what NumPy does with the memory is not seen
    finally:
        driver.host_touch = touch
