"""Native kernels of elements compute what the reference implementations of their operators compute.

Operators, dtypes, sizes, layouts and special values are drawn. Results have the same bits, except where a kernel calls
one of the functions that include/cpu.h approximates: then they differ by units in the last place.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from native_kit import arrays_of, calls, launch_of, run
from seeds import EXHAUSTIVE

import flambeau
from flambeau.core.dtype import DTYPES, dtype
from flambeau.driver.host.kernels.native import bodies, build, element_bodies, source_generator
from flambeau.driver.host.kernels.native import kernel_library as libraries
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary
from flambeau.driver.host.kernels.native.kernel_names import EXTREMES, FLOAT_CALLS
from flambeau.driver.protocol import Expression, Launch, NativeBody
from flambeau.ops.copy import copy
from flambeau.ops.op import table
from flambeau.testing.operator_properties import Layout, plain, reversed_dims, tensor_of, with_gaps

Array = np.ndarray[Any, Any]
OPS = sorted(
    name
    for name, op in table.items()
    if op is not copy
    and isinstance(op.kernel.cuda, Expression)
    and any(True for _ in source_generator.kernels_of(op, op.kernel.cuda))
)
ULPS = 4  # of two functions in one expression, and of float32 arithmetic around them


@pytest.mark.parametrize("name", OPS)
@settings(max_examples=300 if EXHAUSTIVE else 12, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_native_kernel_computes_what_the_reference_does(
    name: str, library: KernelLibrary, data: st.DataObject
) -> None:
    op = table[name]
    inputs, params = data.draw(calls(op), label="call")
    try:
        launch = launch_of(op, inputs, params)
    except (RuntimeError, IndexError, ValueError, NotImplementedError):
        assume(False)
    form = op.kernel.cuda
    assert isinstance(form, Expression)
    native = element_bodies.body(library, launch, form)
    assume(native is not None)
    assert isinstance(native, NativeBody)
    arrays = arrays_of(launch, inputs)
    assert [(a.shape, a.strides) for a in arrays if isinstance(a, np.ndarray)] == native._layouts[1:]
    try:
        want = run(launch.kernel.host(launch), launch, arrays)
    except RuntimeError:  # the operator refuses these values, such as probabilities beyond 1
        assume(False)
    found = run(native, launch, arrays)
    compare(found[0], want[0], launch, arrays)


def compare(found: Array, want: Array, launch: Launch, arrays: list[Any]) -> None:
    kind = launch.outputs[0].dtype
    if not kind.is_floating_point:
        assert found.tolist() == want.tolist()
        return
    form = launch.kernel.cuda
    assert isinstance(form, Expression)
    with np.errstate(invalid="ignore"):
        one, other = (x.astype(np.float64) for x in (found, want))
    words = set(re.findall(r"\w+", element_bodies.expression_text(launch, form)))
    if not words & {*FLOAT_CALLS, "sqrt_"}:
        np.testing.assert_array_equal(one, other)
        if not words & {*EXTREMES}:  # NumPy returns either of two zeros
            np.testing.assert_array_equal(np.signbit(one[one == one]), np.signbit(other[one == one]))
        return
    finite = np.isfinite(one) & np.isfinite(other)
    inputs = [np.asarray(x, np.float64) for x in arrays if isinstance(x, np.ndarray)]
    scale = max([np.abs(x[np.isfinite(x)]).max(initial=1) for x in [*inputs, other]])
    eps = max(flambeau.finfo(kind).eps, 2.0**-23)
    assert np.array_equal(np.isnan(one), np.isnan(other))
    np.testing.assert_array_equal(one[~finite], other[~finite])
    np.testing.assert_allclose(one[finite], other[finite], rtol=0, atol=ULPS * eps * scale)


@pytest.mark.parametrize("layout", [plain, reversed_dims, with_gaps])
@pytest.mark.parametrize("kind", DTYPES, ids=str)
def test_conversions_have_the_bits_of_the_reference(
    kind: dtype, layout: Layout, library: KernelLibrary
) -> None:
    bits = np.random.default_rng(0).integers(0, 256, 4096 * kind.itemsize, np.uint8)
    source = (bits.view(kind.numpy) if kind.name != "bool" else bits > 127).reshape(32, 128)
    x = tensor_of(source, layout)
    form = copy.kernel.cuda
    assert isinstance(form, Expression)
    for target in DTYPES:
        launch = launch_of(copy, [x], (target, x.shape))
        native = element_bodies.body(library, launch, form)
        if native is not None:
            arrays = arrays_of(launch, [x])
            found, want = run(native, launch, arrays), run(copy.kernel.host(launch), launch, arrays)
            compare(found[0], want[0], launch, arrays)


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_all_halves_convert_exactly(source: str, library: KernelLibrary) -> None:
    kind = getattr(flambeau, source)
    halves = np.arange(1 << 16, dtype=np.uint16).view(kind.numpy)
    form = copy.kernel.cuda
    assert isinstance(form, Expression)
    for bits, target in ((halves, flambeau.float32), (halves.astype(np.float32), kind)):
        launch = launch_of(copy, [tensor_of(bits)], (target, bits.shape))
        body = element_bodies.body(library, launch, form)
        assert body is not None
        found, want = run(body, launch, [bits]), run(copy.kernel.host(launch), launch, [bits])
        compare(found[0], want[0], launch, [bits])


@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf"])
def test_functions_of_float32_are_within_two_ulps(name: str, library: KernelLibrary) -> None:
    """Against double precision, for all exponents of both signs, and special values."""
    from scipy import special

    random = np.random.default_rng(1)
    step = 97 if EXHAUSTIVE else 9973
    every = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate(
        [every, *[random.uniform(-size, size, 20000).astype(np.float32) for size in (0.1, 1, 5, 100)]]
    )
    op, form = table[name], table[name].kernel.cuda
    assert isinstance(form, Expression)
    launch = launch_of(op, [tensor_of(x)], ())
    body = element_bodies.body(library, launch, form)
    assert body is not None
    (found,) = run(body, launch, [x])
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        exact = (special.erf if name == "erf" else getattr(np, name))(wide)
        want = exact.astype(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(want))
    infinite = np.isinf(want) | np.isinf(found)
    np.testing.assert_array_equal(found[infinite], want[infinite])
    finite = np.isfinite(want)
    ulp = np.spacing(np.maximum(np.abs(want[finite]), np.float32(2**-126))).astype(np.float64)
    errors = np.abs(found[finite] - exact[finite]) / ulp
    worst = errors.argmax()
    assert errors[worst] <= 2, (x[finite][worst], errors[worst])
    np.testing.assert_array_equal(np.signbit(found[finite]), np.signbit(want[finite]))


@pytest.mark.skipif(not EXHAUSTIVE, reason="builds a second library; set FLAMBEAU_TESTS=exhaustive")
def test_instruction_sets_compute_the_same_bits(library: KernelLibrary, tmp_path: Path) -> None:
    names = [name for name in libraries.candidates() if "v2" not in name]
    if len(names) < 2 or not libraries.is_x86():
        pytest.skip("needs a CPU with AVX-512")
    build.build(tmp_path, ["v3"])
    other = KernelLibrary(tmp_path / libraries.file_name("v3"))
    x = np.random.default_rng(0).integers(0, 1 << 32, 1 << 20, np.uint32).view(np.float32)
    for name in ("exp", "log1p", "tanh", "erf", "gelu", "softplus", "sum"):
        params = {"gelu": ("none",), "sum": (None, False, None)}.get(name, ())
        scalars = [1.0, 20.0] if name == "softplus" else []
        launch = launch_of(table[name], [tensor_of(x), *scalars], params)
        found = []
        for which in (library, other):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(bodies, "library", lambda which=which: which)
                found.append(run(bodies.native_body(launch), launch, [x, *scalars])[0])
        np.testing.assert_array_equal(found[0], found[1], name)
