"""Functions of torch.distributed.checkpoint.state_dict, against PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
from both import run_both

import flambeau as torch
from flambeau.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

PROGRAM = """
import copy, random, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions, get_model_state_dict, get_optimizer_state_dict, get_state_dict, set_model_state_dict,
    set_optimizer_state_dict, set_state_dict,
)
from torch.nn import BatchNorm1d, Linear, Sequential

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
draw = random.Random(3)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1), "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1), "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adam of tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)),
}

def shown(value):
    if isinstance(value, torch.Tensor):
        return [round(x, 3) for x in value.double().flatten().tolist()], str(value.dtype)
    if isinstance(value, dict):
        return {str(k): shown(v) for k, v in sorted(value.items(), key=str) if k != "decoupled_weight_decay"}
    return [shown(v) for v in value] if isinstance(value, (list, tuple)) else value

def attempt(what, *args, **kwargs):
    try:
        return what(*args, **kwargs)
    except (RuntimeError, ValueError, KeyError, NotImplementedError) as error:
        print("   ", type(error).__name__, str(error)[:40] * (type(error) is not KeyError))

def build(shared, frozen, wrap):
    torch.manual_seed(0)
    net = Sequential(Linear(2, 2), BatchNorm1d(2), Sequential(Linear(2, 2), Linear(2, 2)))
    with torch.no_grad():
        for n, value in enumerate(net.parameters()):
            value.copy_(torch.arange(float(value.numel())).reshape(value.shape) / 8 + n)
    if shared:
        net[2][1].weight = net[0].weight
    net[2][0].weight.requires_grad = not frozen
    if wrap == "inner":
        net[2] = torch.compile(net[2])
    if wrap in ("compile", "both"):
        net = torch.compile(net)
    return torch.nn.parallel.DistributedDataParallel(net) if wrap in ("ddp", "both", "inner") else net

def optimizers_of(net, name, split):
    params = list(net.parameters())
    if split == "groups":
        return OPTIMIZERS[name]([{"params": params[:2]}, {"params": params[2:], "lr": 0.5}])
    if split == "two":
        return [OPTIMIZERS[name](params[:2]), OPTIMIZERS[name](params[2:])]
    return OPTIMIZERS[name](params)

def step(net, optimizers):
    for n, value in enumerate(net.parameters()):
        value.grad = torch.full_like(value, n + 1.0) if value.requires_grad else None
    for each in optimizers if isinstance(optimizers, list) else [optimizers]:
        each.step()
        each.zero_grad()

for case in range(40):
    name, split = draw.choice(list(OPTIMIZERS)), draw.choice(["one", "groups", "two"])
    shared = name != "sgd" and draw.random() < 0.3
    facts = shared, draw.random() < 0.3, draw.choice(["none", "ddp", "compile", "both", "inner"])
    net = build(*facts)
    if name == "sgd":  # PyTorch cannot load its empty state into other groups
        split = "one"
    names = ["cpu_offload", "ignore_frozen_params", "flatten_optimizer_state_dict"]
    names += ["full_state_dict"] * (name != "sgd")
    given = {k: draw.random() < 0.3 for k in names} | {"strict": draw.random() < 0.7}
    if given["flatten_optimizer_state_dict"]:  # together PyTorch raises KeyError for other groups
        given["full_state_dict"] = False
    options = StateDictOptions(**given)
    optimizers = optimizers_of(net, name, split)
    if draw.random() < 0.6:
        step(net, optimizers)
    print(case, facts, name, split, options)
    states = attempt(get_state_dict, net, optimizers, options=options)
    print(shown(states))
    if states is None:
        continue
    other = build(facts[0] and options.flatten_optimizer_state_dict, facts[1], draw.choice(["none", "ddp", "both"]))
    theirs = optimizers_of(other, name, draw.choice([split, split, "one"]))
    model_state, optimizer_state = copy.deepcopy(states)
    if draw.random() < 0.3:
        model_state.pop(draw.choice(sorted(model_state)))
    if draw.random() < 0.3 and optimizer_state.get("state"):
        optimizer_state["state"].pop(draw.choice(sorted(optimizer_state["state"])))
    if draw.random() < 0.5:
        attempt(set_optimizer_state_dict, other, theirs, optimizer_state, options=options)
        print(shown(attempt(set_model_state_dict, other, model_state, options=options)))
    else:
        both = dict(model_state_dict=model_state, optim_state_dict=optimizer_state)
        print(shown(attempt(set_state_dict, other, theirs, options=options, **both)))
    print(shown(other.state_dict()), shown(attempt(get_optimizer_state_dict, other, theirs)))
plain = build(False, False, "ddp")
for keep in (True, False):
    part = get_model_state_dict(plain, submodules={plain.module[2]}, options=StateDictOptions(keep_submodule_prefixes=keep))
    print(shown(part))
attempt(get_model_state_dict, torch.nn.ReLU())
attempt(set_model_state_dict, plain, {})
attempt(get_optimizer_state_dict, plain, ())
attempt(get_optimizer_state_dict, torch.nn.Linear(1, 1), torch.optim.SGD(plain.parameters(), lr=1.0))
attempt(get_model_state_dict, plain, options=StateDictOptions(broadcast_from_rank0=True))
print(shown(get_state_dict(plain, ())))
dist.destroy_process_group()
"""


def test_state_dicts_equal_those_of_pytorch(tmp_path: Path) -> None:
    run_both(tmp_path, PROGRAM, 90)


def test_broadcast_and_renamed_parts_raise() -> None:
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    with pytest.raises(torch.NotSupportedError, match="broadcasts no state dicts"):
        get_model_state_dict(torch.nn.Linear(1, 1), options=options)
    renaming = type("Renaming", (torch.nn.Linear,), {"_fqn_modifiers": lambda self: {}})
    with pytest.raises(torch.NotSupportedError, match="renames its parts"):
        get_model_state_dict(renaming(1, 1))
