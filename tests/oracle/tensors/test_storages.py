"""Storages beside PyTorch's: how they are made, converted, indexed, and taken by tensors."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch as oracle

import flambeau

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")

SAME = [
    "torch.TypedStorage(3, dtype=torch.float64).size()",
    "torch.TypedStorage([1, 2], dtype=torch.int16).tolist()",
    "torch.TypedStorage().dtype, torch.TypedStorage().size()",
    "torch.TypedStorage(wrap_storage=u, dtype=torch.int16).size()",
    "torch.FloatStorage(wrap_storage=u).data_ptr() == u.data_ptr()",
    "torch.UntypedStorage([1, 300, -1]).tolist()",
    "torch.ByteStorage.from_buffer(b'abc').tolist()",
    "torch.BoolStorage.from_buffer(bytes([0, 2]), 'native').tolist()",
    "torch.FloatStorage.from_buffer(b'abcdefgh', 'big').tolist()",
    "torch.IntStorage.from_buffer(bytearray(b'abcdefgh'), 'little', 1, 4).tolist()",
    "torch.ComplexFloatStorage.from_buffer(b'abcdefgh', 'big').tolist()",
    "torch.UntypedStorage.from_buffer(b'abcd', 'native', dtype=torch.float32).tolist()",
    "s.half().tolist(), s.int().dtype, s.bool().tolist(), s.complex_float().tolist(), s.bfloat16().dtype",
    "s.float().data_ptr() == s.data_ptr()",
    "u.int().tolist() == u.tolist(), u.int().dtype",
    "s.to(device='cpu').tolist()",
    "s.type(), u.type(), s.long().type(), s.pickle_storage_type(), s.is_sparse, u.is_sparse",
    "copy.copy(s).data_ptr() == s.data_ptr()",
    "copy.deepcopy(s).tolist(), pickle.loads(pickle.dumps(s)).tolist()",
    "s.__setitem__(slice(1, 3), 9), s.tolist()",
    "u.__setitem__(slice(None, 4), 0), s.tolist()",
    "torch.Tensor(s).data_ptr() == s.data_ptr()",
    "torch.FloatTensor(u).tolist()",
    "torch.IntTensor(s.int()).tolist()",
]
REFUSED = [
    "torch.FloatStorage(1, 2)",
    "torch.FloatStorage('a')",
    "torch.FloatStorage(None)",
    "torch.FloatStorage(3, wrap_storage=u)",
    "torch.TypedStorage(2, 3)",
    "torch.TypedStorage(wrap_storage=u)",
    "torch.TypedStorage(wrap_storage=s, dtype=torch.int8)",
    "torch.UntypedStorage([1.5])",
    "torch.UntypedStorage('a')",
    "torch.FloatStorage.from_buffer(b'abcd')",
    "torch.FloatStorage.from_buffer(b'abcd', 'foo')",
    "torch.FloatStorage.from_buffer(b'abcde', 'native')",
    "torch.FloatStorage.from_buffer(b'abcdefgh', 'big', 3)",
    "torch.FloatStorage.from_buffer(b'abcdefgh', 'big', 1, 9)",
    "s.to('cpu')",
    "s['a']",
    "s[9]",
    "s[1.5]",
    "torch.DoubleTensor(s)",
]


def of(torch: Any, text: str) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TypedStorage is deprecated")
        s = torch.tensor([0.0, 1.5, 2.0, 3.0]).storage()
        return eval(text, {"torch": torch, "s": s, "u": s.untyped(), "copy": copy, "pickle": pickle})


@pytest.mark.parametrize("text", SAME)
def test_as_the_oracles(text: str) -> None:
    assert str(of(flambeau, text)) == str(of(oracle, text))


@pytest.mark.parametrize("text", REFUSED)
def test_refused_as_the_oracle_does(text: str) -> None:
    with pytest.raises(Exception) as wanted:
        of(oracle, text)
    with pytest.raises(wanted.type):
        of(flambeau, text)


def test_types_of_storages_on_gpus() -> None:
    """`type` as the documentation of 1.8 has it: PyTorch's of today fails for want of bytes."""
    torch = flambeau
    with torch.virtual(devices=2):
        s = torch.arange(3.0).storage()
        there = s.type("torch.cuda.DoubleStorage")
        assert isinstance(there, torch.cuda.DoubleStorage) and there.tolist() == [0, 1, 2]
        assert there.type() == "torch.cuda.DoubleStorage" and there.type(torch.cuda.DoubleStorage) is there
        second = s.to(device="cuda:1", non_blocking=True)
        assert second.type(torch.cuda.IntStorage).device == torch.device("cuda:1")
        assert second.half().type() == "torch.cuda.HalfStorage" and second.type(
            torch.FloatStorage
        ).tolist() == [0, 1, 2]
        assert torch.cuda.FloatStorage(wrap_storage=second.untyped()) == second
        assert torch.cuda.FloatTensor(second).data_ptr() == second.data_ptr()
        second[1:] = 7
        assert second.tolist() == [0, 7, 7]
        with pytest.raises(RuntimeError, match="lies on cpu"):
            torch.FloatStorage(wrap_storage=second.untyped())
        with pytest.raises(RuntimeError, match="legacy constructor expects device type: cpu"):
            torch.FloatTensor(second)
        with pytest.raises(ValueError, match="invalid type"):
            s.type("torch.FooStorage")
        assert not hasattr(torch.cuda.FloatStorage, "from_buffer")


def test_slices_of_typed_storages_are_refused() -> None:
    for lib in (flambeau, oracle):
        with pytest.raises(RuntimeError, match="slices are only supported in UntypedStorage"):
            lib.FloatStorage([1.0, 2.0])[0:1]
