"""`torch.hash_tensor` against PyTorch's: the bits of every element count, so any difference shows."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support import torch as oracle

import flambeau

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "uint16",
          "uint64", "float8_e5m2")  # fmt: skip
DIMS: tuple[Any, ...] = ((), (None,), ([],), (0,), (-1,), (1,), (5,), ((0, 1),), ((1, -1),), ((0, 0),))


def outcome(module: Any, values: Any, dtype: str, swapped: bool, dim: Any, keepdim: bool) -> Any:
    x = module.tensor(values.tolist(), dtype=module.float64).reshape(values.shape).to(getattr(module, dtype))
    try:
        found = module.hash_tensor(x.transpose(0, 1) if swapped else x, *dim, keepdim=keepdim)
    except (RuntimeError, IndexError, NotImplementedError) as error:
        return type(error)
    return str(found.dtype).partition(".")[2], tuple(found.shape), found.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_drawn_hashes_are_pytorchs(seed: int) -> None:
    rng = random.Random(seed)
    for at in range(40):
        shape = [rng.choice([0, 1, 2, 3, 5]) for _ in range(rng.randrange(4))]
        values = np.asarray(np.random.RandomState(at).randn(*shape)) * np.float64(9)
        swapped = len(shape) > 1 and rng.random() < 0.3
        given = np.asarray(values), rng.choice(DTYPES), swapped, rng.choice(DIMS), at % 2 > 0
        assert outcome(flambeau, *given) == outcome(oracle, *given), given


def test_out_mode_and_devices_are_checked() -> None:
    x = flambeau.tensor([[1.5, -2.0], [float("nan"), 0.0]])
    target = flambeau.zeros(2, dtype=flambeau.uint64)
    assert flambeau.hash_tensor(x, 1, out=target) is target
    assert target.tolist() == x.hash_tensor(1).tolist() == oracle.tensor(x.tolist()).hash_tensor(1).tolist()
    with pytest.raises(RuntimeError, match="Expected result to be of dtype uint64, but got Float"):
        flambeau.hash_tensor(x, out=flambeau.zeros(()))
    with pytest.raises(RuntimeError, match="Unknown hash_tensor mode: 1"):
        flambeau.hash_tensor(x, mode=1)
    with flambeau.virtual():
        assert x.cuda().hash_tensor(0).tolist() == x.hash_tensor(0).tolist()
