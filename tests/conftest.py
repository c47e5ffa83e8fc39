"""Set-up for every test: Hypothesis profiles, one BLAS thread, no leftovers between tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
for name in (
    "FLAMBEAU_DRIVER",
    "FLAMBEAU_VIRTUAL_DEVICES",
    "FLAMBEAU_VIRTUAL_PROFILE",
    "FLAMBEAU_RACES",
    "FLAMBEAU_SCHEDULE",
):
    os.environ.pop(name, None)  # a test says itself which devices it wants

# Deterministic by default, so that a failure repeats; `make test-all` draws new and many more examples.
_common = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}
settings.register_profile("default", max_examples=60, derandomize=True, **_common)
settings.register_profile("exhaustive", max_examples=1000, **_common)
settings.load_profile(os.environ.get("FLAMBEAU_TESTS", "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--driver", choices=["cuda"], help="cuda: run the tests marked gpu, on real NVIDIA GPUs")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; runs with --driver=cuda")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--driver") != "cuda":
        for item in items:
            if item.get_closest_marker("gpu"):  # not a keyword: the folder is one, too
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
