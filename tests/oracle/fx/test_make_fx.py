"""`make_fx`: graphs of operators are PyTorch's, and compute what the function does on other inputs."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import to_torch, torch

import flambeau
import flambeau.fx.experimental.proxy_tensor

sys.path.append(str(Path(__file__).parents[1] / "dispatch"))
from log_kit import operands
from logged_programs import SAME

if torch is not None:
    import torch.fx.experimental.proxy_tensor

oracle = pytest.mark.skipif(torch is None, reason="needs PyTorch")
RANDOM = ("dropout", "rand", "normal", "bernoulli", "multinomial", "empty", "exponential", "uniform", "rrelu")
READS = ("item(", "tolist", "bool(", "float(", "equal(", "==", "allclose", "nonzero", "[m]", "unique", "is_")


def _trace(library: Any, program: Any, *inputs: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return library.fx.experimental.proxy_tensor.make_fx(program, **options)(*inputs)


def _program(library: Any, text: str) -> Any:
    named = operands(library)

    def program(x: Any, y: Any, w: Any) -> Any:
        return eval(text, {**named, "x": x, "y": y, "w": w})

    return program


def _inputs(library: Any, scale: float = 1.0) -> list[Any]:
    named = operands(library)
    return [named[name].detach() * scale for name in "xyw"]


def _texts() -> list[str]:
    return [text for text in SAME if not any(word in text for word in (*RANDOM, *READS))]


OTHER_ARGUMENTS = {
    "x.norm(dim=1)", "x.norm(2,-1,True)", "t.linalg.vector_norm(x,dim=1)", "F.avg_pool2d(img,2)",
    "F.adaptive_avg_pool2d(img,1)", "x.softmax(0,dtype=t.float64)", "F.pad(x,(1,1))", "x.reshape(-1)",
    "x.masked_fill(m,0)", "l.type_as(x)", "z.fill_(1)", "(x*1).masked_fill_(m,0)",
}  # fmt: skip
"""Programs whose nodes have the same operators with equal arguments that are written in another way: 2 and 2.0."""


@oracle
@pytest.mark.parametrize("text", _texts())
def test_graphs_equal(text: str) -> None:
    ours, theirs = [
        _trace(library, _program(library, text), *_inputs(library)) for library in (flambeau, torch)
    ]
    if text in OTHER_ARGUMENTS:
        assert [str(n.target) for n in ours.graph.nodes] == [str(n.target) for n in theirs.graph.nodes]
    else:
        assert ours.code == theirs.code
    _assert_close(ours(*_inputs(flambeau, 1.5)), theirs(*_inputs(torch, 1.5)))


def _assert_close(ours: Any, theirs: Any) -> None:
    leaves = flambeau.utils._pytree.tree_leaves
    for mine, expected in zip(leaves(ours), leaves(theirs), strict=True):
        if isinstance(expected, torch.Tensor):
            torch.testing.assert_close(to_torch(mine), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            assert mine == expected


# Steps of random programs: each keeps the shape of its operand `a`.
STEPS = (
    "a + x", "a.relu()", "a.add_(1)", "a.mul_(y)", "(a @ w.t()) @ w", "t.cat(a.chunk(2, 1), 1)", "a - a.mean(1, True)",
    "t.where(a > 0, a, y)", "a.t().contiguous().t()", "a.max(1, keepdim=True)[0] + a", "F.softmax(a, -1)",
    "a.clone().zero_()", "t.zeros(3, 4) + a", "a[:, 1:2] * a", "a.sort(1)[0]", "a * t.tensor(2.0)",
    "a + t.autograd.grad((x.requires_grad_() * y).sum(), x)[0]",
)  # fmt: skip


@oracle
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=7), st.sampled_from(["real", "fake"]))
def test_random_programs_equal(steps: list[str], mode: str) -> None:
    def program(library: Any) -> Any:
        def run(x: Any, y: Any, w: Any) -> Any:
            a = x * 1
            for step in steps:
                a = eval(step, {"t": library, "F": library.nn.functional, "x": x, "y": y, "w": w, "a": a})
            return {"last": a, "all": [x, y]}

        return run

    ours, theirs = [
        _trace(library, program(library), *_inputs(library), tracing_mode=mode)
        for library in (flambeau, torch)
    ]
    assert ours.code == theirs.code
    _assert_close(ours(*_inputs(flambeau, 0.5)), theirs(*_inputs(torch, 0.5)))


def _report(library: Any, text: str, *inputs: Any, **options: Any) -> Any:
    program = eval(text, {"t": library, "F": library.nn.functional, "k": library.ones(3)})
    try:
        traced = _trace(library, program, *inputs, **options)
    except (RuntimeError, AssertionError) as error:
        return type(error).__name__, str(error)[:90]
    shapes = [(n.op, str(n.target), getattr(n.meta.get("val"), "shape", None)) for n in traced.graph.nodes]
    return traced.code, repr(shapes), [(name, tuple(b.shape)) for name, b in traced.named_buffers()]


@oracle
@pytest.mark.parametrize(
    "text",
    [
        "lambda x: x.item() + 1",
        "lambda x: x if x.sum() > 0 else -x",
        "lambda x: x + t.tensor(3.0).item()",
        "lambda x: x + (t.tensor(3.0) * 2).add_(1).item()",
        "lambda x: x + k[0].item()",
        "lambda x: x + k",
        "lambda *xs: xs[0] + 1",
        "lambda x: [x, 5, None, {'a': x + 1}]",
        "lambda x: t.where(x > 0, t.rand(()), x)",
        "t.nn.Sequential(t.nn.Flatten(0), t.nn.Linear(1, 2))",
        "t.sin",
    ],
)
def test_numbers_constants_and_modules_equal(text: str) -> None:
    assert _report(flambeau, text, flambeau.tensor(2.0)) == _report(torch, text, torch.tensor(2.0))


@oracle
def test_nested_inputs_equal() -> None:
    def inputs(library: Any) -> Any:
        return [library.ones(1, 2), {"a": library.zeros(3)}], library.ones(2, 2)

    text = "lambda xs, y: (xs[0] @ y, xs[1]['a'] + 1)"
    assert _report(flambeau, text, *inputs(flambeau)) == _report(torch, text, *inputs(torch))


@oracle
def test_decompositions_replace_operators() -> None:
    def table(library: Any) -> Any:
        return {
            library.ops.aten.gelu.default: lambda x, approximate="none": x * (1 + library.erf(x * 0.5)) * 0.5
        }

    codes = [
        _trace(library, library.nn.functional.gelu, library.ones(3), decomposition_table=table(library)).code
        for library in (flambeau, torch)
    ]
    assert codes[0] == codes[1]


@pytest.mark.parametrize(
    "options", [{"tracing_mode": "symbolic"}, {"pre_dispatch": True}, {"record_module_stack": True}]
)
def test_unsupported_options_raise(options: dict[str, Any]) -> None:
    with pytest.raises(flambeau.NotSupportedError, match="make_fx"):
        _trace(flambeau, lambda x: x, flambeau.ones(2), **options)


def test_proxy_mode_is_found_during_a_trace() -> None:
    module = flambeau.fx.experimental.proxy_tensor
    found = []

    def program(x: Any) -> Any:
        found.append(module.get_proxy_mode())
        with module.disable_proxy_modes_tracing():
            found.append(module.get_proxy_mode())
        return x

    _trace(flambeau, program, flambeau.ones(2))
    assert isinstance(found[0], module.ProxyTorchDispatchMode)
    assert found[1:] == [None]
    assert module.get_proxy_mode() is None
