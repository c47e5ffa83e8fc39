"""What the hooks of leaves hear, beside PyTorch."""

import pytest
from support import torch

import flambeau


def told(torch):
    """What the hooks of two leaves hear when only what came of one of them is used."""
    used, unused = (torch.ones(2, requires_grad=True) for _ in range(2))

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.set_materialize_grads(False)
            return a * 1, b * 1

        @staticmethod
        def backward(ctx, g, h):
            return g, h

    heard, leaves = [], []
    first, _ = Both.apply(used * 2, unused * 2)
    for name, leaf in (("used", used), ("unused", unused)):
        leaves.append(leaf.expand_as(leaf).grad_fn.next_functions[0][0])
        leaves[-1].register_hook(
            lambda given, got, name=name: heard.append(
                (name, given, [g if g is None else g.tolist() for g in got])
            )
        )
        leaf.register_post_accumulate_grad_hook(lambda p, name=name: heard.append((name, p.grad is None)))
    first.sum().backward()
    return sorted(heard, key=str)


def test_a_leaf_without_a_gradient_tells_its_hooks_as_in_pytorch():
    assert told(flambeau) == told(torch)


def rested(torch, change):
    """What hooks hear, and the gradient, of a leaf that required none for a while; `change` is done to it meanwhile."""
    heard = []
    leaf = torch.ones(2, requires_grad=True)
    leaf.register_hook(lambda g: heard.append("tensor") or g * 5)
    leaf.register_post_accumulate_grad_hook(lambda p: heard.append(p.grad is None))
    node = (leaf * 1).grad_fn.next_functions[0][0]
    node.register_prehook(lambda given: heard.append("before"))
    node.register_hook(lambda given, got: heard.append("after"))
    early = (leaf * 2).sum()
    leaf.sum().backward()
    leaf.requires_grad_(False)
    held = leaf.grad.tolist()
    change(torch, leaf, early)
    leaf.requires_grad_()
    same = (leaf * 1).grad_fn.next_functions[0][0] is node
    (leaf * 3).sum().backward()
    return heard, held, same, leaf.grad.tolist(), str(leaf.grad.dtype)


CHANGES = {
    "nothing": lambda torch, leaf, early: None,
    "backward": lambda torch, leaf, early: early.backward(),
    "detached": lambda torch, leaf, early: leaf.requires_grad_().detach_(),
    "gradient set": lambda torch, leaf, early: setattr(leaf, "grad", torch.full((2,), 7.0)),
    "other data": lambda torch, leaf, early: setattr(leaf, "data", torch.full((2,), 4.0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_leaf_that_required_no_gradient_for_a_while_keeps_its_hooks(name):
    assert rested(flambeau, CHANGES[name]) == rested(torch, CHANGES[name])
