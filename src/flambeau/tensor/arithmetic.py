"""Pointwise functions, methods, dunders and in-place forms, bound from the operator table."""

from __future__ import annotations

from typing import Any

from flambeau.ops import pointwise_arithmetic as arithmetic
from flambeau.tensor import call as calls
from flambeau.tensor.tensor import Tensor

def __add__(self, other):
    if other.__class__ is Tensor:
        return calls.binary(arithmetic.add, self, other)
    return calls.call(arithmetic.add, (self, other))

Tensor.__add__ = __add__
