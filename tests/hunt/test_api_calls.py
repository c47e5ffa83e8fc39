"""Random calls of the public API: none ends in an error of Flambeau's own code, or in a lost device."""

import os

import pytest

pytest.importorskip("torch", reason="oracle PyTorch is not installed")
from api_calls import hunt

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
NEVER = ("crash", "dead device", "internal")


def test_no_call_loses_the_device_or_shows_internals():
    findings = hunt(seed=0, count=100_000 if EXHAUSTIVE else 1200)
    worst = [finding for finding in findings if finding.kind in NEVER]
    assert not worst, "\n".join(f"{f.kind}: {f.call}: {f.ours} (PyTorch: {f.theirs})" for f in worst)
