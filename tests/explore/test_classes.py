"""The explorer's classes against brute force: all legal orders of small random programs, one by one."""

from __future__ import annotations

import random

import pytest

import flambeau
import flambeau as torch
from flambeau.runtime import system
from flambeau.testing.conflicts import Conflicts
from flambeau.testing.explore import explore


def small(seed):
    """A program of 7 commands on 3 streams over 3 tensors, with some waits; it returns all values."""

    def program():
        draw = random.Random(seed)
        streams = [torch.cuda.Stream() for _ in range(3)]
        tensors = [torch.full((2,), float(i + 1), device="cuda") for i in range(3)]
        torch.cuda.synchronize()
        for step in range(7):
            stream = draw.choice(streams)
            with torch.cuda.stream(stream):
                target, source = draw.choice(tensors), draw.choice(tensors)
                if draw.random() < 0.4:
                    target.mul_(2).remainder_(97) if step % 2 else target.add_(step)
                else:
                    torch.add(source, step, out=target)
            if draw.random() < 0.4:
                stream.wait_stream(draw.choice(streams))
        torch.cuda.synchronize()
        return tensors

    return program


def recorded(program):
    with flambeau.virtual(devices=1, races="warn") as machine:
        graph = machine.driver.record()
        program()
        races = system.accelerator().detector.certificate().races
    return graph, races


def all_orders(graph):
    """Every legal order of a graph's commands, by plain search."""
    orders = []

    def go(done, order):
        settled = True
        while settled:  # waits and markers happen as soon as they can
            settled = [s for s in graph.steps if not s.free and s.at not in done and set(s.needs) <= done]
            done = done | {s.at for s in settled}
        ready = [s for s in graph.steps if s.free and s.at not in done and set(s.needs) <= done]
        if not ready:
            orders.append(order)
        for step in ready:
            go(done | {step.at}, [*order, step])

    go(frozenset(), [])
    return orders


def reaches(graph):
    """What comes before each step, by closure."""
    before = []
    for step in graph.steps:
        before.append(set(step.needs).union(*[before[need] for need in step.needs]))
    return before


@pytest.mark.parametrize("seed", range(12))
def test_there_is_one_class_for_each_way_round_that_some_legal_order_has(seed):
    graph, _ = recorded(small(seed))
    conflicts = Conflicts(graph)
    classes = [conflicts.signature(graph.oldest(forced)) for forced in conflicts.classes()]
    assert len(classes) == len(set(classes))
    assert set(classes) == {conflicts.signature(order) for order in all_orders(graph)}


@pytest.mark.parametrize("seed", range(12, 30))
def test_the_pairs_are_those_that_conflict_and_that_closure_leaves_unordered(seed):
    graph, races = recorded(small(seed))
    before = reaches(graph)
    expected = set()
    for a in graph.steps:
        for b in graph.steps[a.at + 1 :]:
            clash = any(
                p == q and (writes or also) for p, _, _, writes in a.accesses for q, _, _, also in b.accesses
            )
            if clash and a.at not in before[b.at] and b.at not in before[a.at]:
                expected.add((a.at, b.at))
    assert set(Conflicts(graph).pairs) == expected
    assert bool(races) == bool(expected)  # the detector, which never saw the graph, agrees


@pytest.mark.parametrize("seed", range(30, 36))
def test_exploring_sees_every_outcome_that_some_order_has(seed):
    program = small(seed)
    graph, _ = recorded(program)
    outcomes = set()
    for order in random.Random(seed).sample(orders := all_orders(graph), min(len(orders), 60)):
        with flambeau.virtual(devices=1, schedule="replay:" + graph.token(order)):
            outcomes.add(str([t.tolist() for t in program()]))
    found = explore(program, 100_000, ["exhaustive"], devices=1, check=False, shrink=False, stop=100_000)
    assert found.complete
    assert found.outcomes >= len(outcomes)
    if len(orders) <= 60:
        assert found.outcomes == len(outcomes)
