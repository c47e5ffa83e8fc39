"""With the library, bits do not depend on an output's layout: Note [Native bodies and layouts] in bodies.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native_kit import Array, arrays_of, calls, launch_of, run
from seeds import EXHAUSTIVE
from test_native_elements import OPS
from test_native_rows import FAMILIES

from flambeau.core.device import CPU
from flambeau.core.dtype import from_numpy
from flambeau.core.meta import Meta
from flambeau.driver.api import Launch, NativeBody, host_body
from flambeau.driver.host.kernels.native import bodies
from flambeau.driver.host.kernels.native.library import KernelLibrary
from flambeau.ops.op import table
from flambeau.testing.operators import Layout, plain, reversed_dims, tensor_of, with_gaps

LAYOUTS = (plain, reversed_dims, with_gaps)


@pytest.fixture(autouse=True)
def native(library: KernelLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "library", lambda: library)


@pytest.mark.parametrize("name", sorted({*OPS, *FAMILIES}))
@settings(max_examples=100 if EXHAUSTIVE else 5, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_layouts_of_operands_do_not_change_bits(name: str, data: st.DataObject) -> None:
    op = table[name]
    inputs, params = data.draw(calls(op, (plain,), (1, 2, 5, 17, 64, 1030)), label="call")
    try:
        launch = launch_of(op, inputs, params)
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        assume(False)
    assume(any(x.numel for x in launch.outputs))
    arrays = arrays_of(launch, inputs)
    chosen = st.sampled_from(LAYOUTS)
    outs = [data.draw(chosen, label="output") for _ in launch.outputs]
    # the order of a reduction may depend on the layout of its input
    ins = [plain if FAMILIES.get(name) == "folds" else data.draw(chosen, label="input") for _ in arrays]
    try:
        want = run(host_body(launch), launch, arrays)
    except RuntimeError:  # the operator refuses these values
        assume(False)
    there, moved = laid_out(launch, arrays, outs, ins)
    assert_bits(run(host_body(there), there, moved), want)
    # a body of contiguous operands that runs on other arrays, as a step of a fused kernel does
    if isinstance(body := host_body(launch), NativeBody):
        results = [array_in(layout, np.zeros_like(x)) for x, layout in zip(want, outs, strict=True)]
        with np.errstate(all="ignore"):
            body(results, moved)
        assert_bits(results, want)


def array_in(layout: Layout, x: Array) -> Array:
    return layout(x)[1]


def laid_out(
    launch: Launch, arrays: list[Any], outs: Sequence[Layout], ins: Sequence[Layout]
) -> tuple[Launch, list[Any]]:
    """Return a launch with its operands in other layouts, and the input arrays in these."""
    moved = [
        array_in(layout, x) if isinstance(x, np.ndarray) else x for x, layout in zip(arrays, ins, strict=True)
    ]
    outputs = [
        tensor_of(np.zeros(x.shape, x.dtype.numpy), layout).meta
        for x, layout in zip(launch.outputs, outs, strict=True)
    ]
    inputs = [
        meta_of(x) if isinstance(x, np.ndarray) else same
        for x, same in zip(moved, launch.inputs, strict=True)
    ]
    return launch.with_(outputs=tuple(outputs), inputs=tuple(inputs)), moved


def meta_of(x: Array) -> Meta:
    kind = from_numpy(x.dtype)
    return Meta.of(x.shape, tuple([step // kind.itemsize for step in x.strides]), kind, CPU)


def assert_bits(found: Sequence[Array], want: Sequence[Array]) -> None:
    for one, other in zip(found, want, strict=True):
        assert one.tobytes() == other.tobytes(), (one, other)
