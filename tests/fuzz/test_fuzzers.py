"""Readers of files, tokens and messages refuse hostile inputs with a documented error, in bounded time and memory.

`python tests/fuzz/fuzz.py NAME --seed S --count N` runs any number of inputs; FLAMBEAU_HUNT_SEED sets the seed here.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from typing import Any

import fuzz as fuzz_module
import harness
import pytest
import ranks
from fuzz import CALLS, READERS, fuzzer_named
from harness import Fuzzer, fuzz

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
SEED = int(os.environ.get("FLAMBEAU_HUNT_SEED", "20261122"))
COUNTS = {
    "checkpoints": 400,
    "generated": 400,
    "unpickling": 300,
    "snapshots": 60,
    "replays": 150,
    "tokens": 80,
    "profiles": 150,
    "messages": 1000,
    "scalars": 2000,
    "dimensions": 1000,
}


@pytest.mark.parametrize("name", [name for name in READERS if name not in CALLS])
def test_readers_refuse_hostile_inputs(name: str) -> None:
    found = fuzz(fuzzer_named(name), SEED, 0, COUNTS[name] * (100 if EXHAUSTIVE else 1))
    print(found.summary)
    assert not found.failures, found.report()
    assert found.counts["accepted"] and found.counts["refused"], found.summary


@pytest.mark.parametrize("name", CALLS)
def test_public_functions_refuse_hostile_arguments(name: str) -> None:
    """The draw depends on the public names, and these on what other tests import: so it has a process of its own."""
    count = COUNTS[name] * (100 if EXHAUSTIVE else 1)
    arguments = [fuzz_module.__file__, name, "--seed", str(SEED), "--count", str(count)]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 failures" in done.stdout, done.stdout


def test_store_follows_its_model_among_hostile_clients() -> None:
    found = fuzz_module.search_named("store")(SEED, 0, 1000 if EXHAUSTIVE else 12, 1)
    print(found.summary)
    assert not found.failures, found.report()
    assert found.counts["accepted"] > 100, found.summary


def test_files_of_killed_writers_are_whole() -> None:
    found = fuzz_module.search_named("kills")(SEED, 0, 12_000 if EXHAUSTIVE else 36)
    print(found.summary)
    assert not found.failures, found.report()


def test_map_location_is_as_in_pytorch() -> None:
    pytest.importorskip("torch", reason="oracle PyTorch is not installed")
    found = fuzz_module.search_named("map_locations")(SEED, 0, 20_000 if EXHAUSTIVE else 400)
    print(found.summary)
    assert not found.failures, found.report()
    assert found.counts["accepted"] > 50 < found.counts["refused"], found.summary


@pytest.mark.parametrize("backend", [*ranks.THREADS, *ranks.BACKENDS] if EXHAUSTIVE else [*ranks.THREADS])
def test_ranks_that_do_not_go_on_are_named(backend: str) -> None:
    found = ranks.search(SEED, 0, 1000, of=backend)
    print(found.summary)
    assert not found.failures, found.report()


def test_processes_that_are_killed_are_named() -> None:
    assert ranks.check(("nccl", "recv", "killed")) == ""


# -- the harness notices ------------------------------------------------------------------------------------


def failures_of(take: Any, *, mentions: str = "") -> list[str]:
    found = fuzz(Fuzzer("sample", lambda rng: rng.randbytes(4), take, (ValueError,), mentions), 1, 0, 3)
    assert found.summary.startswith("sample: seed 1, 3 inputs: ")
    assert all(line in found.report() for line in ("repeat: ", found.summary)) or not found.failures
    return [failure.why for failure in found.failures.values()]


def raising(error: BaseException) -> Any:
    def take(data: bytes) -> None:
        raise error

    return take


def test_harness_reports_undocumented_errors() -> None:
    assert failures_of(raising(ValueError("no such thing"))) == []
    assert "KeyError: 'x'" in failures_of(raising(KeyError("x")))[0]
    assert "MemoryError" in failures_of(raising(MemoryError()))[0]


def test_harness_reports_texts_that_are_long_or_name_no_file() -> None:
    assert "with 9000 letters" in failures_of(raising(ValueError("x" * 9000)))[0]
    assert "does not say 'x.pt'" in failures_of(raising(ValueError("damaged")), mentions="x.pt")[0]


def test_harness_ends_endless_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(data: bytes) -> None:
        while True:
            pass

    monkeypatch.setattr(harness, "_SECONDS", 0.01)
    assert "CPU time" in failures_of(spin)[0]
    monkeypatch.setattr(harness, "_SECONDS", 0.001)
    assert "or waiting" in failures_of(lambda data: time.sleep(100))[0]


def test_harness_reports_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_MOST_BYTES", 1 << 20)
    gc.collect()  # what other tests left is not freed meanwhile
    assert any("MiB of memory" in why for why in failures_of(lambda data: b"x" * (128 << 20)))


def test_inputs_repeat_by_seed_and_number() -> None:
    for name in READERS:
        draw = fuzzer_named(name).draw
        one, other = (draw(random.Random("5:0")) for _ in range(2))
        assert one == other
