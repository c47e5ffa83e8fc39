"""With the library, bits do not depend on an output's layout: Note [Native bodies and layouts] in bodies.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native_kit import Array, arrays_of, calls, launch_of, run, spoiled
from seeds import EXHAUSTIVE
from test_native_elements import OPS
from test_native_rows import FAMILIES

from flambeau.core.device import CPU
from flambeau.core.dtype import from_numpy
from flambeau.core.meta import Meta
from flambeau.driver import protocol
from flambeau.driver.host.kernels.native import bodies
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.protocol import Launch, NativeBody, host_body
from flambeau.ops.op import table
from flambeau.testing.operator_properties import Layout, plain, reversed_dims, tensor_of, with_gaps

LAYOUTS = (plain, reversed_dims, with_gaps)


@pytest.fixture(autouse=True)
def native(library: KernelLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "library", lambda: library)
    monkeypatch.setattr(protocol, "native_code", lambda: bodies)


@settings(max_examples=1000 if EXHAUSTIVE else 60)
@given(data=st.data())
def test_transposed_copies_equal_numpys(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from((np.uint8, np.float16, np.float32, np.float64)))
    sizes = st.lists(st.sampled_from((1, 2, 8, 9, 63, 64, 65, 130)), min_size=2, max_size=4)
    shape = data.draw(sizes.filter(lambda sizes: np.prod(sizes) < 200_000))
    order = data.draw(st.permutations(range(len(shape))))
    whole = np.random.default_rng(0).integers(0, 99, [n + 1 for n in shape]).astype(kind)
    gaps = data.draw(st.booleans())
    x = (whole if gaps else whole[tuple(slice(n) for n in shape)].copy())[tuple(slice(n) for n in shape)]
    if data.draw(st.booleans()):
        x = x[::-1]
    x = x.transpose(order)
    layout = data.draw(st.sampled_from((plain, with_gaps)))
    out = layout(np.zeros(x.shape, kind))[1]
    launch = Launch(table["copy"].kernel, (meta_of(out),), (meta_of(x),))
    body = host_body(launch)
    body([out], [x])
    np.testing.assert_array_equal(out, x)
    if layout is plain and x.itemsize in x.strides[:-1] and min(x.shape) >= 8:
        assert isinstance(body, NativeBody)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@given(data=st.data())
def test_running_sums_and_products_have_numpys_bits(name: str, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from((np.float32, np.float64)))
    shape = data.draw(st.lists(st.sampled_from((1, 2, 7, 65, 1030)), min_size=1, max_size=2))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = random.uniform(-2, 2, shape).astype(kind)
    x = spoiled(x, random) if data.draw(st.booleans()) else x
    launch = launch_of(table[name], [tensor_of(x, plain)], (-1, None))
    body = host_body(launch)
    assert isinstance(body, NativeBody)
    assert_bits(run(body, launch, [x]), run(launch.kernel.host(launch), launch, [x]))


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
