"""The soundness suite: random programs of the day, their verdicts, their outcomes, and their synchronizations deleted.

FLAMBEAU_HUNT_SEED repeats a run. `python -m flambeau.testing.soundness` hunts for as long as one likes.
"""

from __future__ import annotations

import gc
from weakref import WeakSet

import numpy as np
import pytest
from seeds import EXHAUSTIVE, session_seed

from flambeau.driver.virtual.driver import VirtualDriver
from flambeau.driver.virtual.memory.arena import Arena
from flambeau.observe.detector import Detector
from flambeau.observe.order import Order
from flambeau.testing.soundness import Hunt, Program, Step, generate
from flambeau.testing.soundness.hunt import share_forced

CHUNKS, EACH = (400, 250) if EXHAUSTIVE else (2, 30)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fresh_programs_are_judged_right(chunk, record_property, request):
    hunt = Hunt(session_seed())
    hunt.run(chunk * EACH, (chunk + 1) * EACH)
    record_property("soundness", dict(hunt.counts))
    again = f"repeat: FLAMBEAU_HUNT_SEED={hunt.seed} {request.node.nodeid}"
    assert not hunt.found, f"{hunt.report()}\n{again}"
    if EXHAUSTIVE:  # shares of few reports say little
        assert share_forced(hunt.counts) >= 0.85, f"{hunt.report(unforced=True)}\n{again}"
        assert hunt.counts["repaired"] >= 19 * hunt.counts["still racy"], f"{hunt.report()}\n{again}"
    else:
        assert share_forced(hunt.counts) >= 0.6, f"{hunt.report(unforced=True)}\n{again}"
        assert hunt.counts["repaired"] >= 4 * (hunt.counts["still racy"] - 1), f"{hunt.report()}\n{again}"


def test_memory_of_closed_machines_is_given_back(monkeypatch):
    """Each has gigabytes of address space, of which a process that hunts for long would run out."""
    alive: WeakSet[Arena] = WeakSet()
    begin = Arena.__init__

    def __init__(self, *args, **given):
        begin(self, *args, **given)
        alive.add(self)

    monkeypatch.setattr(Arena, "__init__", __init__)
    hunt = Hunt(20261123)
    hunt.run(0, 20)
    gc.collect()
    assert hunt.counts["runs"] > 50 and len(alive) < 10


# -- the judge is judged ------------------------------------------------------------------------------------


def warshall(program: Program) -> np.ndarray:
    """Return the transitive closure of a program's nodes, from single edges."""
    before = program.model.before
    n = len(before)
    edges = np.array([[bool(before[j] >> i & 1) for j in range(n)] for i in range(n)], bool).reshape(n, n)
    closed = edges.copy()
    for k in range(n):
        closed |= np.outer(closed[:, k], closed[k])
    assert not closed.diagonal().any()
    return closed == edges


def test_the_model_is_transitively_closed():
    for seed in range(40):
        assert warshall(generate(seed)).all(), f"program {seed}"


def new(name: str, stream: str) -> Step:
    return Step("new", (name, (64,), 3), stream)


RACING = [new("x", "main"), Step("fill", ("x", 5), "s1")]
ORDERS = {
    "wait_stream": [Step("wait_stream", ("s1", "main"))],
    "wait_event": [Step("record", ("e0", "main")), Step("wait_event", ("s1", "e0"))],
    "stream": [Step("synchronize_stream", ("main",))],
    "event": [Step("record", ("e0", "main")), Step("synchronize_event", ("e0",))],
    "device": [Step("synchronize_device", (0,))],
    "item": [Step("item", ("x",), "main")],
}
OTHERS = {
    "the other way": [Step("wait_stream", ("main", "s1"))],
    "an event without a record": [Step("wait_event", ("s1", "e0"))],
    "another device": [Step("synchronize_device", (1,))],
}


@pytest.mark.parametrize("name", ORDERS)
def test_each_wait_orders_in_the_model(name):
    assert not Program((RACING[0], *ORDERS[name], RACING[1])).model.races
    assert Program((*RACING, *ORDERS[name])).model.races


@pytest.mark.parametrize("name", OTHERS)
def test_other_waits_do_not_order_in_the_model(name):
    assert Program((RACING[0], *OTHERS[name], RACING[1])).model.races


def test_overlap_counts_bytes_in_the_model():
    views = [
        Step("slice", ("y", "x", 0, 64, 2)),
        Step("slice", ("z", "x", 1, 64, 2)),
        Step("slice", ("u", "x", 0, 32, 1)),
    ]
    begin = (new("x", "main"), *views, Step("wait_stream", ("s1", "main")), Step("fill", ("y", 5), "main"))
    assert not Program((*begin, Step("fill", ("z", 7), "s1"))).model.races
    assert Program((*begin, Step("fill", ("u", 7), "s1"))).model.races


FREED = [
    new("x", "main"), Step("wait_stream", ("s1", "main")), Step("update", ("x", 5), "s1"), Step("delete", ("x",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("between", "races"),
    [
        ([], True),
        ([Step("wait_stream", ("main", "s1"))], False),
        ([Step("synchronize_stream", ("s1",))], False),
        ([Step("empty_cache")], False),
        ([new("y", "main"), Step("empty_cache")], True),
    ],
)
def test_freed_memory_may_be_anywhere_in_its_pool(between, races):
    small, large = new("z", "main"), Step("new", ("z", (270_000,), 3), "main")
    assert bool(Program((*FREED, *between, small)).model.races) is races
    assert not Program((*FREED, large)).model.races  # of another pool
    assert not Program((*FREED, new("z", "s1"))).model.races  # of another stream


def test_recorded_streams_protect_in_the_model():
    recorded = (*FREED[:3], Step("record_stream", ("x", "s1")), FREED[3], new("z", "main"))
    assert not Program(recorded).model.races


# -- what is broken is found ----------------------------------------------------------------------------------


def hunt_until_found(seeds: int = 60) -> set[str]:
    hunt = Hunt(1, stop=1)
    hunt.run(0, seeds)
    return {problem.kind for _, problem in hunt.found}


def test_a_detector_that_forgets_events_is_found(monkeypatch):
    monkeypatch.setattr(Order, "wait", lambda self, stream, event, site: None)
    assert "verdict" in hunt_until_found()


def test_a_detector_that_overlooks_conflicts_is_found(monkeypatch):
    monkeypatch.setattr(Detector, "_conflict", lambda self, *args: None)
    assert "verdict" in hunt_until_found()


def test_waits_that_the_device_forgets_are_found(monkeypatch):
    """The detector sees each wait, the device none: certified programs print other bits."""
    monkeypatch.setattr(VirtualDriver, "stream_wait", lambda self, stream, event: None)
    assert "bits" in hunt_until_found()


def test_problems_are_shrunk_and_printed_as_programs(monkeypatch):
    monkeypatch.setattr(Detector, "_conflict", lambda self, *args: None)
    hunt = Hunt(1, stop=1)
    hunt.run(0, 60)
    (_, problem), *_ = hunt.problems
    assert len(problem.program.steps) <= 8
    compile(problem.program.source, "program.py", "exec")
    assert problem.program.source in hunt.report()
    assert f"seed {hunt.seed}" in hunt.summary
