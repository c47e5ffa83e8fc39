"""The fused gradients: their kernels emulated beside the host bodies."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated

import flambeau
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch
from flambeau.ops.op import Op, table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
NAMES = (
    "nll_loss_backward",
    "ctc_loss_backward",
    "softmax_backward",
    "log_softmax_backward",
    "layer_norm_backward",
    "rms_norm_backward",
    "group_norm_backward",
    "batch_norm_backward",
    "batch_norm_backward_by_moments",
)
NEAR = {"float64": 1e-12, "float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}


def launch_of(op: Op, arrays: list[Any], params: Any, out_step: int = 1) -> Launch:
    chosen = tuple([getattr(flags, name) for name in op.flags])
    operands = [
        emulated.meta_of(x, GPU) if isinstance(x, np.ndarray | np.generic) else type(x) for x in arrays
    ]
    found = op.rule(operands, (*params, *chosen))
    outputs = [
        Meta.of(m.shape, tuple([s * out_step for s in m.strides]), m.dtype, GPU) for m in found.outputs
    ]
    return Launch(op.kernel, tuple(outputs), found.inputs, found.params, capability=(9, 0))


def check(launch: Launch, arrays: list[Any], tight: bool = True) -> None:
    found = emulated.emulated(launch, arrays, tight)
    for got, want, meta in zip(found, emulated.of_host(launch, arrays), launch.outputs, strict=True):
        near = NEAR[meta.dtype.name]
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), near, near)


def cases(op: Op, most: int = 99) -> Iterator[tuple[list[Any], Any]]:
    """Every sample in float32, the first in bfloat16: each source is compiled, which takes its time."""
    for kind in [kind for kind in op.dtypes if kind.name in ("float32", "bfloat16")]:
        samples = op.samples(operator_properties.maker(kind, 0), kind)
        for inputs, params in islice(samples, most if kind.name == "float32" else 1):
            yield list(inputs), params


@pytest.mark.parametrize("name", NAMES)
def test_the_hosts_values_to_rounding(name: str) -> None:
    for arrays, params in cases(table[name]):
        check(launch_of(table[name], arrays, params), arrays)


@pytest.mark.parametrize("name", NAMES)
def test_any_layout(name: str) -> None:
    op = table[name]
    inputs, params = next(iter(op.samples(operator_properties.maker(flambeau.float32, 1), flambeau.float32)))
    check(launch_of(op, list(inputs), params, out_step=2), list(inputs))
    turned = [operator_properties.reversed_dims(x)[1] if isinstance(x, np.ndarray) else x for x in inputs]
    check(launch_of(op, turned, params), turned, tight=False)


@pytest.mark.parametrize("name", ("softmax_backward", "log_softmax_backward"))
@pytest.mark.parametrize("shape, dim", (((2, 17000), 1), ((3, 700), 1), ((300, 2), 0)))
def test_softmax_of_long_rows(name: str, shape: Any, dim: int) -> None:
    make = operator_properties.maker(flambeau.float32, 4)
    arrays = [make(*shape), make(*shape)]
    check(launch_of(table[name], arrays, (dim,)), arrays)


@pytest.mark.parametrize("given", ((True, True), (False, False)))
@pytest.mark.parametrize(
    "name, shape, first",
    (
        ("layer_norm_backward", (3, 17000), 1), ("layer_norm_backward", (6,), 1), ("rms_norm_backward", (3, 17000), 1),
        ("group_norm_backward", (2, 4, 90, 95), 2),
        ("batch_norm_backward", (5, 3, 4, 6), None), ("batch_norm_backward", (300, 3), None),
    ),
)  # fmt: skip
def test_normalization_of_many_elements(name: str, shape: Any, first: Any, given: Any) -> None:
    if name.startswith("rms") and given[1]:
        given = (given[0], False)
    make = operator_properties.maker(flambeau.float32, 4)
    weight = shape[-1:] if first == 1 else shape[1:2]
    arrays = [make(*shape), make(*shape), *([make(*weight)] if given[0] else [])]
    params = (1e-5, given) if first is None else (first, 1e-5, given)
    check(launch_of(table[name], arrays, params), arrays)


@pytest.mark.parametrize("shape", ((300, 7), (5000, 3), (6, 5, 4, 3), (9,)))
@pytest.mark.parametrize("reduction", ("none", "mean"))
def test_nll_of_many_targets(shape: Any, reduction: str) -> None:
    make = operator_properties.maker(flambeau.float32, 4)
    at = 1 if len(shape) > 1 else 0
    target = np.random.default_rng(1).integers(-1, shape[at], (*shape[:at], *shape[at + 1 :]))
    target = np.asarray(target)
    arrays = [make(*target.shape) if reduction == "none" else make(), target, make(shape[at], low=1, high=2)]
    check(launch_of(table["nll_loss_backward"], arrays, (reduction, -1, shape)), arrays)


def test_nll_of_no_targets() -> None:
    make = operator_properties.maker(flambeau.float32, 4)
    arrays = [make(), np.full(4, 2), make(3, low=1, high=2)]
    check(launch_of(table["nll_loss_backward"], arrays, ("mean", 2, (4, 3))), arrays)


# -- ctc_loss_backward ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", (False, True))
def test_ctc_of_many_samples(zero: bool) -> None:
    rng = np.random.default_rng(3)
    probs = np.log(rng.dirichlet(np.ones(7), (20, 5))).astype(np.float32)
    targets = rng.integers(0, 7, (5, 6))
    given, wanted = np.array([20, 13, 4, 0, 1]), np.array([6, 3, 6, 0, 0])
    loss = launch_of(table["ctc_loss"], [probs, targets, given, wanted], (2, zero))
    (losses,) = emulated.of_host(loss, [probs, targets, given, wanted])
    assert np.isinf(losses).any()
    arrays = [rng.standard_normal(5).astype(np.float32), probs, targets, given, wanted, losses]
    check(launch_of(table["ctc_loss_backward"], arrays, (2, zero)), arrays)
