"""Random calls of in-place methods behave as PyTorch's, or differ as `listed.py` says."""

import os

import pytest

pytest.importorskip("torch", reason="oracle PyTorch is not installed")
from hunt.inplace_calls import hunt

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"


def test_calls_in_place_differ_only_as_listed():
    found = [finding for finding in hunt(seed=0, count=50_000 if EXHAUSTIVE else 1000) if not finding.reason]
    assert not found, "\n".join(f"{f.kind}: {f.write}: {f.ours} (PyTorch: {f.theirs})" for f in found)
