"""Subclasses with `__torch_dispatch__`: what their handlers see, and what programs get, in both libraries."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_kit import describe
from support import torch

import flambeau
import flambeau._C
import flambeau.utils._python_dispatch
import flambeau.utils._pytree
from flambeau.tensor import interception

if torch is not None:
    import torch.utils._python_dispatch
    import torch.utils._pytree

LIBRARIES = [
    pytest.param(library, id=library.__name__) for library in (flambeau, torch) if library is not None
]


def logging_class(library: Any, lines: list[str]) -> Any:
    """Return the class of tensors that wrap a tensor and log operators, as PyTorch's documentation has it."""
    tree_map = library.utils._pytree.tree_map

    class LoggingTensor(library.Tensor):  # type: ignore[misc, name-defined]
        __torch_function__ = library._C._disabled_torch_function_impl

        @staticmethod
        def __new__(cls: Any, elem: Any) -> Any:
            return library.Tensor._make_wrapper_subclass(
                cls, elem.size(), strides=elem.stride(), storage_offset=elem.storage_offset(), dtype=elem.dtype,
                layout=elem.layout, device=elem.device, requires_grad=elem.requires_grad,
            )  # fmt: skip

        def __init__(self, elem: Any) -> None:
            self.elem = elem.detach() if elem.requires_grad else elem

        def __repr__(self, *, tensor_contents: Any = None) -> str:
            return f"LoggingTensor({self.elem})"

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            def unwrap(x: Any) -> Any:
                return x.elem if isinstance(x, LoggingTensor) else x

            def wrap(x: Any) -> Any:
                return LoggingTensor(x) if isinstance(x, library.Tensor) else x

            result = tree_map(wrap, func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs or {})))
            lines.append(f"{func}{describe(library, args)} -> {describe(library, result)}")
            if str(func).partition(".")[2].partition(".")[0].endswith("_") and args:
                return args[0]
            return result

    return LoggingTensor


def quantized_class(library: Any) -> Any:
    """Return a class of tensors that keep 8-bit numbers and a scale, and compute with what these stand for."""
    tree_map = library.utils._pytree.tree_map

    class Quantized(library.Tensor):  # type: ignore[misc, name-defined]
        __torch_function__ = library._C._disabled_torch_function_impl

        @staticmethod
        def __new__(cls: Any, numbers: Any, scale: float) -> Any:
            return library.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=library.float32)

        def __init__(self, numbers: Any, scale: float) -> None:
            self.numbers, self.scale = numbers, scale

        def __tensor_flatten__(self) -> Any:
            return ["numbers"], self.scale

        @staticmethod
        def __tensor_unflatten__(inner: Any, scale: Any, size: Any, stride: Any) -> Any:
            return Quantized(inner["numbers"], scale)

        def dequantize(self) -> Any:
            return self.numbers.to(library.float32) * self.scale

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (library.ops.aten.detach.default, library.ops.aten.clone.default):
                return Quantized(args[0].numbers, args[0].scale)
            plain = [x.dequantize() if isinstance(x, Quantized) else x for x in args]
            return func(*plain, **tree_map(lambda x: x, kwargs or {}))

    return Quantized


_STEPS = [
    "a + 1", "a * a", "a.exp()", "a.tanh()", "t.nn.functional.relu(a)", "a.t().t()", "a.view(6).view(2, 3)", "a[:1] + a",
    "a.sum(0) + a", "a @ t.ones(3, 3)", "a.softmax(-1)", "a.clone().add_(1)", "t.cat([a[:1], a[1:]])",
    "a - a.mean()", "a.reshape(3, 2).t().contiguous()", "t.nn.functional.linear(a, t.ones(3, 3), t.ones(3))",
]  # fmt: skip


def _run(library: Any, steps: list[str]) -> tuple[list[str], Any, Any]:
    lines: list[str] = []
    cls = logging_class(library, lines)
    x = a = cls(library.arange(6.0).mul(0.1).reshape(2, 3)).requires_grad_()
    for step in steps:
        a = eval(step, {"a": a, "t": library})
    assert type(a) is cls
    a.sum().backward()
    assert type(x.grad) is cls
    return lines, a.elem.flatten().tolist(), x.grad.elem.flatten().tolist()


@pytest.mark.skipif(torch is None, reason="needs PyTorch")
@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(_STEPS), min_size=1, max_size=4))
def test_random_programs_of_wrappers_equal(steps: list[str]) -> None:
    ours, theirs = _run(flambeau, steps), _run(torch, steps)
    assert ours[0] == theirs[0]
    assert ours[1] == pytest.approx(theirs[1], rel=1e-5)
    assert ours[2] == pytest.approx(theirs[2], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("library", LIBRARIES)
def test_layout_of_wrapper_is_that_asked_for(library: Any) -> None:
    cls = logging_class(library, [])
    inner = library.zeros(4, 6)[1:, ::2].t()
    x = cls(inner)
    assert x.shape == (3, 3)
    assert x.stride() == inner.stride() == (2, 6)
    assert x.storage_offset() == 6
    assert (x.dtype, x.device, x.is_leaf, x.requires_grad) == (inner.dtype, inner.device, True, False)
    assert cls(inner).requires_grad_().requires_grad


@pytest.mark.parametrize("library", LIBRARIES)
def test_views_and_changes_in_place(library: Any) -> None:
    lines: list[str] = []
    cls = logging_class(library, lines)
    x = cls(library.ones(2, 3))
    row = x[0]
    assert row._base is x
    row.add_(1)
    assert x.elem.tolist() == [[2.0, 2.0, 2.0], [1.0, 1.0, 1.0]]
    assert x._version == row._version == 1


@pytest.mark.parametrize("library", LIBRARIES)
def test_saved_wrapper_that_changed_raises(library: Any) -> None:
    cls = logging_class(library, [])
    x = cls(library.ones(3)).requires_grad_()
    w = cls(library.ones(3))
    y = (x * w).sum()
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrapper_as_parameter_trains(library: Any) -> None:
    cls = logging_class(library, [])
    layer = library.nn.Linear(3, 2)
    layer.weight = library.nn.Parameter(cls(library.ones(2, 3)))
    assert type(layer.weight) is cls
    assert isinstance(layer.weight, library.nn.Parameter)
    layer(library.ones(1, 3)).sum().backward()
    assert layer.weight.grad.elem.tolist() == [[1.0] * 3] * 2
    with library.no_grad():
        layer.weight.sub_(layer.weight.grad)
    assert layer.weight.elem.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("library", LIBRARIES)
def test_quantized_tensors_compute(library: Any) -> None:
    cls = quantized_class(library)
    q = cls(library.tensor([[1, 2], [3, 4]], dtype=library.int8), 0.5)
    assert (q + 1).tolist() == [[1.5, 2.0], [2.5, 3.0]]
    x = library.ones(1, 2, requires_grad=True)
    y = library.nn.functional.linear(x, q)
    y.sum().backward()
    assert y.tolist() == [[1.5, 3.5]]
    assert x.grad.tolist() == [[2.0, 3.0]]
    assert library.utils._python_dispatch.is_traceable_wrapper_subclass(q)
    assert type(copy.deepcopy(q)) is cls


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrapper_has_no_values_of_its_own(library: Any) -> None:
    x = quantized_class(library)(library.ones(2, dtype=library.int8), 1.0)
    for read in (lambda: x.tolist(), lambda: x.numpy()):
        with pytest.raises(RuntimeError):
            read()


@pytest.mark.parametrize("library", LIBRARIES)
def test_mode_precedes_class(library: Any) -> None:
    lines: list[str] = []
    x = logging_class(library, lines)(library.ones(2))

    class Mode(library.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            lines.append(f"mode {[kind.__name__ for kind in types]}")
            return func(*args, **(kwargs or {}))

    with Mode():
        x + 1
    assert [line.partition("float32")[0] for line in lines] == [
        "mode ['LoggingTensor']",
        "aten.add.Tensor[",
    ]


@pytest.mark.parametrize("library", LIBRARIES)
def test_class_that_refuses_raises(library: Any) -> None:
    class Refusing(library.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return NotImplemented

    x = library.Tensor._make_wrapper_subclass(Refusing, (2,))
    with pytest.raises(TypeError, match="Multiple dispatch failed"):
        x.exp()


@pytest.mark.parametrize("library", LIBRARIES)
def test_class_with_memory_may_call_super(library: Any) -> None:
    seen: list[str] = []

    class Seen(library.Tensor):  # type: ignore[misc, name-defined]
        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return super().__torch_dispatch__(func, types, args, kwargs)

    class Silent(library.Tensor):  # type: ignore[misc, name-defined]
        __torch_dispatch__ = library._C._disabled_torch_dispatch_impl

    assert (Seen([1.0, 2.0]) + 1).tolist() == [2.0, 3.0] or library is torch
    assert "aten.add.Tensor" in seen
    assert (Silent([1.0]) + 1).tolist() == [2.0]


def test_program_without_instances_runs_as_before() -> None:
    before = interception.count
    x = logging_class(flambeau, [])(flambeau.ones(2))
    y = x + 1
    assert interception.count == before + 2
    del x, y
    gc.collect()
    assert interception.count == before
