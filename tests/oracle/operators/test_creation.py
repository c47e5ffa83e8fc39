"""Creation, against PyTorch: values, dtypes, strides, and the errors that users search for."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import same, torch

import flambeau

NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-100, 100),
    st.floats(-1e6, 1e6, width=32),
    st.complex_numbers(max_magnitude=100),
)
KINDS = ["bool", "uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]


def outcome(module: Any, text: str) -> Any:
    """The value of an expression over `torch`, or the type and first line of what it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return eval(text, {"torch": module, "np": np})
        except Exception as error:
            return type(error), str(error).split("\n")[0].split(" (Triggered")[0]


def agree(text: str) -> None:
    ours, theirs = outcome(flambeau, text), outcome(torch, text)
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, flambeau.Tensor), ours
        same(ours, theirs, 1)
    else:
        assert ours == theirs


VALUES = [
    "np.float64(1.5)", "[np.float64(1.5)]", "[np.float32(1.5), 2.5]", "[np.int32(1), 2]", "[np.int32(1), np.int8(2)]",
    "[1.5, 2]", "[True, 2]", "[1+1j, 2]", "[]", "[[], []]", "[[], [1]]", "(1, 2)", "range(3)", "True", "3", "2.5", "1j",
    "[[1, 2], [3]]", "[[1, 2], 3]", "[1, [2, 3]]", "[[1, 2], [3, [4]]]", "[[[1], [2, 3]], [[1], [2]]]", "'a'", "['a']",
    "[None]", "None", "[1, 'a']", "{1, 2}", "{1: 2}", "b'ab'", "[torch.tensor(1.), torch.tensor(2.)]",
    "[torch.tensor([1.]), torch.tensor([2.])]", "[torch.ones(2), torch.ones(2)]", "[torch.tensor(1), 2.5]",
    "[torch.tensor(1., dtype=torch.float64), 2]", "[np.array([1, 2]), np.array([3, 4])]", "np.array([1, 2], np.int16)",
    "np.arange(6).reshape(2, 3).T", "np.array(['a'])", "torch.ones(2)", "[2**63]", "[2**63, 1.0]", "1e300",
    "[float('nan'), float('inf')]",
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_tensor(value: str) -> None:
    agree(f"torch.tensor({value})")


CONVERSIONS = [
    "[300], dtype=torch.int8", "[-3], dtype=torch.uint8", "[1.5], dtype=torch.int32", "[1e300], dtype=torch.float32",
    "[float('nan')], dtype=torch.int32", "[70000.], dtype=torch.float16", "[2**63], dtype=torch.uint64",
    "[2**64], dtype=torch.float32", "[1j], dtype=torch.float32", "[True, 2], dtype=torch.bool",
    "[0.5], dtype=torch.bool", "np.array([1.5]), dtype=torch.int32", "np.array([300]), dtype=torch.int8",
    "[1], dtype=bool", "[1], dtype=float", "[1], dtype='float32'",
]  # fmt: skip


@pytest.mark.parametrize("arguments", CONVERSIONS)
def test_tensor_of_a_dtype(arguments: str) -> None:
    agree(f"torch.tensor({arguments})")


@given(st.recursive(NUMBERS, lambda inner: st.lists(inner, max_size=4), max_leaves=12))
def test_tensor_of_nested_data(data: Any) -> None:
    for kind in (None, "float32", "int64"):
        text = f"torch.tensor({data!r}{'' if kind is None else f', dtype=torch.{kind}'})"
        ours, theirs = outcome(flambeau, text), outcome(torch, text)
        if isinstance(theirs, torch.Tensor):
            same(ours, theirs)
        else:
            # Data with several faults: which one is met first is nobody's promise.
            assert isinstance(ours, tuple) and {ours[0], theirs[0]} <= {ValueError, TypeError}, (
                text,
                ours,
                theirs,
            )


SIZES = [
    "2.0", "[2.0]", "2, 3.0", "'a'", "", "-1", "2, -3", "(2, None)", "None", "np.int64(2)", "np.array([2, 3])",
    "(torch.tensor(2), 3)", "torch.tensor(2)", "True", "2, 3", "(2, 3)", "[]", "0", "size=(2, 3)",
    "2, dtype=torch.int16", "2, dtype=float", "2, dtype='float32'", "2, requires_grad=False",
]  # fmt: skip


@pytest.mark.parametrize("function", ["zeros", "ones"])
def test_sizes(function: str) -> None:
    """In one order and again in the other: what a call leaves behind changes none after it."""
    for size in [*SIZES, *SIZES[::-1]]:
        agree(f"torch.{function}({size})")


CALLS = [
    "torch.complex(torch.ones(2), torch.arange(3.).view(3, 1))",
    "torch.complex(torch.ones(2), torch.ones(2, dtype=torch.float64))",
    "torch.complex(torch.arange(2), torch.arange(2))",
    "torch.full((2,), 300, dtype=torch.int8)", "torch.full((2,), 2.7, dtype=torch.int64)",
    "torch.full((2,), -1, dtype=torch.uint8)", "torch.full((2,), 1e10, dtype=torch.float16)", "torch.full((2,), 1+2j)",
    "torch.full((2,), -1.0, dtype=torch.uint8)", "torch.ones(2, dtype=torch.uint8).fill_(-0.5)",
    "torch.full((2,), 255.5, dtype=torch.uint8)", "torch.full((2,), -300, dtype=torch.uint8)",
    "torch.full((2,), 1+2j, dtype=torch.float32)", "torch.full((2,), True)", "torch.full((2,), 3)",
    "torch.full((2,), torch.tensor(3))", "torch.full(2, 3)", "torch.full((2,), 'a')", "torch.full((2,), None)",
    "torch.full((-2,), 1)", "torch.full((2,), 1, out=torch.ones(2))", "torch.zeros(2, out=torch.ones(2).int())",
    "torch.zeros(2, out=torch.ones(2).int(), dtype=torch.float32)", "torch.scalar_tensor(3)",
    "torch.scalar_tensor(3, dtype=torch.int32)", "torch.arange(0)", "torch.arange(5.)", "torch.arange(0, 5, 0)",
    "torch.arange(5, 0)", "torch.arange(5, 0, -1)", "torch.arange(0, float('inf'))", "torch.arange(1.5, dtype=torch.int32)",
    "torch.arange(3, dtype=torch.float16)", "torch.arange(end=3)", "torch.arange(torch.tensor(3))",
    "torch.arange(torch.tensor(3.))", "torch.arange(True)", "torch.arange(1, 3, step=0.5)", "torch.range(0, 4)",
    "torch.range(0, 4, 0.5)", "torch.linspace(0, 1, 5)", "torch.linspace(0, 10, 5, dtype=torch.int64)",
    "torch.linspace(0, 10, 4, dtype=torch.int32)", "torch.linspace(0, -10, 4, dtype=torch.int32)",
    "torch.linspace(0, 1, 0)", "torch.linspace(0, 1, -1)", "torch.linspace(0, 1, 1)", "torch.linspace(0, 1j, 3)",
    "torch.linspace(0, 1, 3, dtype=torch.complex64)", "torch.linspace(torch.tensor(0.), torch.tensor(1.), 3)",
    "torch.logspace(0, 3, 4)", "torch.logspace(0, 3, 4, base=2)", "torch.logspace(0, 3, 4, base=2, dtype=torch.int32)",
    "torch.logspace(0, 1, 1)", "torch.eye(2)", "torch.eye(2, 3, dtype=torch.bool)", "torch.eye(3, 2)", "torch.eye(-1)",
    "torch.eye(2, -1)", "torch.eye(0)", "torch.eye(2.0)", "torch.empty_strided((2, 3), (1, 2)).stride()",
    "torch.empty_strided((2, 3), (1,))", "torch.empty_strided((2, 3), (-1, 2))",
    "torch.zeros(2, 3).new_full([3, 2], 0.3)", "torch.zeros(2, 3).new_full([3, 2], -5)",
    "torch.zeros(2, dtype=torch.int32).new_full([2], 2.7)", "torch.zeros(2, dtype=torch.int32).new_full([2], 1j)",
    "torch.zeros(2, dtype=torch.int64).new_tensor([[1, 2, 3]])", "torch.zeros(2).new_tensor([1, 2])",
    "torch.zeros(2).new_zeros((2, 3))", "torch.zeros(2).new_ones(2, dtype=torch.int64)", "torch.zeros(2).new_zeros(-1)",
    "torch.zeros(2).new_zeros(1.5)", "torch.zeros_like([1])", "torch.ones_like(torch.zeros(2), dtype=torch.int64)",
    "torch.full_like(torch.zeros(2, dtype=torch.int32), 2.5)", "torch.full_like(torch.zeros(2, dtype=torch.int8), 300)",
    "torch.zeros_like(torch.zeros(2, 3, 4).permute(2, 0, 1))", "torch.zeros_like(torch.zeros(2, 1, 4).expand(2, 3, 4))",
    "torch.zeros_like(torch.zeros(2, 3).t(), memory_format=torch.contiguous_format)",
    "torch.empty(2, 3, 4, 5, memory_format=torch.channels_last).stride()", "torch.empty(2, 3, memory_format=torch.channels_last)",
    "torch.asarray([1, 2.])", "torch.as_tensor(np.arange(3))", "torch.asarray(np.float64(3.5))", "torch.asarray(b'abcdefgh')",
    "torch.as_tensor(torch.ones(2), dtype=torch.int32)", "torch.asarray(torch.ones(2), dtype=torch.int32, copy=False)",
    "torch.asarray([1], copy=False)", "torch.frombuffer(bytearray(b'abcdefgh'), dtype=torch.int32)",
    "torch.frombuffer(bytearray(b'abcdefgh'), dtype=torch.int32, offset=4)",
    "torch.frombuffer(bytearray(b'abcdefgh'), dtype=torch.int32, count=1)",
    "torch.frombuffer(bytearray(b'abcdefgh'), dtype=torch.int32, count=3)",
    "torch.frombuffer(bytearray(b'abcdefg'), dtype=torch.int32)", "torch.frombuffer(bytearray(b''), dtype=torch.int32)",
    "torch.frombuffer(bytearray(b'abcd'), dtype=torch.int32, offset=9)", "torch.frombuffer([1], dtype=torch.int32)",
    "torch.Tensor()", "torch.Tensor([2, 3])", "torch.Tensor((2, 3))", "torch.Tensor(2, 3).shape == (2, 3)",
    "torch.Tensor(torch.ones(2))", "torch.Tensor(np.arange(3))", "torch.Tensor(2.5)", "torch.Tensor([True])",
    "torch.FloatTensor([1, 2])", "torch.LongTensor([1.5, 2])", "torch.ByteTensor([1])", "torch.Tensor(2, device='cuda')",
    "isinstance(torch.ones(1), torch.FloatTensor)", "isinstance(torch.ones(1), torch.LongTensor)",
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_calls(call: str) -> None:
    agree(call)


@given(
    start=st.integers(-50, 50), length=st.floats(0, 40, width=32), step=st.sampled_from([1, 2, 3, 0.5, 0.25, 0.1, -1, -0.7]),
    kind=st.sampled_from([None, "float64", "float32", "int64"]),
)  # fmt: skip
def test_arange(start: int, length: float, step: float, kind: str | None) -> None:
    if kind == "int64" and abs(step) < 1:
        return
    end = start + (length if step > 0 else -length)
    dtype = "" if kind is None else f", dtype=torch.{kind}"
    text = f"torch.arange({start}, {end!r}, {step}{dtype})"
    theirs = outcome(torch, text)
    ours = outcome(flambeau, text)
    same_up_to(ours, theirs, abs(start) + 50)


def same_up_to(ours: Any, theirs: Any, size: float) -> None:
    """Equal up to the rounding of numbers of a size: PyTorch's own last bit depends on the CPU's vector width."""
    assert repr(ours.dtype) == repr(theirs.dtype) and ours.meta.shape == tuple(theirs.shape)
    precision = float(torch.finfo(theirs.dtype).eps) if theirs.dtype.is_floating_point else 0.0
    assert np.allclose(ours.numpy(), theirs.numpy(), rtol=0, atol=size * precision)


@given(st.floats(-100, 100, width=32), st.floats(-100, 100, width=32), st.integers(0, 40))
def test_linspace(start: float, end: float, steps: int) -> None:
    text = f"torch.linspace({start!r}, {end!r}, {steps})"
    same_up_to(outcome(flambeau, text), outcome(torch, text), 200)


def test_default_dtype_decides() -> None:
    from flambeau.core.flags import flags as flambeau_flags

    flambeau_flags.default_dtype = flambeau.float64
    try:
        assert flambeau.zeros(1).dtype is flambeau.float64
        assert flambeau.full((1,), 1j).dtype is flambeau.complex128
    finally:
        flambeau_flags.default_dtype = flambeau.float32


def test_a_tensor_made_to_require_a_gradient_is_a_leaf() -> None:
    made = flambeau.zeros(1, requires_grad=True)
    assert made.requires_grad
    assert made.is_leaf
    with pytest.raises(RuntimeError, match=r"(?i)only Tensors of floating point and complex"):
        flambeau.zeros(1, dtype=flambeau.int64, requires_grad=True)
    with pytest.raises(RuntimeError, match="Only Tensors of floating point and complex dtype can require"):
        flambeau.tensor([1, 2], requires_grad=True)


def test_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        flambeau.zeros(1, foo=1)


@given(st.floats(-1e6, 1e6, width=32), st.floats(-1e6, 1e6, width=32), st.integers(1, 300))
def test_linspace_has_the_bits_of_pytorch(start: float, end: float, steps: int) -> None:
    """PyTorch's float32 numbers are multiples of a rounded step, which packages read as the spacing."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("PyTorch rounds products on processors without fused multiplication and addition")
    assert flambeau.linspace(start, end, steps).tolist() == torch.linspace(start, end, steps).tolist()


NUMBERED = ["int8", "int16", "int32", "int64", "uint8", "float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("function", ["linspace", "logspace"])
@pytest.mark.parametrize("kind", [*NUMBERED, "complex64", "complex128"])
def test_spaced_numbers_of_all_dtypes_have_the_bits_of_pytorch(function: str, kind: str) -> None:
    """Powers of complex numbers have other last bits, and powers of doubles rarely."""
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("PyTorch rounds products on processors without fused multiplication and addition")
    draw = np.random.default_rng([*function.encode(), *kind.encode()])
    limit = (2 if kind == "int8" else 3) if function == "logspace" else 50
    for _ in range(60):
        ends = [float(draw.uniform(-limit, limit)) for _ in range(2)]
        if kind[0] == "u" or (function, "int" in kind) == ("logspace", True):
            ends = [abs(end) for end in ends]
        if kind[0] == "c":
            ends = [complex(end, draw.uniform(-limit, limit)) for end in ends]
        steps = int(draw.choice([1, 2, 3, 7, 16, 33, 129, 1001, 5000]))
        base = {} if function == "linspace" else {"base": 2.0}
        ours, theirs = (
            getattr(lib, function)(*ends, steps, dtype=getattr(lib, kind), **base)
            for lib in (flambeau, torch)
        )
        if function == "linspace" or kind not in ("float64", "complex64", "complex128"):
            assert ours.tolist() == theirs.tolist(), (ends, steps)
        else:
            bound = 4e-4 if kind == "complex64" else 1e-13
            assert np.allclose(ours.numpy(), theirs.numpy(), rtol=bound, atol=bound), (ends, steps)
