"""Native kernels of elements compute what the reference implementations of their operators compute.

Operators, dtypes, sizes, layouts and special values are drawn. Results have the same bits, except where a kernel calls
one of the functions that include/cpu.h approximates: then they differ by units in the last place.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from seeds import EXHAUSTIVE

import flambeau
from flambeau.core.dtype import DTYPES, dtype
from flambeau.core.memory import array_at
from flambeau.core.meta import Meta
from flambeau.driver.api import Expression, Launch, NativeBody
from flambeau.driver.host.kernels.native import elements, generator
from flambeau.driver.host.kernels.native.library import KernelLibrary
from flambeau.driver.host.kernels.native.names import TYPES
from flambeau.ops.copy import copy
from flambeau.ops.op import Op, table
from flambeau.tensor.call import signature
from flambeau.testing.operators import Layout, maker, plain, reversed_dims, tensor_of, with_gaps

Array = np.ndarray[Any, Any]
OPS = sorted(
    name
    for name, op in table.items()
    if op is not copy
    and isinstance(op.kernel.cuda, Expression)
    and any(True for _ in generator.kernels_of(op, op.kernel.cuda))
)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, 65519.0, 3e38)
SIZES = (1, 2, 7, 8, 9, 33, 1030, 2100)
ULPS = 4  # of two functions in one expression, and of float32 arithmetic around them


def run(body: Any, launch: Launch, arrays: list[Any]) -> Array:
    """Run a body on new outputs of a launch, in their layout."""
    out = launch.outputs[0]
    memory = np.zeros(max(out.span, 1), np.uint8)
    result = np.ndarray(out.shape, out.dtype.numpy, memory, 0, out.byte_strides)
    with np.errstate(all="ignore"):
        body([result], arrays)
    return result


def launch_of(op: Op, inputs: list[Any], params: tuple[Any, ...]) -> Launch:
    found = signature(op, inputs, params)
    return Launch(op.kernel, found.outputs, found.inputs, found.params)


def arrays_of(launch: Launch, inputs: list[Any]) -> list[Any]:
    """Return the inputs of a launch as its body receives them: broadcast arrays, and scalars."""
    found = []
    for x, given_input in zip(launch.inputs, inputs, strict=True):
        if not isinstance(x, Meta):
            value = given_input.item() if isinstance(given_input, flambeau.Tensor) else given_input
            found.append(float(value) if x.is_floating_point else int(value))
            continue
        found.append(array_at(given_input.data_ptr(), x.shape, x.dtype.numpy, x.byte_strides))
    return found


def spoiled(x: Any, random: np.random.Generator) -> Any:
    """Return the array with special values, if it has floats."""
    if not isinstance(x, np.ndarray) or not x.size or np.dtype(x.dtype).kind not in "fV":
        return x
    x = x.copy()
    with np.errstate(all="ignore"):
        x.reshape(-1)[random.integers(0, x.size, 1 + x.size // 20)] = random.choice(SPECIAL)
    return x


@st.composite
def calls(draw: Callable[..., Any], op: Op) -> tuple[list[Any], tuple[Any, ...]]:
    kinds = [kind for kind in op.dtypes if kind in TYPES]
    kind, seed = draw(st.sampled_from(kinds)), draw(st.integers(0, 99))
    random = np.random.default_rng(seed)
    inputs, params = draw(st.sampled_from(list(op.samples(maker(kind, seed), kind))))
    sizes = sorted({n for x in inputs if isinstance(x, np.ndarray) for n in x.shape if n > 1})
    if sizes:
        old, new = draw(st.sampled_from(sizes)), draw(st.sampled_from(SIZES))
        inputs = [resized(x, old, new, random) for x in inputs]
    if draw(st.booleans()):
        inputs = [spoiled(x, random) for x in inputs]
    layouts = st.sampled_from((plain, plain, reversed_dims, with_gaps))
    return [tensor_of(x, draw(layouts)) if isinstance(x, np.ndarray) else x for x in inputs], params


def resized(x: Any, old: int, new: int, random: np.random.Generator) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    shape = [new if n == old else n for n in x.shape]
    return random.choice(x.reshape(-1), shape) if x.size else np.zeros(shape, x.dtype)


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
    native = elements.body(library, launch, form)
    assume(native is not None)
    assert isinstance(native, NativeBody)
    arrays = arrays_of(launch, inputs)
    assert [(a.shape, a.strides) for a in arrays if isinstance(a, np.ndarray)] == native._layouts[1:]
    try:
        want = run(launch.kernel.host(launch), launch, arrays)
    except RuntimeError:  # the operator refuses these values, such as probabilities beyond 1
        assume(False)
    found = run(native, launch, arrays)
    compare(found, want, launch, arrays)


def compare(found: Array, want: Array, launch: Launch, arrays: list[Any]) -> None:
    kind = launch.outputs[0].dtype
    if not kind.is_floating_point:
        assert found.tolist() == want.tolist()
        return
    form = launch.kernel.cuda
    assert isinstance(form, Expression)
    text = elements.expression_text(launch, form)
    with np.errstate(invalid="ignore"):
        one, other = (x.astype(np.float64) for x in (found, want))
    words = set(re.findall(r"\w+", text))
    if not words & {*generator._FLOAT_CALLS, "sqrt_"}:
        np.testing.assert_array_equal(one, other)
        if not words & {"greater", "lesser", "fmax_", "fmin_"}:  # NumPy returns either of two zeros
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
        native = elements.body(library, launch, form)
        if native is not None:
            arrays = arrays_of(launch, [x])
            found, want = run(native, launch, arrays), run(copy.kernel.host(launch), launch, arrays)
            compare(found, want, launch, arrays)


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_all_halves_convert_exactly(source: str, library: KernelLibrary) -> None:
    kind = getattr(flambeau, source)
    halves = np.arange(1 << 16, dtype=np.uint16).view(kind.numpy)
    form = copy.kernel.cuda
    assert isinstance(form, Expression)
    for bits, target in ((halves, flambeau.float32), (halves.astype(np.float32), kind)):
        launch = launch_of(copy, [tensor_of(bits)], (target, bits.shape))
        body = elements.body(library, launch, form)
        assert body is not None
        compare(run(body, launch, [bits]), run(copy.kernel.host(launch), launch, [bits]), launch, [bits])


@pytest.mark.parametrize("name", ["exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf"])
def test_functions_of_float32_are_within_two_ulps(name: str, library: KernelLibrary) -> None:
    """Against double precision, for all exponents of both signs, and special values."""
    from scipy import special

    random = np.random.default_rng(1)
    step = 1 if EXHAUSTIVE else 9973
    every = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate(
        [every, *[random.uniform(-size, size, 20000).astype(np.float32) for size in (0.1, 1, 5, 100)]]
    )
    op, form = table[name], table[name].kernel.cuda
    assert isinstance(form, Expression)
    launch = launch_of(op, [tensor_of(x)], ())
    body = elements.body(library, launch, form)
    assert body is not None
    found = run(body, launch, [x])
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
