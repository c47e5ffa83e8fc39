"""Kernels that read and write images channels last, emulated beside the host bodies."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.core.dtype import float32
from flambeau.core.flags import flags
from flambeau.driver.cuda.nn import direct_convolution
from flambeau.driver.protocol import Launch
from flambeau.ops.nn.convolution import Geometry
from flambeau.ops.nn.interpolation import Resampling
from flambeau.ops.nn.sliding_windows import Windows
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
IMAGE, VOLUME = (2, 3, 6, 4), (2, 3, 4, 6, 5)
TWOS, THREES = Windows((2, 2), (2, 2), (0, 0), (1, 1)), Windows((2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1))
CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...], tuple[Any, ...]]] = {
    "max_pool": ("max_pool", (IMAGE,), (TWOS,)),
    "max_pool of volumes": ("max_pool", (VOLUME,), (THREES,)),
    "avg_pool": ("avg_pool", (IMAGE,), (TWOS, True, None)),
    "avg_pool_backward": ("avg_pool_backward", ((2, 3, 3, 2),), (TWOS, True, None, (6, 4), True)),
    "adaptive_avg_pool": ("adaptive_avg_pool", (IMAGE,), ((4, 3),)),
    "adaptive_avg_pool of volumes": ("adaptive_avg_pool", (VOLUME,), ((1, 1, 1),)),
    "adaptive_avg_pool_backward": ("adaptive_avg_pool_backward", ((2, 3, 4, 3),), ((6, 4), True)),
    "adaptive_max_pool": ("adaptive_max_pool", (IMAGE,), ((4, 3),)),
    "interpolate": ("interpolate", (IMAGE,), (Resampling("linear", (8, 3), (None, None)),)),
    "interpolate volumes": ("interpolate", (VOLUME,), (Resampling("nearest", (5, 3, 7), (None,) * 3),)),
    "interpolate_backward": (
        "interpolate_backward", ((2, 3, 8, 3),), (Resampling("linear", (8, 3), (None, None)), (6, 4)),
    ),
    "pad": ("pad", (IMAGE,), ("reflect", ((0, 0), (0, 0), (1, 2), (2, 1)))),
    "cat": ("cat", (IMAGE, IMAGE), (1,)), "stack": ("cat", ((2, 1, 3, 6, 4),) * 2, (1, "stack")),
    "batch_norm_train": ("batch_norm_train", (IMAGE, (3,), (3,)), (1e-5, (True, True))),
    "batch_norm_infer": ("batch_norm_infer", (IMAGE, (3,), (3,)), (1e-5, (False, False))),
    "batch_norm_backward": ("batch_norm_backward", (IMAGE, IMAGE, (3,)), (1e-5, (True, True))),
    "batch_norm_backward_by_moments": (
        "batch_norm_backward_by_moments", (VOLUME, VOLUME, (3,), (3,), (3,)), (1e-5, (True, True)),
    ),
    "group_norm": ("group_norm", ((2, 4, 6, 4), (4,), (4,)), (2, 1e-5, (True, True))),
    "convolution": ("convolution", (IMAGE, (4, 3, 3, 3), (4,)), (Geometry((1, 1), (1, 1), (1, 1)),)),
    "relu_backward": ("relu_backward", (IMAGE, IMAGE), ()),
}  # fmt: skip
CONTIGUOUS = {"group_norm", "pad", "stack"}


@pytest.mark.parametrize("name", CASES)
def test_the_hosts_values_in_the_hosts_layout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record, shapes, params = CASES[name]
    op, make = table[record], operator_properties.maker(float32, 3)
    if record == "convolution":
        monkeypatch.setattr(emulated, "built", direct_convolution.convolution)
    arrays = [operator_properties.channels_innermost(make(*shape, low=0.1))[1] for shape in shapes]
    found = op.rule(
        [emulated.meta_of(x, GPU) for x in arrays],
        (*params, *["tf32" not in f and getattr(flags, f) for f in op.flags]),
    )
    assert found.outputs[0].channels_last is (name not in CONTIGUOUS)
    launch = Launch(op.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))
    pairs = zip(emulated.emulated(launch, arrays, True), emulated.of_host(launch, arrays), strict=True)
    for got, want in pairs:
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), 2e-5, 2e-5)
