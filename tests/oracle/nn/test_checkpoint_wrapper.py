"""Wrapped submodules that are checkpointed, beside PyTorch's: structure, names, gradients."""

from __future__ import annotations

import functools
import importlib

import pytest
import torch

import flambeau

PLACE = "distributed.algorithms._checkpoint.checkpoint_wrapper"


def wrapped(m, policy):
    """Return a module with wrapped submodules and the wrapping module."""
    place = importlib.import_module(f"{m.__name__}.{PLACE}")
    wrap = importlib.import_module(f"{m.__name__}.distributed.fsdp.wrap")
    nn = m.nn
    net = nn.Sequential(
        nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.ModuleList([nn.Linear(4, 9)])
    )
    policies = {
        "check": {"check_fn": lambda x: isinstance(x, nn.Linear)},
        "all": {},
        "classes": {"auto_wrap_policy": wrap.ModuleWrapPolicy({nn.Sequential})},
        "size": {"auto_wrap_policy": functools.partial(wrap.size_based_auto_wrap_policy, min_num_params=17)},
        "lambda": {
            "auto_wrap_policy": functools.partial(
                wrap.lambda_auto_wrap_policy, lambda_fn=lambda x: "T" in str(x)
            )
        },
    }
    place.apply_activation_checkpointing(net, **policies[policy])
    return net


@pytest.mark.parametrize("policy", ["check", "all", "classes", "size", "lambda"])
def test_structure_and_names_are_pytorchs(policy):
    ours, theirs = wrapped(flambeau, policy), wrapped(torch, policy)
    assert str(ours) == str(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    ours.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("impl", ["REENTRANT", "NO_REENTRANT"])
def test_gradients_are_those_of_the_plain_module(impl):
    place = importlib.import_module(f"flambeau.{PLACE}")
    nn = flambeau.nn
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    net = place.checkpoint_wrapper(plain, getattr(place.CheckpointImpl, impl))
    x = flambeau.rand(2, 3, requires_grad=True)
    for each in (plain, net, place.offload_wrapper(plain)):
        with flambeau.virtual(1):  # for the pinned memory of the last one
            each(x).sum().backward()
        found = [p.grad for p in plain.parameters()]
        plain.zero_grad()
        if each is plain:
            wanted = found
        assert all((a == b).all() for a, b in zip(found, wanted, strict=True))
