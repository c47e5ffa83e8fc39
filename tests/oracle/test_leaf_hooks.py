"""What the hooks of leaves hear, beside PyTorch."""

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
