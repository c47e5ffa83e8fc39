"""Set-up for every test: Hypothesis profiles, one thread for BLAS and the oracle, no leftovers between tests."""

from __future__ import annotations

import gc
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the oracle's
os.environ.setdefault(
    "FLAMBEAU_FUSE_FROM", "0"
)  # small tensors show what compiled functions do with large ones
for name in (
    "FLAMBEAU_DRIVER",
    "FLAMBEAU_VIRTUAL_DEVICES",
    "FLAMBEAU_VIRTUAL_PROFILE",
    "FLAMBEAU_RACES",
    "FLAMBEAU_SCHEDULE",
):
    os.environ.pop(name, None)  # a test says itself which devices it wants

# Modules that the tests of several subfolders share lie in the folder above them.
sys.path[1:1] = [str(Path(__file__).parent / name) for name in ("distributed", "gpu", "observe", "oracle")]

import gpus  # noqa: E402 (the environment comes first)

import flambeau.testing.operator_properties  # noqa: E402, F401 (so that the table of operators has all records)

# Deterministic by default, so that a failure repeats; `make test-all` draws new and many more examples.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("default", max_examples=60, derandomize=True, **_common)
settings.register_profile("exhaustive", max_examples=1000, **_common)
settings.load_profile(os.environ.get("FLAMBEAU_TESTS", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--driver", choices=["cuda"], help="cuda: run tests marked gpu or either, on real NVIDIA GPUs"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; runs with --driver=cuda")
    config.addinivalue_line("markers", "either: runs on virtual GPUs, with --driver=cuda on real ones")
    config.addinivalue_line("markers", "alone: wants the GPU's memory to itself, no other process beside it")
    config.addinivalue_line("markers", "simulated: of an `either` module, means virtual GPUs alone")


def pytest_sessionstart() -> None:
    """Collect the tests without garbage collections: what they create stays."""
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpus.real = config.getoption("--driver") == "cuda"
    mark, reason = ("simulated", "of virtual GPUs alone") if gpus.real else ("gpu", "no NVIDIA GPU")
    for item in items:
        if item.get_closest_marker(mark):  # not a keyword: a folder is called gpu, too
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_runtest_setup() -> None:
    """The oracle's random numbers and precisions are a new process's, whatever ran before: a failure repeats."""
    oracle = sys.modules.get("torch")
    if oracle is not None:
        oracle.manual_seed(0)
        oracle.set_float32_matmul_precision("highest")
        for scope in (oracle.backends, oracle.backends.cuda.matmul, oracle.backends.cudnn):
            scope.fp32_precision = "none"
        oracle.backends.cudnn.allow_tf32 = True


_TOO_FEW = r"invalid device ordinal|Invalid (peer )?device id"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test of several GPUs is skipped where a real machine has too few."""
    try:
        return (yield)
    except (RuntimeError, AssertionError) as error:
        if gpus.real and item.get_closest_marker("either") and re.search(_TOO_FEW, str(error)):
            pytest.skip(f"too few GPUs: {error}")
        raise


_open = [0]  # what earlier tests have left open; each has failed for it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A test that leaves a switch changed or a mode open fails, not the one after it that finds it so."""
    from flambeau.core.flags import Flags, flags
    from flambeau.tensor import interception

    yield
    if _collection["nanoseconds"] > _LONG_NS:
        _freeze()
    if interception.count > _open[0]:
        gc.collect()  # wrapper tensors in cycles, before some test freezes them
    fresh, left = Flags(), {}
    for name in Flags.__annotations__.keys() - {"_subscribers", "launch_blocking"}:  # that is the machine's
        if getattr(flags, name) != getattr(fresh, name):
            left[name] = getattr(flags, name)
            setattr(flags, name, getattr(fresh, name))
    opened, _open[0] = interception.count - _open[0], interception.count
    assert not left, f"left changed by this test: {left}"
    assert opened <= 0, f"left open by this test: {opened} dual levels, dispatch modes or wrapper tensors"


def pytest_collection_finish() -> None:
    """Freeze what exists before the first test, so that collections look at what came since."""
    gc.enable()
    _freeze()
    gc.callbacks.append(_note_collection)


# Plans, modules and recorded programs stay until the end of the session. Collections that tests and captures of graphs
# ask for would take longer with each test: 0.5 s in the end. So what has survived is frozen between two tests.
_LONG_NS = 30_000_000
_collection = {"start": 0, "nanoseconds": 0}  # the last full collection


def _note_collection(phase: str, details: dict[str, int]) -> None:
    if details["generation"] == 2:
        now = time.thread_time_ns()
        if phase == "start":
            _collection["start"] = now
        else:
            _collection["nanoseconds"] = now - _collection["start"]


def _freeze() -> None:
    gc.unfreeze()  # what was frozen may be garbage by now: closed machines keep their address space
    gc.collect()
    gc.freeze()
    _collection["nanoseconds"] = 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count what stands behind the operators: the table's records, and the tests that run them beside PyTorch.

    And what the soundness suite has looked at, with its seed.
    """
    from flambeau.testing.operator_properties import summary
    from flambeau.testing.soundness.hunt import summed_up

    oracle = {
        outcome: sum(
            report.nodeid.startswith("tests/oracle/") for report in reports if hasattr(report, "nodeid")
        )
        for outcome, reports in terminalreporter.stats.items()
    }
    failures = oracle.get("failed", 0) + oracle.get("error", 0)
    cases = oracle.get("passed", 0) + failures
    if cases:
        terminalreporter.write_line(f"{summary()}; {cases} oracle cases, {failures} failures")
    if oracle.get("skipped", 0):
        terminalreporter.write_line(f"{oracle['skipped']} oracle cases skipped")
    reports = [report for each in terminalreporter.stats.values() for report in each]
    calls = [report for report in reports if getattr(report, "when", "") == "call"]
    properties = [found for report in calls for found in report.user_properties]
    if hunts := [counts for name, counts in properties if name == "soundness"]:
        terminalreporter.write_line(summed_up(hunts))
