"""Same program, same seed: the same trace and the same values, whatever the hash seed and the collector do."""

import gc
import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from programs import STEPS, run

import flambeau
import flambeau as torch

HERE = Path(__file__).parent


def outcomes(collect=False):
    """What fixed programs give; with the garbage collector let loose at random points."""
    rng, other = random.Random(5), random.Random(6)
    # Each step may come, also those of families of their own.
    names = [name for name, (weight, *_) in STEPS.items() for _ in range(weight or 1)]

    def between():
        if collect and other.random() < 0.3:
            gc.collect()

    found = []
    for schedule in ["earliest", "random:3", "adversarial:1", "pct:2:3"] * 3:
        program = [(rng.choice(names), *[rng.randrange(12) for _ in range(4)]) for _ in range(40)]
        outcome = run(program, schedule, between=between)
        values = hashlib.sha256(repr(outcome.values).encode()).hexdigest()  # pages of numbers say no more
        found.append((outcome.trace, values, outcome.race_free))
    return found


def test_the_same_in_processes_of_other_hash_seeds():
    path = os.pathsep.join([str(HERE), str(HERE.parents[1] / "src")])
    text = "from test_repeats import outcomes; print(outcomes())"
    said = [
        subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "77")
    ]
    assert said[0] == said[1] == f"{outcomes()}\n"


def test_the_collector_changes_nothing_where_there_are_no_cycles():
    gc.freeze()  # what other tests left is not looked at each time
    assert outcomes(collect=True) == outcomes()


def test_a_race_error_changes_nothing_and_the_program_goes_on():
    with flambeau.virtual(devices=1, races="error"):
        x, side = torch.ones(100, device="cuda"), torch.cuda.Stream()
        before, version = torch.cuda.memory_allocated(), x._version
        for racing in ("x + 1", "x.mul_(2)", "x.fill_(7)", "x.to('cpu', non_blocking=True)"):
            with torch.cuda.stream(side), pytest.raises(flambeau.RaceError):
                eval(racing, {"x": x})
            assert torch.cuda.memory_allocated() == before
            assert x._version == version
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert (x + 1).tolist() == [2.0] * 100
        del x
        assert torch.cuda.memory_allocated() == 0
