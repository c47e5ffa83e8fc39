"""The explorer on programs with indexed access: classes by the places that indices name, against all legal orders."""

from __future__ import annotations

import random

import pytest
from test_classes import all_orders, recorded

import flambeau
import flambeau as torch
from flambeau.testing import conflicts
from flambeau.testing.conflicts import Conflicts
from flambeau.testing.explore import explore


def rows(*places):
    return torch.tensor(places, device="cuda")


def indexed(seed, changing):
    """A program of 6 commands on 3 streams over one tensor, with some waits; its indices may change as it runs."""

    def program():
        draw = random.Random(seed)
        streams = [torch.cuda.Stream() for _ in range(3)]
        x, kept = torch.arange(8.0, device="cuda").reshape(4, 2), []
        indices = [rows(draw.randrange(4), draw.randrange(4)) for _ in range(3)]
        other, ones = rows(0, 3), torch.ones(2, 2, device="cuda")
        torch.cuda.synchronize()
        for step in range(6):
            stream, index = draw.choice(streams), draw.choice(indices)
            with torch.cuda.stream(stream):
                how = draw.choice(["fill", "add", "copy", "get", "all", *["change"] * 2 * changing])
                if how == "fill":
                    x.index_fill_(0, index, 10.0 * step)
                elif how == "add":
                    x.index_add_(0, index, ones)
                elif how == "copy":
                    x.index_copy_(0, index, ones)
                elif how == "get":
                    kept.append(x[index])
                elif how == "all":
                    x[:, 1].mul_(2)
                else:
                    index.copy_(other)
            if draw.random() < 0.4:
                stream.wait_stream(draw.choice(streams))
        torch.cuda.synchronize()
        return [x, *indices, *kept]

    return program


@pytest.mark.parametrize("changing", [False, True])
def test_exploring_sees_every_outcome_that_some_order_has(changing):
    """Or says that other orders name other places."""
    verdicts = set()
    for seed in range(14):
        program = indexed(seed, changing)
        graph, races = recorded(program)
        orders = all_orders(graph)
        if len(orders) > 150:
            continue
        outcomes = set()
        for order in orders:
            with flambeau.virtual(devices=1, schedule="replay:" + graph.token(order), races="off"):
                outcomes.add(str([t.tolist() for t in program()]))
        found = explore(program, 10_000, ["exhaustive"], devices=1, check=False, shrink=False, stop=10_000)
        doubt = any("other indices" in text for text in found.violated)
        assert found.complete and (doubt or found.outcomes == len(outcomes)), (seed, changing)
        assert bool(races) or len(outcomes) == 1
        verdicts.add((doubt, len(outcomes) > 1))
    assert {(False, False), (False, True)} <= verdicts
    assert (True, True) in verdicts or not changing


@pytest.mark.parametrize("shift", [0, 1])
def test_disjoint_rows_are_one_class(shift):
    def program():
        x, streams = torch.zeros(8, 4, device="cuda"), [torch.cuda.Stream() for _ in range(2)]
        indices = [rows(0, 1), rows(2 - shift, 3)]
        torch.cuda.synchronize()
        for number, (stream, index) in enumerate(zip(streams, indices, strict=True)):
            with torch.cuda.stream(stream):
                x.index_fill_(0, index, number)
        torch.cuda.synchronize()
        return x

    found = explore(program, devices=1)
    assert (found.pairs, found.orders, found.outcomes) == (shift, 1 + shift, 1 + shift)


def test_pairs_beyond_the_limit_of_comparisons_count_as_meeting(monkeypatch):
    graph, _ = recorded(indexed(0, False))
    exact = Conflicts(graph).pairs
    monkeypatch.setattr(conflicts, "_COMPARED", 0)
    assert set(Conflicts(graph).pairs) > set(exact)
