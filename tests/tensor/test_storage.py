"""Storages: shared by views, one per block, given back when the last tensor is gone."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import flambeau as torch


def test_views_share_a_storage() -> None:
    x = torch.arange(6)
    y = x[2:]
    assert x.untyped_storage() == y.untyped_storage() and hash(x.untyped_storage()) == hash(
        y.untyped_storage()
    )
    assert y.untyped_storage().data_ptr() == x.data_ptr() and y.storage_offset() == 2
    assert x.clone().untyped_storage() != x.untyped_storage()


def test_bytes_of_a_storage() -> None:
    storage = torch.tensor([1, 256], dtype=torch.int16).untyped_storage()
    assert storage.tolist() == [1, 0, 0, 1] and len(storage) == storage.size() == storage.nbytes() == 4
    storage[1] = 2
    assert storage[1] == 2 and storage[-1] == 1
    with pytest.raises(IndexError):
        storage[4]


def test_a_storage_moves_as_tensors_do() -> None:
    with torch.virtual(devices=2):
        storage = torch.arange(3.0).untyped_storage()
        there = storage.cuda(1)
        assert there.device == torch.device("cuda:1") and there.is_cuda and there.get_device() == 1
        assert there.cpu().tolist() == storage.tolist() and there.cuda(1) is there
        pinned = storage.pin_memory()
        assert pinned.is_pinned() and pinned.pin_memory() is pinned and not storage.is_pinned()
        assert pinned.cuda(non_blocking=True).tolist() == storage.tolist()
        with torch.cuda.device_of(there):
            assert torch.cuda.current_device() == 1
        with torch.cuda.device_of(storage):
            assert torch.cuda.current_device() == 0


def test_set_looks_at_other_memory() -> None:
    x, y = torch.zeros(2), torch.arange(6.0)
    assert x.set_(y.untyped_storage(), 1, (2, 2), (3, 1)).tolist() == [[1, 2], [4, 5]]
    x.fill_(0)
    assert y.tolist() == [0, 0, 0, 3, 0, 0]
    with pytest.raises(RuntimeError, match="out of bounds for storage of size 24"):
        x.set_(y.untyped_storage(), 4, (3,), (1,))
    with pytest.raises(RuntimeError, match="Could not set tensor of type"):
        x.set_(torch.ones(2, dtype=torch.int32))
    assert x.set_().shape == (0,)


def test_tensors_leave_no_cycles() -> None:
    with torch.virtual(devices=1):
        gc.disable()
        try:
            x = torch.ones(1000, device="cuda")
            y = x.view(10, 100).t()[2:].clone().double().cpu().cuda()
            repr(x), y.tolist(), x.untyped_storage()
            del x, y
            assert torch.cuda.memory_allocated() == 0
        finally:
            gc.enable()


def test_all_tensors_of_a_storage_follow_its_size() -> None:
    x = torch.arange(6.0)
    tail, storage = x[2:], x.untyped_storage()
    assert storage.resizable() and storage.resize_(4000) is storage
    assert storage.nbytes() == len(storage) == x.untyped_storage().nbytes() == 4000
    assert x.tolist() == [0, 1, 2, 3, 4, 5] and x.data_ptr() == storage.data_ptr() == tail.data_ptr() - 8
    tail.add_(1)
    assert x.tolist() == [0, 1, 3, 4, 5, 6]
    assert storage.resize_(8).nbytes() == 8 and x[:2].tolist() == [0, 1]
    typed = x.storage()
    assert len(typed.resize_(10)) == 10 and storage.nbytes() == 40 and x.tolist()[:2] == [0, 1]


def test_what_a_node_saved_follows_too() -> None:
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = (x * x).sum()
    x.untyped_storage().resize_(4000)
    others = [torch.full((2,), 9.0) for _ in range(50)]  # one of them where the numbers were
    y.backward()
    assert x.grad.tolist() == [4, 6]
    assert len(others) == 50


def test_a_device_gets_back_what_a_storage_gives_up() -> None:
    with torch.virtual(devices=1):
        x = torch.arange(1000.0, device="cuda")
        half, before = x[500:], torch.cuda.memory_allocated()
        x.untyped_storage().resize_(0)
        assert x.untyped_storage().nbytes() == 0 and torch.cuda.memory_allocated() == before - 4096
        other = torch.ones(1000, device="cuda")
        x.untyped_storage().resize_(4000)
        x.copy_(torch.arange(1000.0))
        assert half.tolist() == list(range(500, 1000)) and other.sum().item() == 1000
        with torch.cuda.stream(torch.cuda.Stream()):
            x.untyped_storage().resize_(8000)
        torch.cuda.synchronize()
        assert half.tolist() == list(range(500, 1000))


def test_pinned_memory_is_resized_and_foreign_memory_is_not() -> None:
    with torch.virtual(devices=1):
        x = torch.arange(4.0).pin_memory()
        x.untyped_storage().resize_(400)
        assert x.tolist() == [0, 1, 2, 3] and x.is_pinned() and x.untyped_storage().nbytes() == 400
    for foreign in (torch.from_numpy(np.ones(3)), torch.ones(3).share_memory_()):
        assert not foreign.untyped_storage().resizable()
        with pytest.raises(RuntimeError, match=r"^Trying to resize storage that is not resizable$"):
            foreign.untyped_storage().resize_(100)


@pytest.mark.parametrize("size", (True, 2.0, "a", -1))
def test_a_size_is_a_whole_number(size: object) -> None:
    with pytest.raises(RuntimeError, match=r"^resize_ expects"):
        torch.ones(3).untyped_storage().resize_(size)
