"""The names of kernels in the shared library: what they compute determines them, so changed formulas have new names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from flambeau.core.dtype import (
    INTEGRAL,
    bfloat16,
    bool_,
    dtype,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)
from flambeau.core.frozen import Value
from flambeau.driver.protocol import Expression, Launch

TYPES = {
    bool_: "bool", uint8: "u8", int8: "i8", int16: "i16", int32: "i32", int64: "i64", float16: "half",
    bfloat16: "bf16", float32: "float", float64: "double",
}  # fmt: skip
"""The C++ type of the elements of each dtype that the library supports."""

COMPUTED = (bool_, int32, int64, float32, float64)
"""The dtypes that kernels compute in. Others are converted to one of them."""

FLOAT_CALLS = (
    "exp_", "exp2_", "expm1_", "log_", "log2_", "log1p_", "tanh_", "erf_", "sigmoid_", "log_add", "log_add2",
)  # fmt: skip
"""Functions of prelude.cuh that include/cpu.h approximates, and vectorizes for float alone."""

SCALAR_CALLS = (
    "cos_", "sin_", "tan_", "acos_", "asin_", "atan_", "sinh_", "cosh_", "asinh_", "acosh_", "atanh_", "log10_",
    "erfc_", "erfinv_", "lgamma_", "atan2_", "hypot_", "fmod_", "power_", "pow_any", "floor_divide", "remainder_",
    "fmod_any", "quotient_trunc", "gcd_", "lcm_", "digamma_", "sinc_", "nextafter_",
)  # fmt: skip
"""Functions of prelude.cuh that compilers do not vectorize, or that divide integers, which CPUs refuse for zeros."""

EXTREMES = ("greater", "lesser", "fmax_", "fmin_")
"""Functions of prelude.cuh that select one of two zeros, where NumPy may return the other."""


class ElementKernel(Value):
    """A kernel of elements.

    Attributes:
        text: The C++ expression.
        functions: Further C++ functions that it calls.
        inputs: The dtypes of the inputs.
        output: The dtype of the result.
        constants: The C++ types of the constants.
        uniform: For each input, True if all elements of a call have one value.
    """

    text: str
    functions: str
    inputs: tuple[dtype, ...]
    output: dtype
    constants: tuple[str, ...]
    uniform: tuple[bool, ...]

    @property
    def symbol(self) -> str:
        """Return the name of the kernel in the library."""
        kinds = [TYPES[x] for x in (*self.inputs, self.output)]
        return _symbol("elements", self.text, self.functions, kinds, self.constants, self.uniform)


def conversion_symbol(source: dtype, target: dtype) -> str:
    return f"convert_{TYPES[source]}_{TYPES[target]}"


def converts(source: dtype, target: dtype) -> bool:
    """Return True if the library has a conversion. Floats that an integer type cannot hold have no fixed result."""
    return (
        source in TYPES and target in TYPES and not (source.is_floating_point and target.category == INTEGRAL)
    )


def expression_text(launch: Launch, form: Expression) -> str:
    return form.text if isinstance(form.text, str) else form.text(launch)


def constant_types(values: Sequence[float]) -> tuple[str, ...]:
    return tuple(["double" if isinstance(value, float) else "i64" for value in values])


class ListKernel(Value):
    """A kernel of a formula over lists of tensors, one element at a time.

    Attributes:
        statements: The C++ statements of the elements x0, x1, ... and the numbers s0, s1, ...
        results: One expression for each list of results.
        kind: The dtype of all tensors.
        inputs, scalars: The numbers of lists that are read, and of numbers.
    """

    statements: str
    results: tuple[str, ...]
    kind: dtype
    inputs: int
    scalars: int

    @property
    def symbol(self) -> str:
        """Return the name of the kernel in the library."""
        return _symbol("lists", self.statements, self.results, TYPES[self.kind], self.inputs, self.scalars)


class FoldKernel(Value):
    """The functions of a reduction. Their names are the symbol with `start`, `lift`, `join` and `lower`.

    Attributes:
        state, start, element, join, lower: The texts of a `Fold`, with one output; `element` is its `lift`.
        kind: The dtype T of the elements.
        output: The dtype of the result.
    """

    state: str
    start: str
    element: str
    join: str
    lower: str
    kind: dtype
    output: dtype

    @property
    def symbol(self) -> str:
        """Return the beginning of the functions' names in the library."""
        texts = (self.state, self.start, self.element, self.join, self.lower)
        return _symbol("fold", *texts, TYPES[self.kind], TYPES[self.output])


class ScanKernel(Value):
    """A running reduction of rows of contiguous floats, in double precision.

    Attributes:
        join: The C++ expression of the states a and b.
        kind: The dtype of the elements and of the results.
    """

    join: str
    kind: dtype

    @property
    def symbol(self) -> str:
        """Return the name of the kernel in the library."""
        return _symbol("scan", self.join, TYPES[self.kind])


def _symbol(family: str, *contents: object) -> str:
    return f"{family}_{hashlib.sha256(repr(contents).encode()).hexdigest()[:16]}"
