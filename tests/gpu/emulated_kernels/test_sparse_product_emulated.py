"""The kernel of CSR times strided matrices emulated beside the host body. No GPU needed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.driver.protocol import Launch
from flambeau.ops.linalg.sparse_product import csr_product
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)


def check(arrays: list[Any], tight: bool = True) -> None:
    found = csr_product.rule([emulated.meta_of(x, GPU) for x in arrays], ())
    launch = Launch(csr_product.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    for order in (0, 1):
        (got,), (want,) = (
            emulated.emulated(launch, arrays, tight, order),
            emulated.of_host(launch, arrays),
        )
        near = 1e-2 if want.dtype.itemsize == 2 else 1e-5
        np.testing.assert_allclose(got.astype(complex), want.astype(complex), near, near)


@pytest.mark.parametrize("kind", csr_product.dtypes, ids=str)
def test_samples(kind: Any) -> None:
    for inputs, _ in csr_product.samples(operator_properties.maker(kind, 0), kind):
        check(list(inputs))


def test_matrices_of_other_strides() -> None:
    rng = np.random.default_rng(0)
    dense = rng.random((9, 70)).T[::2]
    rows, columns = np.nonzero(rng.random((50, 35)) < 0.2)
    starts = np.searchsorted(rows, np.arange(51))
    check([starts, columns, rng.random((rows.size, 2))[:, 0], dense], tight=False)
