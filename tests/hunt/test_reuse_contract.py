"""Verdicts on freed memory: those of a reference that knows no address, the same wherever the allocator puts tensors.

FLAMBEAU_HUNT_SEEDS sets how many random programs run. The first seed is drawn anew each time, and named by a failure.
"""

from __future__ import annotations

import itertools
import os
import random

import pytest
from reuse_programs import PLACEMENTS, SCHEDULES, Reference, program, run

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
COUNT = int(os.environ.get("FLAMBEAU_HUNT_SEEDS", "20000" if EXHAUSTIVE else "300"))
FRESH = random.SystemRandom().randrange(1 << 32)
VALUES = COUNT // 10  # programs whose values are compared
ATTEMPTS = 60  # schedules and placements under which a race is looked for


@pytest.fixture(scope="module")
def programs():
    """Random programs by seed, with their references."""
    found = {seed: program(seed) for seed in range(FRESH, FRESH + COUNT)}
    return {seed: (steps, Reference(steps)) for seed, steps in found.items()}


def test_verdicts_are_the_references_under_every_placement(programs):
    for seed, (steps, reference) in programs.items():
        is_racy = reference.conflicts() or reference.reuses() or reference.lent()
        for placement in PLACEMENTS:
            certificate = run(steps, placement=placement, races="warn").certificate
            assert certificate.race_free is not is_racy, f"seed {seed}, {placement}: {certificate}"


def test_reports_are_the_same_under_every_placement(programs):
    """The same first command and the same fix, not only the same verdict; which later allocation is named may differ."""
    for seed, (steps, reference) in programs.items():
        if reference.reuses() and not reference.conflicts():
            runs = [run(steps, placement=placement, races="warn").certificate for placement in PLACEMENTS]
            pairs = [{(r.first.number, r.fix.call) for r in c.races} for c in runs]
            assert pairs[0] == pairs[1] == pairs[2], f"seed {seed}"


def test_certified_programs_give_equal_bits(programs):
    clean = [s for s, (_, r) in programs.items() if not (r.conflicts() or r.reuses() or r.lent())]
    for seed in clean[:VALUES]:
        steps, _ = programs[seed]
        first = run(steps).values
        for schedule, placement in itertools.product(SCHEDULES, PLACEMENTS):
            assert run(steps, schedule, placement).values == first, f"seed {seed}, {schedule}, {placement}"


def test_most_reported_reuses_change_a_value_somewhere(programs):
    """The rest need a history of the cache that these few attempts do not draw."""
    racy = [s for s, (_, r) in programs.items() if r.reuses() and not r.conflicts()]
    racy += [s for s in range(10**6, 10**6 + 400) if not racy and Reference(program(s)).reuses()]
    shown = [seed for seed in racy[:VALUES] if differs(program(seed))]
    assert len(shown) >= 0.7 * len(racy[:VALUES]), f"of {racy[:VALUES]} only {shown}"


def differs(steps):
    """Whether some schedule and placement, after some history of the cache, gives another value."""
    first = run(steps).values
    kinds = itertools.cycle(("adversarial:{}", "random:{}", "pct:{}:2"))
    return any(
        run(steps, kind.format(n), f"random:{n}", past=n).values != first
        for n, kind in zip(range(ATTEMPTS), kinds, strict=False)
    )


def test_the_reference_knows_the_plain_cases():
    use = [("alloc", 0, 0, 0), ("fill", 0, 0, 0), ("wait", 1, 0, 0), ("fill", 0, 1, 0)]
    again = [("alloc", 1, 0, 1), ("fill", 1, 0, 0)]
    assert Reference([*use, ("free", 0, 0, 0), *again]).reuses()
    assert not Reference([*use, *again]).reuses()
    assert not Reference([*use, ("record_stream", 0, 1, 0), ("free", 0, 0, 0), *again]).reuses()
    assert not Reference([*use, ("free", 0, 0, 0), ("wait", 0, 1, 0), *again]).reuses()
    assert not Reference([*use, ("free", 0, 0, 0), ("alloc", 1, 0, 8), ("fill", 1, 0, 0)]).reuses()
    assert not Reference([*use, ("free", 0, 0, 0), ("empty_cache", 0, 0, 0), *again]).reuses()
    assert Reference([("alloc", 2, 0, 0), *use, ("free", 0, 0, 0), ("empty_cache", 0, 0, 0), *again]).reuses()
