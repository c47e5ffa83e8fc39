"""ZeroRedundancyOptimizer: the steps of the optimizer itself, its states spread over the ranks."""

from __future__ import annotations

from typing import Any

import pytest
from test_ddp import DDP, batches, make, same, start

import flambeau as torch
from flambeau import distributed as dist
from flambeau import nn
from flambeau.distributed.optim import ZeroRedundancyOptimizer
from flambeau.optim.zero_redundancy import _on_cpu
from flambeau.testing.ranks import ranks

RULES = {
    "AdamW": {"lr": 1e-2, "weight_decay": 0.1},
    "SGD": {"lr": 0.05, "momentum": 0.9},
    "Adagrad": {"lr": 0.05},
}


def arrays(net: Any) -> list[Any]:
    return [p.detach().cpu().numpy() for p in net.parameters()]


def stepped(rule: str, spread: bool, backend: str) -> Any:
    rank, size, device = start(backend)
    net = DDP(make(rank).to(device), gradient_as_bucket_view=rule == "SGD")
    groups = [{"params": list(net.parameters())[:2], "lr": 0.03}, {"params": list(net.parameters())[2:]}]
    kind = getattr(torch.optim, rule)
    optimizer = (
        ZeroRedundancyOptimizer(groups, kind, **RULES[rule]) if spread else kind(groups, **RULES[rule])
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for x, y in batches(6, 12):
        optimizer.zero_grad()
        (net(x[rank::size].to(device)) - y[rank::size].to(device)).square().mean().backward()
        optimizer.step()
        schedule.step()
    mine = len(optimizer.optim.state) if spread else len(optimizer.state)
    if spread:
        optimizer.consolidate_state_dict(to=1)
        if rank != 1:
            with pytest.raises(RuntimeError, match=rf"consolidate_state_dict\(to={rank}\)"):
                optimizer.state_dict()
    return arrays(net), mine, _on_cpu(optimizer.state_dict()) if rank == 1 else None


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("rule", RULES)
def test_steps_and_states_are_those_of_the_optimizer_itself(rule: str, backend: str) -> None:
    races = {"races": "error"} if backend == "nccl" else {}
    whole, spread = (ranks(stepped, 3, rule, s, backend, **races) for s in (False, True))
    for (a, _, _), (b, _, _) in zip(whole, spread, strict=True):
        assert same(a, b)
    assert (
        sum(mine for _, mine, _ in spread) == whole[0][1] and max(mine for _, mine, _ in spread) < whole[0][1]
    )
    theirs, ours = whole[1][2], spread[1][2]
    assert theirs["param_groups"] == ours["param_groups"]
    assert list(theirs["state"]) == list(ours["state"])
    for index, state in theirs["state"].items():
        for name, value in state.items():
            other = ours["state"][index][name]
            assert value.equal(other) if isinstance(value, torch.Tensor) else value == other


def test_training_goes_on_from_a_checkpoint() -> None:
    def body() -> Any:
        rank, size, _ = start("gloo")

        def fresh() -> tuple[Any, Any]:
            net = DDP(make(0))
            return net, ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-2)

        def go(net: Any, optimizer: Any, data: Any) -> None:
            for x, y in data:
                optimizer.zero_grad()
                (net(x[rank::size]) - y[rank::size]).square().mean().backward()
                optimizer.step()

        data = batches(6, 12)
        net, optimizer = fresh()
        go(net, optimizer, data[:3])
        optimizer.consolidate_state_dict()
        saved = [net.state_dict(), optimizer.state_dict()] if rank == 0 else [None, None]
        dist.broadcast_object_list(saved)
        again, second = fresh()
        again.load_state_dict(saved[0])
        second.load_state_dict(saved[1])
        for each in ((net, optimizer), (again, second)):
            go(*each, data[3:])
        return same(arrays(net), arrays(again))

    assert ranks(body, 2) == [True, True]


def test_groups_come_later_too_and_ranks_that_are_done_still_step() -> None:
    from flambeau.distributed.algorithms.join import Join

    def body() -> Any:
        rank, _, device = start()
        net = DDP(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(device))
        optimizer = ZeroRedundancyOptimizer(net.module[0].parameters(), torch.optim.SGD, lr=0.1)
        optimizer.add_param_group({"params": net.module[1].parameters(), "lr": 0.2})
        before = arrays(net)
        with Join([net, optimizer]):
            for _ in range(rank + 1):
                optimizer.zero_grad()
                net(torch.ones(2, 3, device=device)).sum().backward()
                optimizer.step()
        return arrays(net), all((a != b).any() for a, b in zip(before, arrays(net), strict=True))

    (one, changed), (other, _) = ranks(body, 2, races="error")
    assert changed and same(one, other)


def test_what_it_refuses_is_said_in_pytorchs_words() -> None:
    def body() -> None:
        start("gloo")
        p = nn.Parameter(torch.ones(2))
        for params, kind, text in (
            ([], ValueError, "ZeroRedundancyOptimizer got an empty parameter list"),
            (p, TypeError, r"should be an iterable of Tensors, but got torch.FloatTensor"),
            (3, TypeError, "should be an iterable of Tensors or dicts, but got int"),
            ([p, {}], TypeError, "`params` argument should be an iterable of Tensors or dicts"),
            ([{"lr": 1}], ValueError, "must have a 'params' key"),
        ):
            with pytest.raises(kind, match=text):
                ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.1)
        with pytest.raises(torch.NotSupportedError, match="overlap_with_ddp"):
            ZeroRedundancyOptimizer([p], torch.optim.SGD, overlap_with_ddp=True, lr=0.1)

    ranks(body, 1)
