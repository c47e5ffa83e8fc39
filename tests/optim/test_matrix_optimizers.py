"""Adafactor and Muon, whose rules take matrices as wholes, beside PyTorch's."""

import copy

import pytest
from support import from_torch, to_torch, torch

import flambeau
from flambeau import optim

SHAPES = {"Adafactor": ((3,), (4, 5), (2, 3, 4), ()), "Muon": ((4, 6), (6, 4), (5, 1))}
CASES = [
    ("Adafactor", {}),
    ("Adafactor", {"lr": 0.1, "weight_decay": 0.1, "d": 1.5, "eps": (1e-3, 1e-2)}),
    ("Adafactor", {"beta2_decay": -0.5, "maximize": True}),
    ("Muon", {"lr": 0.02}),
    ("Muon", {"nesterov": False, "adjust_lr_fn": "match_rms_adamw"}),
    ("Muon", {"momentum": 0.5, "weight_decay": 0.0, "ns_steps": 2, "ns_coefficients": (3.0, -4.0, 2.0)}),
]
IDS = [f"{name}-{'-'.join(given)}" for name, given in CASES]
# Muon's products are rounded to bfloat16, in whatever order they are summed.
TOLERANCE = {"Adafactor": 1e-5, "Muon": 1e-2}


def twins(name, given, device="cpu"):
    torch.manual_seed(0)
    theirs = [torch.randn(shape).requires_grad_() for shape in SHAPES[name]]
    ours = [from_torch(p.detach()).to(device).requires_grad_() for p in theirs]
    return theirs, ours, getattr(torch.optim, name)(theirs, **given), getattr(optim, name)(ours, **given)


def step(theirs, ours, a, b, seed):
    torch.manual_seed(seed)
    for p, q in zip(theirs, ours, strict=True):
        p.grad = torch.randn(p.shape)
        q.grad = from_torch(p.grad).to(q.device)
    a.step()
    b.step()


def near(ours, theirs, tolerance):
    ours = to_torch(ours.detach().cpu())
    assert ours.dtype is theirs.dtype and ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max()


def agree(theirs, ours, a, b, tolerance):
    for p, q in zip(theirs, ours, strict=True):
        near(q, p.detach(), tolerance)
        assert list(a.state[p]) == list(b.state[q])
        for key, value in a.state[p].items():
            near(b.state[q][key], value, tolerance)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_steps_are_pytorchs(name, given, device, monkeypatch):
    monkeypatch.setattr(flambeau.backends.cuda.matmul, "allow_tf32", False)
    with flambeau.virtual(1):
        both = twins(name, given, device)
        for seed in range(1, 11):
            step(*both, seed)
        agree(*both, TOLERANCE[name])
        assert repr(both[2]) == repr(both[3])


@pytest.mark.parametrize("name", SHAPES)
def test_checkpoints_go_both_ways(name):
    theirs, ours, a, b = twins(name, {})
    step(theirs, ours, a, b, 1)
    saved = copy.deepcopy(b.state_dict())
    assert saved["param_groups"] == a.state_dict()["param_groups"]
    fresh = getattr(optim, name)(ours)
    fresh.load_state_dict(saved)
    step(theirs, ours, a, fresh, 2)
    agree(theirs, ours, a, fresh, TOLERANCE[name])


def test_adafactor_never_waits_for_the_device():
    with flambeau.virtual(1):
        p = flambeau.ones(3, 4, device="cuda", requires_grad=True)
        p.grad = flambeau.full_like(p, 2.0)
        o = optim.Adafactor([p])
        flambeau.cuda.set_sync_debug_mode("error")
        try:
            o.step()
        finally:
            flambeau.cuda.set_sync_debug_mode("default")


REFUSALS = (
    ("Adafactor", {"lr": -1}),
    ("Adafactor", {"beta2_decay": 0.1}),
    ("Adafactor", {"eps": (-1.0, 0.1)}),
    ("Adafactor", {"eps": (None, -1.0)}),
    ("Adafactor", {"d": 0.5}),
    ("Adafactor", {"weight_decay": -1}),
    ("Muon", {"lr": -1}),
    ("Muon", {"momentum": -1}),
    ("Muon", {"weight_decay": -1}),
    ("Muon", {"adjust_lr_fn": "other"}),
    ("Muon", {"shape": (3,)}),
    ("Muon", {"ns_steps": 100}),
    ("Muon", {"ns_coefficients": (1.0, 2.0)}),
    ("Muon", {"kind": "complex64"}),
    ("Adafactor", {"kind": "complex64"}),
)


@pytest.mark.parametrize(("name", "given"), REFUSALS)
def test_refusals_are_pytorchs(name, given):
    told = []
    for room in (torch, flambeau):
        options = dict(given)
        p = room.ones(options.pop("shape", (2, 2)), dtype=getattr(room, options.pop("kind", "float32")))
        p.requires_grad_().grad = room.ones_like(p)
        with pytest.raises((ValueError, RuntimeError)) as refused:
            getattr(room.optim, name)([p], **options).step()
        told.append((refused.type, str(refused.value)))
    assert told[0] == told[1]
