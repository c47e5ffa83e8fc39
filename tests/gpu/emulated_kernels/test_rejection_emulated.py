"""Numbers that are drawn by rejection: their kernels emulated beside the host bodies, which draw the same."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.core.meta import Meta
from flambeau.core.random import DrawGrid
from flambeau.driver.protocol import Launch
from flambeau.ops.op import Op
from flambeau.ops.random.gamma import standard_gamma
from flambeau.ops.random.random import poisson

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
GIVEN = [0.0, 0.02, 0.3, 0.999, 1.0, 1.5, 9.99, 10.0, 75.0, 1e4, np.nan]


@pytest.mark.parametrize("op", [standard_gamma, poisson], ids=lambda op: op.name)
@pytest.mark.parametrize("kind", [flambeau.float32, flambeau.float64])
def test_kernels_draw_what_the_host_draws(op: Op, kind: flambeau.dtype) -> None:
    given = np.repeat(np.array(GIVEN, kind.numpy), 40)
    meta = Meta.of(given.shape, (1,), kind, GPU)
    found = op.rule((meta,), (meta, DrawGrid(4, 2048)))
    launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    (got,) = emulated.emulated(launch, [given, 7, 2**34])
    (want,) = emulated.of_host(launch, [given, 7, 2**34])
    np.testing.assert_allclose(got, want, rtol=1e-6 if kind is flambeau.float32 else 1e-12)
    assert len(np.unique(got[80:])) > 60 and np.isnan(got[-40:]).all()
