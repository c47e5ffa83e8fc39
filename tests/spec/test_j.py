"""SPEC J: device-agnostic code. J01, J02, J05, J09-J12 are checked with the notes' programs (tests/examples)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpus import either, gpus

import flambeau as torch

pytestmark = either


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with gpus(devices=2):
        yield


@pytest.mark.parametrize("where", ["cpu", "cuda:1"])
def test_j03_modules_move_in_place(where: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    before = dict(net.named_parameters())
    assert net.to(device=torch.device(where)) is net
    assert {str(t.device) for t in (*net.parameters(), *net.buffers())} == {where}
    assert all(p is before[name] for name, p in net.named_parameters())
    assert net(torch.ones(4, 3, device=where)).device == torch.device(where)


@pytest.mark.parametrize("workers", [0, 2])
def test_j04_batches_of_a_loader_move_to_a_gpu(workers: int) -> None:
    data = torch.arange(10.0)
    cuda1, seen = torch.device("cuda:1"), []
    for i, x in enumerate(torch.utils.data.DataLoader(data, batch_size=4, num_workers=workers)):
        x = x.to(cuda1)
        assert x.device == cuda1
        seen.append((i, x.tolist()))
    assert seen == [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [8, 9])]


@pytest.mark.parametrize("where", ["cpu", "cuda:0", "cuda:1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool])
def test_j06_new_keeps_device_and_dtype_whatever_is_selected(where: str, dtype: torch.dtype) -> None:
    x = torch.zeros(2, dtype=dtype, device=where)
    for selected in range(2):
        with torch.cuda.device(selected):
            made = {
                "full": x.new_full((3, 2), 1),
                "tensor": x.new_tensor([[1, 0]]),
                "zeros": x.new_zeros(3, 2),
                "ones": x.new_ones((3, 2)),
                "empty": x.new_empty(3),
            }
            for name, y in made.items():
                assert (y.device, y.dtype) == (x.device, x.dtype), name
    assert made["full"].tolist() == made["ones"].tolist()
    assert made["zeros"].sum().item() == 0


def test_j06_new_takes_other_attributes_too() -> None:
    x = torch.zeros(2)
    y = x.new_ones(3, dtype=torch.int32, device="cuda:1")
    assert (y.dtype, str(y.device)) == (torch.int32, "cuda:1")


def test_j07_factories_follow_the_context_and_their_arguments() -> None:
    for selected in range(2):
        with torch.cuda.device(selected):
            for factory in (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn):
                assert factory(2, device="cuda").device.index == selected
                assert factory(2, device="cuda:1").device.index == 1
                assert factory(2).device.type == "cpu"


def test_j08_new_tensors_inside_a_forward_pass() -> None:
    class Noisy:
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + x.new_ones(x.shape)

    for where in ("cpu", "cuda:0", "cuda:1"):
        x = torch.zeros(2, 2, device=where)
        assert Noisy().forward(x).device == x.device


@pytest.mark.parametrize("where", ["cpu", "cuda:1"])
def test_j13_likes_keep_device_dtype_and_size(where: str) -> None:
    x = torch.full((2, 3), 7, dtype=torch.int16, device=where)
    for like, value in ((torch.ones_like, 1), (torch.zeros_like, 0)):
        y = like(x)
        assert (y.device, y.dtype, y.size()) == (x.device, x.dtype, x.size())
        assert y.tolist() == [[value] * 3] * 2
