"""Random calls of the public API behave as PyTorch's, or differ as `listed.py` says."""

import os

import pytest

pytest.importorskip("torch", reason="oracle PyTorch is not installed")
from hunt.api_calls import hunt
from hunt.functional_calls import calls as functional_calls
from hunt.listed import listed
from hunt.wrong_calls import calls as wrong_calls

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
NEVER = ("crash", "dead device", "internal")


def test_calls_differ_from_pytorch_only_as_listed():
    found = [finding for finding in hunt(seed=0, count=100_000 if EXHAUSTIVE else 1100) if not finding.reason]
    if EXHAUSTIVE:  # differences in values may be new among so many; these must not be
        found = [finding for finding in found if finding.kind in NEVER]
    assert not found, "\n".join(f"{f.kind}: {f.call}: {f.ours} (PyTorch: {f.theirs})" for f in found)


def test_functional_calls_with_one_wrong_argument_differ_only_as_listed():
    found = hunt(seed=0, count=40_000 if EXHAUSTIVE else 900, drawing=functional_calls)
    found = [finding for finding in found if not finding.reason]
    assert not found, "\n".join(f"{f.kind}: {f.call}: {f.ours} (PyTorch: {f.theirs})" for f in found)


def test_calls_with_one_wrong_argument_differ_only_as_listed():
    found = hunt(seed=0, count=40_000 if EXHAUSTIVE else 1200, drawing=wrong_calls)
    found = [finding for finding in found if not finding.reason]
    assert not found, "\n".join(f"{f.kind}: {f.call}: {f.ours} (PyTorch: {f.theirs})" for f in found)


def test_a_difference_that_is_not_listed_is_found():
    assert listed("refused", "add", "torch.add(float32[2], float32[2])\nfloat32[2]\nTypeError: add()") == ""
    assert listed("crash", "pinv", "hung for 20 s") == ""
