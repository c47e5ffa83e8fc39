"""SPEC A (devices and where tensors lie): the rows that no test of the runtime bears in its name."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest
from gpus import either, gpus, simulated

import flambeau as torch

pytestmark = either


@pytest.fixture(autouse=True)
def three_gpus() -> Iterator[None]:
    with gpus(devices=3):
        yield


def test_a01_cuda_tensors_compute_what_cpu_tensors_compute() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    for f in (torch.exp, torch.sum, lambda t: t @ t.t(), lambda t: t[1:, ::2] * 3 - t.mean()):
        there = f(x.cuda())
        assert there.is_cuda and not f(x).is_cuda
        assert torch.allclose(there.cpu(), f(x))


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a14_results_lie_where_the_operands_lie(index: int) -> None:
    x = torch.ones(4, 4, device=f"cuda:{index}")
    for selected in range(3):
        with torch.cuda.device(selected):
            for y in (x + 1, x @ x, x.sum(), x[0], x.clone(), x.sort()[0], torch.cat([x, x]), x.new_zeros(2)):
                assert y.device == torch.device("cuda", index)


def test_a16_devices_by_index() -> None:
    assert torch.device("cuda:2") == torch.device("cuda", 2)
    assert torch.ones(1, device=torch.device("cuda:2")).device.index == 2
    for text in ("cuda:02", "cuda:x", "cuda:", "gpu:0", "cuda:-1"):
        with pytest.raises(RuntimeError):
            torch.device(text)


@pytest.mark.parametrize("where", ["cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda:0")])
def test_a17_a_cuda_tensors_device_has_an_index(where: object) -> None:
    x = torch.empty(2, device=where)
    assert repr(x.device) == "device(type='cuda', index=0)"
    assert str(x.device) == "cuda:0"


@pytest.mark.parametrize("where", ["cuda:1", torch.device("cuda:1"), 1])
def test_a18_tensor_takes_a_device(where: object) -> None:
    x = torch.tensor([1.0, 2.0], device=where)
    assert x.device == torch.device("cuda:1") and x.tolist() == [1.0, 2.0]


def test_a19_cuda_goes_to_the_current_gpu() -> None:
    x = torch.tensor([1.0, 2.0])
    assert x.cuda().device.index == 0
    with torch.cuda.device(2):
        assert x.cuda().device.index == 2
        assert x.cuda(None).device.index == 2


@pytest.mark.parametrize("where", [1, torch.device("cuda:1"), "cuda:1"])
def test_a20_cuda_takes_a_device_that_overrides_the_context(where: object) -> None:
    with torch.cuda.device(2):
        assert torch.ones(2).cuda(where).device.index == 1
        assert torch.ones(2).cuda(device=where).device.index == 1


def test_a21_to_moves_by_keyword_and_position_between_gpus_and_back() -> None:
    x = torch.tensor([1.0, 2.0])
    y = x.to(device="cuda:1")
    z = y.to(torch.device("cuda:2"))
    back = z.to("cpu")
    assert [t.device.index for t in (y, z)] == [1, 2]
    assert back.device == torch.device("cpu") and back.tolist() == [1.0, 2.0]
    assert x.to("cuda:1", torch.float64).dtype == torch.float64
    assert x.to(z).device == z.device
    assert x.to("cpu") is x and y.to("cuda:1") is y
    assert y.to("cuda:1", copy=True) is not y


@simulated
def test_a30_device_count() -> None:
    assert torch.cuda.device_count() == 3


TYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Bool": torch.bool,
}  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_a33_cuda_tensor_types(name: str) -> None:
    kind = getattr(torch.cuda, f"{name}Tensor")
    with torch.cuda.device(1):
        made = kind([1, 0])
        assert (made.device.index, made.dtype, made.tolist()) == (1, TYPES[name], [1, 0])
        assert kind(2, 3).shape == (2, 3) and kind().numel() == 0
    assert made.type() == f"torch.cuda.{name}Tensor"
    assert getattr(importlib.import_module(kind.__module__), kind.__name__) is kind
    assert isinstance(made, kind) and not isinstance(made.cpu(), kind)
    assert [n for n in TYPES if isinstance(made, getattr(torch.cuda, f"{n}Tensor"))] == [name]
    cast = torch.tensor([1.5, 0.0]).type(kind)
    assert isinstance(cast, kind) and cast.device.index == 0
    assert isinstance(made.type(f"torch.{name}Tensor"), getattr(torch, f"{name}Tensor"))


def test_a34_storages_where_tensors_are_taken() -> None:
    storage = torch.ones(3, device="cuda:2").untyped_storage()
    with torch.cuda.device_of(storage):
        assert torch.cuda.current_device() == 2
    assert torch.cuda.current_device() == 0
