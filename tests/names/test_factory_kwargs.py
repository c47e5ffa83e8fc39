"""`torch.nn.factory_kwargs` beside PyTorch's."""

from __future__ import annotations

from itertools import product

import torch

import flambeau


def answer(root, kwargs):
    try:
        return root.nn.factory_kwargs(kwargs)
    except TypeError:
        return "TypeError"


def test_factory_kwargs_equal_pytorchs():
    parts = [{}, {"device": "cpu"}, {"dtype": 1, "memory_format": 2}, {"bias": True}]
    cases = [None, *parts, *[a | {"factory_kwargs": b} for a, b in product(parts, parts)]]
    ours, theirs = ([answer(root, case) for case in cases] for root in (flambeau, torch))
    assert ours == theirs and "TypeError" in ours
