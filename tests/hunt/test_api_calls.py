"""Random calls of the public API: none ends in an error of Flambeau's own code, or in a lost device."""

import os

import pytest

pytest.importorskip("torch", reason="oracle PyTorch is not installed")
from api_calls import hunt

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
NEVER = ("crash", "dead device", "internal")
KNOWN = {"nanmedian"}  # differs, as docs/operators.md says, among the calls of the short run


def test_no_call_loses_the_device_or_shows_internals():
    findings = hunt(seed=0, count=100_000 if EXHAUSTIVE else 1100)
    worst = [finding for finding in findings if finding.kind in NEVER]
    if not EXHAUSTIVE:
        worst += [f for f in findings if f.kind in ("refused", "form", "value") and f.call.name not in KNOWN]
    assert not worst, "\n".join(f"{f.kind}: {f.call}: {f.ours} (PyTorch: {f.theirs})" for f in worst)
