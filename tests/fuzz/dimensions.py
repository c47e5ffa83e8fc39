"""Tensors of 31 to 100 dimensions, and numbers in place of tensors, for all public callables on both devices.

NumPy has at most 64 dimensions and kernels fewer: what computes with either must say so before a device is lost.
"""

from __future__ import annotations

import random

from harness import Fuzzer
from scalars import FUZZER as SCALARS
from scalars import Call, draw_call, take

_NDIMS = (31, 32, 33, 63, 64, 65, 66, 100)


def draw(rng: random.Random) -> Call:
    shape = [1] * rng.choice(_NDIMS)
    for _ in range(rng.choice((0, 1, 2))):
        shape[rng.randrange(len(shape))] = rng.choice((0, 2, 2, 3))
    return draw_call(
        rng, tuple(shape), rng.choice(("cpu", "cuda")), rng.choice((0, 0.2)), rng.choice((0, 0.3))
    )


FUZZER = Fuzzer("dimensions", draw, take, SCALARS.refusals)
