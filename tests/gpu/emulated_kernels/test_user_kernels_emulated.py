"""User kernels: the C++ that expressions become, emulated beside the host's arithmetic, and compiled for an H100."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
from compiling import compile_each

import flambeau
from flambeau.core.flags import flags
from flambeau.driver.protocol import Launch
from flambeau.ops.op import Op
from flambeau.ops.pointwise.expression import RECORDS, operator
from flambeau.ops.pointwise.expression_cpp import functions_of, kernel_of
from flambeau.ops.pointwise.expression_text import read
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
NEAR = {"float32": 2e-6, "float64": 1e-14, "complex64": 2e-6, "bfloat16": 8e-3}

TEXTS = {
    "x * y + z": ("int32", "bfloat16", "complex64"),
    "x if x > y else -z": ("float32",),
    "sigmoid(x) * tanh(y) ** 2 + exp(-z * z) / 3": ("bfloat16", "complex64"),
    "0 < x < y and not z > 2 or x == inf": ("int32", "float32"),
    "(x > y) * z + (x & 1 if y > 0 else y // 2) % 3": ("int32",),
    "max(x, y, 0) + min(z, 1.5) - abs(x) ** 0.5 + atan2(y, x)": ("float32", "int32"),
    "erf(x) + lgamma(y)": ("float64",),
    "~(x > y) & (z > 0) | True": ("float32",),
    "x * (1 + 2j) + conj(y) - 0.5 * z": ("complex64", "float32"),
    "clamp(x, -1, 1) + where(y > 0, 1, z) - round(x) + x ** 3 + 2 ** y": ("float32",),
    "nan if x > 1 else -inf if y > 1 else z": ("float32",),
}


def launch_of(record: Op, arrays: list[Any]) -> Launch:
    metas = [emulated.meta_of(x, GPU) if isinstance(x, np.ndarray) else type(x) for x in arrays]
    found = record.rule(metas, tuple([getattr(flags, name) for name in record.flags]))
    return Launch(record.kernel, found.outputs, found.inputs, found.params, capability=(9, 0))


def check(record: Pointwise, arrays: list[Any], near: float) -> None:
    launch = launch_of(record, arrays)
    (got,), (want,) = emulated.emulated(launch, arrays), emulated.of_host(launch, arrays)
    kind = np.complex128 if want.dtype.kind == "c" or launch.outputs[0].dtype.is_complex else np.float64
    np.testing.assert_allclose(got.astype(kind), want.astype(kind), near, near)


@pytest.mark.parametrize("text, dtype", [(text, dtype) for text, dtypes in TEXTS.items() for dtype in dtypes])
def test_the_kernel_computes_what_the_host_computes(text: str, dtype: str) -> None:
    kind = getattr(flambeau, dtype)
    said = read(f"lambda x, y, z: {text}")
    record = operator("kernel", said.results, 3)
    make = operator_properties.maker(kind, 0)
    arrays = [make(3, 1, low=0.2, high=3), make(3, 5, low=0.2, high=3), make(5, low=0.2, high=3)]
    check(record, arrays, NEAR.get(dtype, 2e-6))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_results_are_one_kernel(dtype: str) -> None:
    text = "lambda x, y, s: (x * cos(y) + s, x > y, where(x > s, x, -y))"
    record = operator("kernel", read(text).results, 3)
    make = operator_properties.maker(getattr(flambeau, dtype), 0)
    for arrays in (
        [make(3, 1), make(3, 500), 0.5],
        [make(7), make(7), make(7)],
        [make(600, 2).T, make(2, 600), 2],
        [make(), make(), make()],
        [make(1, 1), make(1), 0.5],
    ):
        launch = launch_of(record, arrays)
        got, want = emulated.emulated(launch, arrays), emulated.of_host(launch, arrays)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), NEAR[dtype], NEAR[dtype])


def test_gradients_are_kernels_too() -> None:
    text = "lambda x, y, z: where(x > y, x * exp(z), y / z) + x ** y + sigmoid(z * tanh(x))"
    record = operator("kernel", read(text).results, 3, differentiable=True)
    make = operator_properties.maker(flambeau.float64, 0)
    arrays = [make(40, low=0.2, high=2) for _ in range(4)]
    whole: Any = record.derivative.whole
    assert whole.names == ("needs", "grad", "call", "a", "b", "c")
    launch = launch_of(whole.bind_needs((True,) * 3)._kernels.find((0, 1, 2))[0], arrays)
    for got, want in zip(emulated.emulated(launch, arrays), emulated.of_host(launch, arrays), strict=True):
        np.testing.assert_allclose(got, want, 1e-13, 1e-13)


STATEMENTS = """
template <typename T> T twice(T x) { return x * 2; }
template <typename T> T f(T x, T y, T alpha) {
  const T z = ::sin(x) + std::exp(-y);  // plain
  if (z > alpha && x < y) { return twice(z); } else if (x == y) return T(1);
  return z < 0 ? -z : fmax(z, y) / 3.f;
}
"""
LOOPS = """
template <typename T> T step(T x) { return x * T(0.5) + std::sin(x); }
template <typename T> T f(T x, T y, T alpha) {
  T r = alpha;
  for (int i = 0; i < 3; ++i) { r += step(x) * y; if (r > 100) break; }
  return r;
}
"""


TRUTH = """
template <typename T> bool big(T x) { return x - T(1); }
template <typename T> T f(T x, T y, T alpha) { bool b = x; return b && !(y == alpha) || big(y) != true; }
"""


def test_jiterators_plain_text_is_the_hosts() -> None:
    make = operator_properties.maker(flambeau.float32, 0)
    functions = functions_of(STATEMENTS)
    assert functions is not None
    record = kernel_of(STATEMENTS, functions, 2, 1)
    check(record, [make(100, low=-2, high=2), make(100, low=-2, high=2), 0.25], 2e-6)
    functions = functions_of(TRUTH)
    assert functions is not None
    x = np.array([0.0, 1.0, 0.0, 2.0], np.float32)
    check(kernel_of(TRUTH, functions, 2, 1), [x, x[::-1].copy(), 0.25], 0)


def test_jiterators_other_text_is_compiled_as_it_is() -> None:
    make = operator_properties.maker(flambeau.float64, 0)
    functions = functions_of(LOOPS)
    assert functions is not None
    record = kernel_of(LOOPS, functions, 2, 1)
    x, y = make(50), make(50)
    (got,) = emulated.emulated(launch_of(record, [x, y, 0.5]), [x, y, 0.5])
    np.testing.assert_allclose(got, 0.5 + 3 * (x * 0.5 + np.sin(x)) * y, 1e-13)
    with pytest.raises(flambeau.NotSupportedError, match="`for` at line 5, column 3"):
        emulated.of_host(launch_of(record, [x, y, 0.5]), [x, y, 0.5])


def test_an_nvidia_compiler_takes_them_all() -> None:
    if not (find_spec("nvidia.cuda_nvrtc") or find_spec("nvidia.cu13")):
        pytest.skip("NVRTC is not installed")
    from flambeau.driver.cuda.codegen import pointwise, pointwise_several

    programs = []
    for text, dtypes in (TEXTS | {"x * digamma(y) - special_zeta(2, z)": ("float32",)}).items():
        record = operator("kernel", read(f"lambda x, y, z: {text}").results, 3)
        for dtype in dtypes:
            arrays = [operator_properties.maker(getattr(flambeau, dtype), 0)(8) for _ in range(3)]
            launch = launch_of(record, arrays)
            form: Any = launch.kernel.cuda
            programs.append(pointwise.program(launch, form))
    for text in (STATEMENTS, LOOPS, TRUTH):
        functions = functions_of(text)
        assert functions is not None
        record = kernel_of(text, functions, 2, 1)
        for dtype in ("float32", "float64", "bfloat16"):
            make = operator_properties.maker(getattr(flambeau, dtype), 0)
            launch = launch_of(record, [make(8), make(8), 0.5])
            form = launch.kernel.cuda
            programs.append(pointwise.program(launch, form))
    several = LOOPS.replace("T f(T x, T y, T alpha)", "void f(T x, T y, T alpha, T& s)").replace(
        "return r;\n}", "s = r;\n}"
    )
    functions = functions_of(several.replace("T& s)", "T& s, T& t)").replace("s = r;", "s = r; t = y;"))
    assert functions is not None
    record = kernel_of(
        several.replace("T& s)", "T& s, T& t)").replace("s = r;", "s = r; t = y;"), functions, 2, 1
    )
    make = operator_properties.maker(flambeau.float32, 0)
    launch = launch_of(record, [make(8), make(8), 0.5])
    form = launch.kernel.cuda
    programs.append(pointwise_several.program(launch, form))
    named = operator(
        "kernel",
        read(f"lambda x: {' + '.join([f'{n}(x)' for n, r in RECORDS.items() if _real(r)])}").results,
        1,
    )
    launch = launch_of(named, [operator_properties.maker(flambeau.float32, 0)(8)])
    form = launch.kernel.cuda
    programs.append(pointwise.program(launch, form))
    compile_each([program.source for program in programs])


def _real(record: Pointwise) -> bool:
    form: Any = record.kernel.cuda
    return (
        record.arity == 1
        and flambeau.float32 in record.dtypes
        and not form.header
        and record.name != "bitwise_not"
    )
