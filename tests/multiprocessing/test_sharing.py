"""`share_memory_` and `is_shared` in one process, beside PyTorch's; what moves when a storage moves."""

from __future__ import annotations

import gc
import os
import resource
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flambeau

KINDS = ("float32", "int64", "bool", "bfloat16", "complex64", "uint16", "float8_e5m2")


@pytest.mark.parametrize("kind", KINDS)
def test_values_layout_and_history_stay(kind):
    answers = []
    for library in (flambeau, torch):
        x = library.tensor([[0, 1, 2], [1, 0, 1]]).to(getattr(library, kind)).t()[1:]
        before = (x.shape, x.stride(), x.storage_offset())
        assert not x.is_shared()
        assert x.share_memory_() is x
        assert x.share_memory_() is x
        assert (x.shape, x.stride(), x.storage_offset()) == before
        answers.append((x.is_shared(), x.untyped_storage().is_shared(), x.untyped_storage().nbytes()))
        answers.append(x.to(library.complex64).tolist())
    assert answers[:2] == answers[2:]


@pytest.fixture(scope="module")
def thawed():
    """Nothing frozen: looking for what is takes a while."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("thawed")
@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(1, 12), st.booleans()), min_size=1, max_size=6),
    st.data(),
)
def test_all_views_move_with_their_storage(cuts, data):
    base = flambeau.arange(12.0)
    views = [base, *[base[a : a + n].detach() if cut else base[a : a + n] for a, n, cut in cuts]]
    expected = np.arange(12.0, dtype=np.float32)
    data.draw(st.sampled_from(views)).share_memory_()
    base.mul_(2)
    for (a, n, _), view in zip([(0, 12, False), *cuts], views, strict=True):
        assert view.is_shared() and (view.numpy() == 2 * expected[a : a + n]).all()
        view.add_(1)
        expected[a : a + n] += 0.5
    assert (base.numpy() == 2 * expected).all()


def test_what_a_node_saved_moves_too():
    x = flambeau.ones(3, requires_grad=True)
    hidden = x * 2
    y = (hidden * hidden).sum()
    hidden.detach().share_memory_()
    assert hidden.memory.owner.former is None  # nobody looks at where it was
    flambeau.full((3,), 7.0)  # which this takes
    y.backward()
    assert x.grad.tolist() == [8.0, 8.0, 8.0]


def test_frozen_objects_are_found():
    """`gc.freeze` hides what is there from the collector; programs call it before they fork."""
    base = flambeau.arange(4.0)
    view = base[2:]
    gc.freeze()
    base.share_memory_()
    base.fill_(5)
    assert view.tolist() == [5, 5]
    start = base.untyped_storage().data_ptr()
    assert (base.data_ptr(), view.data_ptr()) == (start, start + 8)
    assert gc.get_freeze_count()


def test_an_array_over_the_old_memory_keeps_it():
    x = flambeau.arange(4.0)
    array, view = x.numpy(), x[1:]
    x.share_memory_()
    flambeau.full((4,), 9.0)
    x.zero_()
    assert array.tolist() == [0, 1, 2, 3] and view.tolist() == [0, 0, 0]


def test_memory_that_was_a_numpy_arrays_is_left_to_it():
    array = np.arange(3.0)
    x = flambeau.from_numpy(array)
    x.share_memory_()
    x.fill_(1)
    assert array.tolist() == [0, 1, 2] and x.tolist() == [1, 1, 1]


def test_pinned_memory_becomes_shared_and_is_pinned_no_more():
    with flambeau.virtual(1):
        x = flambeau.arange(1000.0).pin_memory()
        view = x[10:]
        assert not x.is_shared()
        x.share_memory_()
        assert x.is_shared() and not x.is_pinned() and view[0] == 10
        assert x.cuda().sum() == 499500


def test_shared_memory_cannot_grow():
    x = flambeau.arange(4.0).share_memory_()
    with pytest.raises(RuntimeError, match="Trying to resize storage that is not resizable"):
        x.resize_(100)
    assert x.resize_(2).tolist() == [0, 1]


def test_each_shared_storage_has_one_descriptor_which_dies_with_it():
    before = len(os.listdir("/proc/self/fd"))
    made = [flambeau.zeros(1000).share_memory_() for _ in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before + 20
    assert (made[3] + 1).is_shared() is False
    assert made[3].clone().is_shared() is False
    del made
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("make", ["_new_shared", "share_memory_", "storage"])
def test_storages_say_it_too(make):
    for library in (flambeau, torch):
        if make == "_new_shared":
            assert library.UntypedStorage._new_shared(16).is_shared()
            assert library.UntypedStorage._new_shared(16).nbytes() == 16
            continue
        x = library.arange(3)
        storage = x.untyped_storage()
        assert not storage.is_shared()
        if make == "storage":
            assert storage.share_memory_() is storage
        else:
            x.share_memory_()
        assert storage.is_shared() and x.is_shared() and storage.data_ptr() == x.data_ptr()


def test_empty_tensors_are_shared_like_others():
    for library in (flambeau, torch):
        assert library.empty(0).share_memory_().is_shared()


def test_modules_share_parameters_and_buffers_in_place():
    for library in (flambeau, torch):
        model = library.nn.Sequential(library.nn.Linear(3, 2), library.nn.BatchNorm1d(2))
        weight = model[0].weight
        assert model.share_memory() is model
        assert model[0].weight is weight
        assert all(p.is_shared() for p in (*model.parameters(), *model.buffers()))


def test_cuda_is_shared_as_it_is():
    with flambeau.virtual(1):
        x = flambeau.ones(2, device="cuda")
        at = x.data_ptr()
        assert x.is_shared() and x.share_memory_() is x and x.data_ptr() == at
        assert x.untyped_storage().is_shared()


def test_no_room_is_an_error_that_changes_nothing(monkeypatch):
    def full(nbytes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys.modules["flambeau.tensor.exchange.sharing"], "anonymous", full)
    x = flambeau.arange(3)
    at = x.data_ptr()
    with pytest.raises(
        RuntimeError, match=r"unable to allocate shared memory\(shm\).*No space left on device \(28\)"
    ):
        x.share_memory_()
    assert x.data_ptr() == at and not x.is_shared() and x.tolist() == [0, 1, 2]


def test_too_many_descriptors_are_told_with_what_to_do():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 3, hard))
    some = [flambeau.ones(2) for _ in range(20)]
    try:
        with pytest.raises(RuntimeError, match=r"Too many open files \(24\)\. Please .*set_sharing_strategy"):
            [x.share_memory_() for x in some]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert 0 < sum(x.is_shared() for x in some) < 20
    assert all(x.tolist() == [1, 1] for x in some)


def test_a_forked_child_writes_to_the_same_memory():
    x, y = flambeau.zeros(3).share_memory_(), flambeau.zeros(3)
    pid = os.fork()
    if not pid:
        x.fill_(4)
        y.fill_(4)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert x.tolist() == [4, 4, 4] and y.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("at", "value", "error"),
    [
        (0, True, TypeError), (1, "handle", TypeError), (1, b"", ValueError), (2, -1, ValueError), (2, 1 << 70, ValueError),
        (3, 0.5, TypeError), (3, (), TypeError), (4, b"short", ValueError), (5, 1, ValueError), (5, 1 << 40, ValueError),
        (6, None, TypeError), (7, 1, TypeError),
    ],
)  # fmt: skip
def test_cuda_storages_of_malformed_fields_are_refused(at, value, error):
    with flambeau.virtual(devices=1):
        x = flambeau.ones(3, device="cuda")
        fields = list(x.untyped_storage()._share_cuda_())
        with pytest.raises(error):
            flambeau.UntypedStorage._new_shared_cuda(*fields[:at], value, *fields[at + 1 :])
        with pytest.raises(TypeError, match="has 8 fields, not 7"):
            flambeau.UntypedStorage._new_shared_cuda(*fields[1:])
        assert flambeau.UntypedStorage._new_shared_cuda(*fields).nbytes() == 12
