"""`FakeTensorMode`: shapes, dtypes, strides, devices and gradients' shapes equal PyTorch's, without values."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from log_kit import backward, operands
from logged_programs import FORWARD, OTHER, SAME
from support import torch

import flambeau
import flambeau._subclasses.fake_tensor

if torch is not None:
    import torch._subclasses.fake_tensor

oracle = pytest.mark.skipif(torch is None, reason="needs PyTorch")

READS_VALUES = [
    "y.tolist()", "x.prod()", "x.prod(1)", "x.cumprod(0)", "l.unique()", "i.bincount()", "y.histc(4)", "x[m]",
    "t.linalg.inv(sq+t.eye(3)*3)", "t.linalg.cholesky(sq@sq.t()+t.eye(3)*9)", "t.linalg.solve(sq+t.eye(3)*3,sq)",
    "t.linalg.eigh(sq+sq.t())[0]", "F.one_hot(i,3)",
]  # fmt: skip
"""Programs that raise, because their code reads values on the host."""


def _describe(library: Any, text: str) -> str:
    """Return what a program gives under a mode: its type, layout and device, and the shapes of gradients."""
    with warnings.catch_warnings(), library._subclasses.fake_tensor.FakeTensorMode():
        warnings.simplefilter("ignore")
        named = operands(library)
        try:
            result = eval(text, named)
            backward(result)
        except (RuntimeError, NotImplementedError) as error:
            return f"{type(error).__name__} {error}"
        grads = [
            tuple(t.grad.shape)
            for t in named.values()
            if isinstance(t, library.Tensor) and t.is_leaf and t.grad is not None
        ]
        if not isinstance(result, library.Tensor):
            return type(result).__name__
        kind = type(result).__name__
        return f"{kind} {tuple(result.shape)} {result.dtype} {result.stride()} {result.device} {grads}"


@oracle
@pytest.mark.parametrize("text", [text for text in SAME + FORWARD + OTHER if text not in READS_VALUES])
def test_fake_results_equal(text: str) -> None:
    assert _describe(flambeau, text) == _describe(torch, text)


@pytest.mark.parametrize("text", READS_VALUES)
def test_programs_that_read_values_raise(text: str) -> None:
    assert "Error" in (found := _describe(flambeau, text)) or "Exception" in found


LIBRARIES = [
    pytest.param(library, id=library.__name__) for library in (flambeau, torch) if library is not None
]


@pytest.mark.parametrize("library", LIBRARIES)
def test_module_of_any_size_has_shapes(library: Any) -> None:
    fake = library._subclasses.fake_tensor
    with fake.FakeTensorMode() as mode:
        layer = library.nn.Linear(1 << 20, 1 << 20)
        y = layer(library.empty(8, 1 << 20))
        y.sum().backward()
    assert fake.is_fake(y) and fake.is_fake(layer.weight) and fake.is_fake(layer.weight.grad)
    assert y.shape == (8, 1 << 20)
    assert fake.maybe_get_fake_mode(y) is mode


@pytest.mark.parametrize("library", LIBRARIES)
def test_devices_are_kept_and_compared(library: Any) -> None:
    with library._subclasses.fake_tensor.FakeTensorMode():
        x, y = library.empty(2, 3, device="cuda:0"), library.empty(3)
        assert (x * 2).device == library.device("cuda:0")
        assert (x + library.tensor(1.0)).device == library.device("cuda:0")
        with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
            x + y


@pytest.mark.parametrize("library", LIBRARIES)
def test_values_and_real_tensors_are_refused(library: Any) -> None:
    fake = library._subclasses.fake_tensor
    real = library.ones(2)
    with fake.FakeTensorMode() as mode:
        with pytest.raises(fake.DataDependentOutputException):
            library.ones(()).item()
        with pytest.raises(fake.DynamicOutputShapeException):
            library.ones(2).nonzero()
        with pytest.raises(AssertionError, match="convert all Tensors to FakeTensors first"):
            real + 1
        assert (mode.from_tensor(real) + 1).shape == (2,)
        with fake.unset_fake_temporarily():
            assert (real + 1).tolist() == [2.0, 2.0]
    with fake.FakeTensorMode(allow_non_fake_inputs=True):
        assert fake.is_fake(real + 1)
    assert repr(mode.from_tensor(real)) == "FakeTensor(..., size=(2,))"
