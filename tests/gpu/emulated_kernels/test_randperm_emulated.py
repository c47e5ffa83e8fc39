"""`randperm`: its kernels emulated beside the host body, places under one key among them."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.core import random
from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta
from flambeau.core.random import DrawGrid
from flambeau.driver.protocol import Launch
from flambeau.ops.random.random import randperm

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)


def same(n: int, seed: int, offset: int, kind: dtype = flambeau.int64, step: int = 1) -> None:
    meta = Meta.of((n,), (step,), kind, GPU)
    found = randperm.rule((), (meta, DrawGrid(4, 2048)))
    launch = Launch(randperm.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    (got,), (want,) = emulated.emulated(launch, [seed, offset]), emulated.of_host(launch, [seed, offset])
    assert np.array_equal(got, want), (n, seed)
    assert np.array_equal(np.sort(got.astype(np.int64)), np.arange(n))


@pytest.mark.parametrize("bits", [3, 32, 64])
def test_the_order_of_the_host_with_keys_of_each_width(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With three bits places share eight keys."""
    from flambeau.driver.cuda.index import permutation

    for module in (random, permutation):
        monkeypatch.setattr(module, "permutation_bits", lambda n: bits)
    same(100, 5, 12, *((flambeau.float32, 3) if bits == 3 else ()))
    if bits == 64:
        same(3000, 2**64 - 3, 2**34)
