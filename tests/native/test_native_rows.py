"""Native reductions, formulas over lists and kernels of rows compute what the reference implementations do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native_kit import Array, arrays_of, calls, launch_of, run, spoiled
from seeds import EXHAUSTIVE

import flambeau
from flambeau.driver.host.kernels.native import (
    added_rows,
    bodies,
    folds,
    lists,
    row_bodies,
    source_generator,
    top_elements,
)
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.protocol import Fold, Launch, Lists, NativeBody, Routine
from flambeau.ops.index.sort import stable_order
from flambeau.ops.op import Op, table
from flambeau.testing.operator_properties import plain, with_gaps

ROWS = {builder for builder, _ in row_bodies._KERNELS}


def family(op: Op) -> str:
    """Return which kind of native kernels an operator may have; "" for none here."""
    form = op.kernel.cuda
    if isinstance(form, Routine) and form.builder in ROWS:
        return "rows"
    kinds = [kind for kind in op.dtypes if kind in source_generator.TYPES]
    launches = (
        [x for kind in kinds for x in source_generator._launches(op, kind)]
        if isinstance(form, Fold | Lists)
        else []
    )
    if isinstance(form, Lists) and any(lists.kernel_of(x, form) for x in launches):
        return "lists"
    return "folds" if isinstance(form, Fold) and any(folds.kernel_of(x, form) for x in launches) else ""


# The diagonal that `trace` reads is not contiguous, so NumPy sums it. Steps of `_counted_adam` are tensors.
FAMILIES = {
    name: family(op) for name, op in table.items() if family(op) and name not in ("trace", "_counted_adam")
}


@pytest.mark.parametrize("name", sorted(FAMILIES))
@settings(max_examples=300 if EXHAUSTIVE else 25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_native_kernel_computes_what_the_reference_does(
    name: str, library: KernelLibrary, data: st.DataObject
) -> None:
    op = table[name]
    layouts = (plain,) if FAMILIES[name] == "rows" else (plain, plain, plain, with_gaps)
    inputs, params = data.draw(calls(op, layouts, (1, 2, 17, 64, 100, 1030, 4100)), label="call")
    try:
        launch = launch_of(op, inputs, params)
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        assume(False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "library", lambda: library)
        native = bodies.native_body(launch)
    assume(native is not None)
    assert isinstance(native, NativeBody)
    arrays = arrays_of(launch, inputs)
    assert [(x.shape, x.strides) for x in arrays if isinstance(x, np.ndarray)] == native._layouts[
        len(launch.outputs) :
    ]
    want = run(launch.kernel.host(launch), launch, arrays)
    for one, other in zip(run(native, launch, arrays), want, strict=True):
        compare(one, other, launch, arrays, exact=FAMILIES[name] == "lists")


def compare(found: Array, want: Array, launch: Launch, arrays: list[Any], exact: bool) -> None:
    """Compare results: bits of formulas and integers, otherwise by the precision of a sum of the inputs."""
    kind = launch.outputs[0].dtype
    if not kind.is_floating_point:
        np.testing.assert_array_equal(found, want)
        return
    with np.errstate(invalid="ignore"):
        one, other = found.astype(np.float64), want.astype(np.float64)
        inputs = [x.astype(np.float64) for x in arrays if isinstance(x, np.ndarray)]
    if exact:
        np.testing.assert_array_equal(one, other)
        return
    largest = max([np.abs(x[np.isfinite(x)]).max(initial=0) for x in inputs])
    if largest > 1e30:  # a sum may or may not overflow on the way
        return
    np.testing.assert_array_equal(np.isnan(one), np.isnan(other))
    finite = np.isfinite(other)
    np.testing.assert_array_equal(one[~finite], other[~finite])
    scale = max(largest, np.abs(other[finite]).max(initial=0))
    tolerance = 16 * max(flambeau.finfo(kind).eps, 2.0**-23) * scale
    np.testing.assert_allclose(one[finite], other[finite], rtol=1e-6, atol=tolerance)


def test_long_sums_are_as_precise_as_pairwise_ones(library: KernelLibrary) -> None:
    x = np.random.default_rng(0).uniform(0, 1, 1 << 20).astype(np.float32)
    launch = launch_of(table["sum"], [flambeau.from_numpy(x)], (None, False, None))
    form = launch.kernel.cuda
    assert isinstance(form, Fold)
    body = folds.body(library, launch, form)
    exact = x.astype(np.float64).sum()
    assert abs(run(body, launch, [x])[0] - exact) < 2 * abs(np.spacing(np.float32(exact)))


@pytest.mark.parametrize("shape", [(1 << 17, 16), (40_000, 300), (65, 4097)])
def test_sums_of_long_columns_are_precise(shape: tuple[int, int], library: KernelLibrary) -> None:
    x = np.random.default_rng(0).uniform(0, 1, shape).astype(np.float32)
    launch = launch_of(table["sum"], [flambeau.from_numpy(x)], ((0,), False, None))
    form = launch.kernel.cuda
    assert isinstance(form, Fold)
    (found,) = run(folds.body(library, launch, form), launch, [x])
    exact = x.astype(np.float64).sum(0)
    assert (np.abs(found - exact) <= 8 * np.spacing(exact.astype(np.float32))).all()


@settings(max_examples=300 if EXHAUSTIVE else 40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_added_rows_have_the_bits_of_ufunc_at(library: KernelLibrary, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from((np.float32, np.float64, np.int32)))
    shape = data.draw(st.lists(st.sampled_from((1, 3, 17, 40)), min_size=1, max_size=3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    places = random.integers(0, shape[dim], data.draw(st.sampled_from((0, 1, 5, 100))))
    given_shape = (*shape[:dim], places.size, *shape[dim + 1 :])
    out, source = ((random.normal(size=size) * 9).astype(kind) for size in (shape, given_shape))
    if data.draw(st.booleans()):
        source = source[..., ::-1]
    want = out.copy()
    np.add.at(want, (*[slice(None)] * dim, places), source)
    if added_rows.add_rows(library, out, dim, places, source):
        np.testing.assert_array_equal(out, want)
    else:
        assert kind is np.int32


@settings(max_examples=300 if EXHAUSTIVE else 60)
@given(data=st.data())
def test_top_elements_begin_the_stable_order(library: KernelLibrary, data: st.DataObject) -> None:
    kind = data.draw(
        st.sampled_from((np.float32, np.float64, np.int64, np.int32, np.int16, np.int8, np.uint8))
    )
    n, largest = data.draw(st.sampled_from((1, 2, 15, 16, 17, 64, 300))), data.draw(st.booleans())
    count = data.draw(st.integers(1, min(n, 64)))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    x = random.integers(0, data.draw(st.sampled_from((2, 9, 120))), (3, n)).astype(kind)
    x = spoiled(x, random) if data.draw(st.booleans()) else x
    x = np.sort(x) if data.draw(st.booleans()) else x
    found = top_elements.top_elements(library, x, count, largest)
    places = stable_order(x, -1, largest)[:, :count]
    assert found is not None
    np.testing.assert_array_equal(found[1], places)
    assert found[0].tobytes() == np.take_along_axis(x, places, -1).tobytes()


def test_long_lists_of_top_elements_are_left_to_numpy(library: KernelLibrary) -> None:
    x = np.zeros((2, 200), np.float32)
    assert top_elements.top_elements(library, x, 65, True) is None
    assert top_elements.top_elements(library, x.astype(np.complex64), 5, True) is None


@pytest.mark.parametrize("shape", [(1, 300), (7, 64), (300, 65)])
def test_rows_of_infinities_are_what_pytorch_makes_of_them(
    shape: tuple[int, int], library: KernelLibrary
) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x[0] = -np.inf
    x[-1, 0] = np.inf
    for name in ("softmax", "log_softmax"):
        launch = launch_of(table[name], [flambeau.from_numpy(x)], (1, None))
        form = launch.kernel.cuda
        assert isinstance(form, Routine)
        (found,) = run(row_bodies.body(library, launch, form), launch, [x])
        want = getattr(torch, name)(torch.from_numpy(x), 1).numpy()
        np.testing.assert_allclose(found, want, rtol=2e-6, atol=1e-7)
