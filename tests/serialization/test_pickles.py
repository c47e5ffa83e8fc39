"""Tensors and storages in pickles and copies: `pickle`, `copy.copy`, `copy.deepcopy`."""

from __future__ import annotations

import copy
import pickle
from operator import attrgetter
from types import FunctionType
from typing import Any

import pytest

import flambeau as torch
from flambeau.core.dtype import DTYPES

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.meta is other.meta and one.tolist() == other.tolist()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", DTYPES, ids=repr)
def test_each_dtype(kind: Any, protocol: int) -> None:
    tensor = torch.arange(6).to(kind)
    assert same(pickle.loads(pickle.dumps(tensor, protocol)), tensor)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_views_stay_over_one_storage(protocol: int) -> None:
    base = torch.arange(12.0).view(3, 4)
    found = pickle.loads(
        pickle.dumps([base, base[1:, 2], base.t(), base.view(torch.int32), base.expand(2, 3, 4)], protocol)
    )
    for made, view in zip(
        found, [base, base[1:, 2], base.t(), base.view(torch.int32), base.expand(2, 3, 4)], strict=True
    ):
        assert same(made, view)
    found[0][1, 2] = 99
    assert found[1][0] == 99 and found[2][2, 1] == 99
    assert base[1, 2] == 6


def test_buffers_out_of_band_are_not_copied() -> None:
    tensor = torch.arange(1000)
    buffers: list[pickle.PickleBuffer] = []
    raw = pickle.dumps(tensor, 5, buffer_callback=buffers.append)
    assert len(raw) < 1000 and len(buffers) == 1
    memory = bytearray(buffers[0].raw())
    found = pickle.loads(raw, buffers=[memoryview(memory)])
    assert same(found, tensor)
    memory[0] = 7
    assert found[0] == 7
    fixed = pickle.loads(raw, buffers=[memoryview(bytes(memory))])
    fixed += 1  # what must not be written to was copied
    assert fixed[0] == 8 and memory[0] == 7


def test_an_unpickled_tensor_grows() -> None:
    found = pickle.loads(pickle.dumps(torch.arange(3), 5))
    assert found.resize_(5)[:3].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "make", [lambda: torch.tensor(2.5), lambda: torch.empty(0, 3), lambda: torch.zeros(2, 0)]
)
def test_small_ones(make: Any) -> None:
    tensor = make()
    assert same(pickle.loads(pickle.dumps(tensor)), tensor)
    assert same(copy.deepcopy(tensor), tensor)


@pytest.mark.parametrize("carry", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_leaves_parameters_and_attributes(carry: Any) -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert carry(leaf).requires_grad and carry(leaf).is_leaf and carry(leaf) is not leaf
    parameter = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert type(carry(parameter)) is torch.nn.Parameter and not carry(parameter).requires_grad
    leaf.mark = parameter.mark = [1]
    assert hasattr(carry(parameter), "mark") == (carry is not copy.deepcopy)  # as in PyTorch
    assert carry(leaf).mark == [1]
    assert (carry(leaf).mark is leaf.mark) == (carry is copy.copy)


def test_copies_share_memory_and_deep_copies_do_not() -> None:
    tensor = torch.zeros(3)
    shallow, deep = copy.copy(tensor), copy.deepcopy(tensor)
    tensor[0] = 1
    assert shallow[0] == 1 and deep[0] == 0
    assert deep._version == 0


def test_deep_copies_keep_what_is_shared() -> None:
    base = torch.zeros(4)
    leaf = torch.ones(2, requires_grad=True)
    a, b, c, d, again = copy.deepcopy([base, base[1:3], leaf, leaf, base])
    assert c is d and a is again
    a[1] = 5
    assert b[0] == 5 and base[1] == 0


def test_deep_copies_take_the_gradient_along() -> None:
    leaf = torch.ones(2, requires_grad=True)
    (leaf * 3).sum().backward()
    made = copy.deepcopy(leaf)
    assert made.grad.tolist() == [3, 3] and made.grad is not leaf.grad
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(leaf * 2)


def test_deep_copies_of_pinned_and_foreign_memory() -> None:
    import numpy as np

    array = np.zeros(3)
    made = copy.deepcopy(torch.from_numpy(array))
    array[0] = 1
    assert made.tolist() == [0, 0, 0]
    with torch.virtual(devices=1):
        assert same(copy.deepcopy(torch.ones(2).pin_memory()), torch.ones(2))


def test_modules_are_copied_and_pickled() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    module[0].tied = module[0].weight
    for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert made[0].tied is made[0].weight
        assert list(made.state_dict()) == list(module.state_dict())
        for one, other in zip(made.parameters(), module.parameters(), strict=True):
            assert one is not other and same(one, other) and one.requires_grad


def test_tensors_of_devices_come_back_to_them() -> None:
    with torch.virtual(devices=2):
        tensor = torch.arange(4, device="cuda:1")
        for made in (pickle.loads(pickle.dumps(tensor)), copy.deepcopy(tensor)):
            assert made.device == torch.device("cuda:1") and made.tolist() == [0, 1, 2, 3]
        assert copy.copy(tensor).data_ptr() == tensor.data_ptr()
        raw = pickle.dumps(tensor)
    with torch.virtual(devices=1), pytest.raises(RuntimeError, match="cuda:1 was asked for"):
        pickle.loads(raw)


def test_storages() -> None:
    tensor = torch.arange(4)
    typed, untyped = pickle.loads(pickle.dumps([tensor.storage(), tensor.untyped_storage()]))
    assert typed.tolist() == [0, 1, 2, 3] and typed.dtype is torch.int64
    assert untyped.nbytes() == 32 and typed.data_ptr() == untyped.data_ptr()


@pytest.mark.parametrize(
    ("offset", "size", "stride"), [(-1, (1,), (1,)), (4, (1,), (1,)), (0, (5,), (1,)), (0, (2,), (4,)), (0, (2,), (-1,)), (0, (-1,), (1,))]
)  # fmt: skip
def test_a_pickle_cannot_reach_beyond_its_storage(offset: int, size: Any, stride: Any) -> None:
    define, arguments = torch.arange(4).__reduce_ex__(2)
    with pytest.raises(RuntimeError):
        define(arguments[0], offset, size, stride, False, None)


@pytest.mark.parametrize("room", ["", "nn.functional", "linalg", "fft", "special"])
def test_pickles_of_functions_lead_back(room: str) -> None:
    """Modules hold some (`self.activation = torch.softmax`), and processes are sent others."""
    shown = attrgetter(room)(torch) if room else torch
    names = [n for n in dir(shown) if n[0] != "_" and type(getattr(shown, n)) is FunctionType]
    assert len(names) > 10
    lost = [n for n in names if pickle.loads(pickle.dumps(getattr(shown, n))) is not getattr(shown, n)]
    assert lost == []


def test_errors_of_arguments_name_the_public_function() -> None:
    x = torch.ones(2)
    for name in ("softmax", "log_softmax", "cat", "repeat_interleave", "geqrf"):
        with pytest.raises(TypeError, match=rf"^{name}\(\)"):
            getattr(torch, name)(x, nonsense=1)
    for name in ("float", "cumsum_", "addmm_"):
        with pytest.raises(TypeError, match=rf"^{name}\(\)"):
            getattr(x, name)(nonsense=1)
