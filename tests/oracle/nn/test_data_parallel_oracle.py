"""DataParallel beside PyTorch on the CPU, which runs each device's part of the batch on copies of the buffers."""

from __future__ import annotations

import pytest
from support import from_torch, to_torch, torch

import flambeau
from flambeau import nn
from flambeau.nn.parallel.scatter_gather import scatter_kwargs


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flambeau.backends.cuda.matmul, "allow_tf32", False)  # PyTorch's CPU has none


def nets() -> tuple[object, object]:
    """The same network, PyTorch's and ours."""
    torch.manual_seed(0)
    theirs, ours = (
        room.Sequential(
            room.Linear(6, 12), room.BatchNorm1d(12), room.Sequential(room.GELU(), room.Linear(12, 12)),
            room.LayerNorm(12), room.Linear(12, 4),
        )
        for room in (torch.nn, nn)
    )  # fmt: skip
    ours.load_state_dict({name: from_torch(t) for name, t in theirs.state_dict().items()})
    return theirs, ours.cuda()


def in_parts(net: torch.nn.Module, x: torch.Tensor, devices: int) -> torch.Tensor:
    """What PyTorch's DataParallel computes: the first part changes the buffers, the others those of copies."""
    params, buffers = dict(net.named_parameters()), dict(net.named_buffers())
    before = {name: b.clone() for name, b in buffers.items()}
    outputs = [
        torch.func.functional_call(
            net, {**params, **(buffers if i == 0 else {n: b.clone() for n, b in before.items()})}, part
        )
        for i, part in enumerate(x.chunk(devices))
    ]
    return torch.cat(outputs)


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("size", [8, 11])
def test_training_is_pytorchs(devices: int, size: int) -> None:
    with flambeau.virtual(devices=devices, races="error"):
        theirs, ours = nets()
        model = nn.DataParallel(ours)
        optimizers = [
            room.optim.SGD(n.parameters(), lr=0.1, momentum=0.9)
            for room, n in ((torch, theirs), (flambeau, ours))
        ]
        for step in range(4):
            x = torch.randn(size, 6, generator=torch.Generator().manual_seed(step))
            losses = in_parts(theirs, x, devices).square().mean(), model(from_torch(x)).square().mean()
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            torch.testing.assert_close(to_torch(losses[1].detach()), losses[0].detach(), rtol=2e-5, atol=2e-6)
        for name, t in theirs.state_dict().items():
            torch.testing.assert_close(to_torch(ours.state_dict()[name]), t, rtol=5e-5, atol=5e-6, msg=name)


class Odd(dict):
    pass


@pytest.mark.parametrize(
    ("inputs", "kwargs"),
    [
        ((), {}), ((1, "two"), None), (([1, (2, [])], {"a": {}}), {"k": None}), ((), {"x": [1]}),
        ((Odd(a=1),), {"deep": {"er": (1,)}}),
    ],
    ids=range(5),
)  # fmt: skip
def test_what_is_no_tensor_is_scattered_as_in_pytorch(inputs: tuple[object, ...], kwargs: object) -> None:
    expected = torch.nn.parallel.scatter_gather.scatter_kwargs(inputs, kwargs, [0, 1, 2])
    found = scatter_kwargs(inputs, kwargs, [0, 1, 2])
    assert found == expected and repr(found) == repr(expected)
    assert [[type(x) for x in part] for part in found[0]] == [[type(x) for x in part] for part in expected[0]]


def test_the_public_names_are_pytorchs() -> None:
    missing = {n for n in torch.nn.parallel.__all__ if not hasattr(nn.parallel, n)}
    assert not missing
    for name in ("DataParallel", "replicate", "scatter", "gather", "parallel_apply", "data_parallel"):
        ours, theirs = getattr(nn.parallel, name), getattr(torch.nn.parallel, name)
        assert ours.__module__ == theirs.__module__.replace("torch", "flambeau", 1)
