"""SPEC B: operations across GPUs are refused, copies are not; peer access can be asked about and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from gpus import either, gpus

import flambeau as torch

pytestmark = either


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with gpus(devices=2):
        yield


ACROSS: dict[str, Callable] = {
    "add": lambda x, y: x + y,
    "add_": lambda x, y: x.add_(y),
    "matmul": lambda x, y: x @ y,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "cat": lambda x, y: torch.cat([x, y]),
    "out": lambda x, y: torch.add(x, x, out=y),
    "comparison": lambda x, y: x == y,
    "lerp": lambda x, y: torch.lerp(x, x, y),
    "index_select": lambda x, y: x.index_select(0, y[0].long() - 1),
    "quantile": lambda x, y: torch.quantile(x, y[0] / 2),
    "bincount": lambda x, y: torch.bincount(x[0].long(), y[0]),
}


@pytest.mark.parametrize("operation", ACROSS.values(), ids=ACROSS)
@pytest.mark.parametrize(
    "devices", [("cuda:0", "cuda:1"), ("cuda:1", "cuda:0"), ("cuda:0", "cpu"), ("cpu", "cuda:1")]
)
def test_b01_operations_across_devices_are_refused_and_change_nothing(
    operation: Callable, devices: tuple[str, str]
) -> None:
    x, y = (torch.full((3, 3), float(i + 1), device=device) for i, device in enumerate(devices))
    versions = x._version, y._version
    held = torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)
    with pytest.raises(RuntimeError, match=r"[Ee]xpected (all tensors|.*device)|must be on the same device"):
        operation(x, y)
    assert x.tolist() == [[1.0] * 3] * 3 and y.tolist() == [[2.0] * 3] * 3
    assert (x._version, y._version) == versions
    assert (torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)) == held


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_b01_an_index_on_another_gpu_is_refused(dtype: torch.dtype) -> None:
    """As in PyTorch: an index may lie on the CPU or with the tensor."""
    x, index = torch.arange(2.0), torch.tensor([1, 0]).to(dtype)
    for where, other in (("cuda:0", "cuda:1"), ("cuda:1", "cuda:0"), ("cpu", "cuda:1")):
        y = x.to(where)
        with pytest.raises(
            RuntimeError, match=rf"on cpu or on the same device as the indexed tensor \({where}\)"
        ):
            y[index.to(other)]
        with pytest.raises(RuntimeError, match="indices should be either"):
            y[index.to(other)] = 5.0
        assert y.tolist() == [0.0, 1.0]
        assert y[index].tolist() == y[index.to(where)].tolist() == x[index].tolist()


def test_b01_a_number_in_a_cpu_tensor_is_no_other_device() -> None:
    x = torch.ones(3, device="cuda:1")
    assert (x + torch.tensor(2.0)).tolist() == (torch.tensor(2.0) + x).tolist() == [3.0] * 3
    with pytest.raises(RuntimeError):
        x + torch.tensor(2.0, device="cuda:0")
    with pytest.raises(RuntimeError):
        x + torch.tensor([2.0])


@pytest.mark.parametrize("target", ["cuda:0", "cuda:1", "cpu"])
@pytest.mark.parametrize("source", ["cuda:0", "cuda:1", "cpu"])
def test_b02_copy_goes_between_all_devices(target: str, source: str) -> None:
    x, y = torch.zeros(5, device=target), torch.arange(5.0, device=source)
    assert x.copy_(y) is x
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert str(x.device) == target and str(y.device) == source


def test_b03_other_copy_like_methods_go_across() -> None:
    x = torch.arange(6.0, device="cuda:0").reshape(2, 3)
    for y in (x.to("cuda:1"), x.cuda(1), torch.empty_like(x, device="cuda:1").copy_(x), x.t().cuda(1).t()):
        assert y.device.index == 1 and y.tolist() == x.tolist()


def test_b04_operations_stay_refused_where_peer_access_is_possible() -> None:
    assert torch.cuda.can_device_access_peer(0, 1)
    x, y = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1")
    x.copy_(y)  # a copy that may use it
    with pytest.raises(RuntimeError, match="same device"):
        x + y


def test_b05_peer_access_takes_both_devices() -> None:
    assert torch.cuda.can_device_access_peer("cuda:0", torch.device("cuda:1")) is True
    assert torch.cuda.can_device_access_peer(0, 0) is False  # a device is no peer of its own
    with pytest.raises(TypeError):
        torch.cuda.can_device_access_peer(0)
