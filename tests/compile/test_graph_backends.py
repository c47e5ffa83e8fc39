"""Backends of programs receive graphs, and what they return runs in place of the function; `Module.compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.nn import functional


class Backend:
    """A backend that keeps what it receives, and runs the graph."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.runs = 0

    def __call__(self, module: Any, inputs: Any) -> Callable[..., Any]:
        assert isinstance(module, torch.fx.GraphModule)
        assert all(isinstance(x, torch.Tensor) for x in inputs)
        self.graphs.append(module)

        def run(*tensors: Any) -> Any:
            self.runs += 1
            return module(*tensors)

        return run


def block(x: Any, y: Any, scale: float = 2.0) -> Any:
    a = torch.relu(x) @ y.t()
    b, c = a.chunk(2, dim=1)
    return {"sum": (b + c).sum(-1) * scale, "shape": a.shape[0], "parts": [torch.cat([b, c], 1), x.T]}


def attention(x: Any, y: Any) -> Any:
    scores = functional.softmax(x @ y.transpose(-1, -2) / x.size(-1) ** 0.5, dim=-1)
    return functional.layer_norm(scores @ y, (6,)), scores[:, 0].max(0).values


def in_place(x: Any, y: Any) -> Any:
    x.add_(y)
    x[:, 0] = 1
    return x * 2


def dropped(x: Any, y: Any) -> Any:
    return functional.dropout(x, 0.5) + torch.rand(4, 6) * y + torch.ones(6)


def leaves(value: Any) -> list[Any]:
    found, _ = torch.utils._pytree.tree_flatten(value)
    return [x.tolist() if isinstance(x, torch.Tensor) else x for x in found]


@pytest.mark.parametrize("function", [block, attention, in_place, dropped], ids=lambda f: f.__name__)
def test_graph_gives_the_functions_results(function: Any) -> None:
    def run(called: Any) -> list[Any]:
        torch.manual_seed(0)
        log: list[Any] = []
        for _ in range(4):
            x, y = torch.randn(4, 6), torch.randn(4, 6)
            log.append((leaves(called(x, y)), x.tolist(), x._version))
        return [*log, torch.get_rng_state().tolist()]

    backend = Backend()
    assert run(torch.compile(function, backend=backend)) == run(function)
    assert len(backend.graphs) == 1
    assert backend.runs == (3 if function in (in_place, dropped) else 4)


def test_graph_has_public_functions_and_names() -> None:
    backend = Backend()
    torch.compile(lambda x: torch.relu(x) + x.sin(), backend=backend)(torch.ones(3))
    nodes = [
        (node.op, node.target if isinstance(node.target, str) else node.target.__name__)
        for node in backend.graphs[0].graph.nodes
    ]
    assert nodes == [
        ("placeholder", "l_x_"), ("call_function", "relu"), ("call_method", "sin"), ("call_method", "add"),
        ("output", "output"),
    ]  # fmt: skip


def test_gradients_flow_through_the_graph() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 2))
    backend = Backend()
    compiled, log = torch.compile(net, backend=backend), []
    for called in (net, compiled, compiled):
        net.zero_grad()
        called(torch.arange(24.0).view(4, 6)).square().sum().backward()
        log.append([p.grad.tolist() for p in net.parameters()])
    assert log[0] == log[1] == log[2]
    assert len(backend.graphs) == 1
    assert {name for name, _ in backend.graphs[0].named_parameters()} != set()
    net.eval()
    assert torch.equal(compiled(torch.ones(4, 6)), net(torch.ones(4, 6)))
    assert len(backend.graphs) == 2


class Scaled:
    def __init__(self) -> None:
        self.factor, self.weight = 2.0, torch.ones(3)

    def __call__(self, x: Any, *, power: int = 1) -> Any:
        return x**power * self.factor * self.weight


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (setattr(f, "factor", 3.0), {})[1], lambda f: (setattr(f, "weight", torch.zeros(3)), {})[1],
        lambda f: {"power": 2}, lambda f: {"x": torch.full((2, 3), 2.0)}, lambda f: {"x": torch.ones(3).double()},
        lambda f: {"x": torch.ones(3, requires_grad=True)},
    ],
)  # fmt: skip
def test_guard_leads_to_another_graph(change: Any) -> None:
    scaled, backend = Scaled(), Backend()
    compiled = torch.compile(scaled.__call__, backend=backend)
    for _ in range(3):
        compiled(torch.ones(3))
    assert len(backend.graphs) == 1
    arguments = {"x": torch.full((3,), 2.0)} | change(scaled)
    for _ in range(3):
        assert torch.equal(compiled(**arguments), scaled(**arguments))
    assert len(backend.graphs) == 2


def reads(x: Any) -> Any:
    return x + 1 if x.sum() > 0 else x - 1


def stores(x: Any) -> Any:
    STORED.append(1)
    return x + 1


def switches(x: Any) -> Any:
    with torch.no_grad():
        return x + 1


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2


def applies(x: Any) -> Any:
    return Double.apply(x) + 1


def converts(x: Any) -> Any:
    return x + torch.tensor(np.ones(3))


def hides(x: Any) -> Any:
    with torch._C.DisableTorchFunction():
        y = x * 2
    return y + 1


STORED: list[int] = []
UNFIT = {
    reads: "the result of __bool__ is not a tensor", stores: "it changes", switches: "grad mode or autocast is changed",
    applies: "grad mode or autocast is changed", converts: "an argument is an object of the class ndarray",
    hides: "no recorded call returned",
}  # fmt: skip


@pytest.mark.parametrize("function", UNFIT, ids=lambda f: f.__name__)
def test_unfit_function_runs_eagerly(function: Any, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    STORED.clear()
    backend = Backend()
    compiled, x = torch.compile(function, backend=backend), torch.ones(3, requires_grad=True)
    for k in range(3):
        assert torch.equal(compiled(x), function(x))
        assert len(STORED) == (2 * k + 2 if function is stores else 0)
    assert backend.graphs == []
    assert UNFIT[function] in capsys.readouterr().err
    explained = torch._dynamo.explain(torch.compile(function, backend=backend))(x)
    assert (explained.graph_count, explained.graph_break_count) == (0, 1)
    assert UNFIT[function] in str(explained)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="fullgraph=True"):
        torch.compile(function, backend=backend, fullgraph=True)(x)


def test_backends_are_found_by_name_and_fail_as_in_pytorch() -> None:
    def double(module: Any, inputs: Any) -> Any:
        return lambda *tensors: [t * 2 for t in module(*tensors)]

    torch._dynamo.register_backend(double, name="doubling")
    assert torch.compile(torch.neg, backend="doubling")(torch.ones(2)).tolist() == [-2.0, -2.0]
    assert "doubling" in torch._dynamo.list_backends()
    explained = torch._dynamo.explain(torch.compile(lambda x: x.neg(), backend="doubling"))(torch.ones(2))
    assert (explained.ops_per_graph, explained.graph_count) == ([["neg"]], 1)
    for name in ("eager", "aot_eager"):
        assert torch.compile(torch.neg, backend=name)(torch.ones(2)).tolist() == [-1.0, -1.0]
    with pytest.raises(
        torch._dynamo.exc.InvalidBackend, match=r"'none', see `torch._dynamo.list_backends\(\)`"
    ):
        torch.compile(torch.neg, backend="none")
    for broken in (lambda module, inputs: 3, lambda module, inputs: 1 / 0):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="raised"):
            torch.compile(torch.neg, backend=broken)(torch.ones(2))


def test_module_is_compiled_in_place() -> None:
    backend, net = Backend(), torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    keys, x = list(net.state_dict()), torch.ones(2, 3)
    want = net(x)
    net.compile(backend=backend)
    assert torch.equal(net(x), want)
    assert (len(backend.graphs), list(net.state_dict())) == (1, keys)
    net.register_forward_hook(lambda module, args, output: output + 1)
    assert torch.equal(net(x), want + 1)
    with torch.virtual(races="error"):
        layer = torch.nn.Linear(6, 6).cuda()
        layer.compile(mode="reduce-overhead")
        with torch.no_grad():
            for _ in range(4):
                y = torch.randn(2, 6, device="cuda")
                assert torch.equal(layer(y), functional.linear(y, layer.weight, layer.bias))
        assert layer._compiled_call_impl._flambeau_compiled.replays == 2  # type: ignore[union-attr]
        torch.compiler.reset()
