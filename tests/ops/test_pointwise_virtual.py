"""Every pointwise operator gives the same bits on a virtual device as on the CPU."""

from __future__ import annotations

import pytest

import flambeau
from flambeau.ops.pointwise import Pointwise
from flambeau.testing.operators import cases, check_virtual

POINTWISE = sorted({op.name for op, _ in cases() if isinstance(op, Pointwise)})


@pytest.fixture(scope="module")
def where():
    with flambeau.virtual(devices=1, profile="a100-40g"):
        yield flambeau.device("cuda:0")


@pytest.mark.parametrize("name", POINTWISE)
def test_a_virtual_device_computes_the_same_bits(name, where):
    compared = sum(check_virtual(op, kind, where) for op, kind in cases() if op.name == name)
    assert compared >= 8
