"""Recurrent networks of cuDNN on a real GPU, compared with our own steps in float64 on the CPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gpu_kit import GPU, needs_gpu

import flambeau
from flambeau import nn
from flambeau.nn.utils.rnn import pack_padded_sequence

pytestmark = needs_gpu

TOLERANCES = {"float64": 1e-10, "float32": 2e-5, "float16": 4e-2, "bfloat16": 3e-1}


def cases() -> list[dict[str, Any]]:
    draw = random.Random(20261129)
    made = []
    for index in range(48):
        kind = draw.choice(["LSTM", "GRU", "RNN"])
        hidden = draw.choice([1, 7, 16, 64, 100, 128, 200])
        case: dict[str, Any] = {
            "kind": kind, "dtype": list(TOLERANCES)[index % 4], "inputs": draw.choice([1, 5, 32, 128]),
            "hidden": hidden, "steps": draw.choice([1, 2, 9, 33]), "batch": draw.choice([1, 3, 16, 40]),
            "num_layers": draw.choice([1, 2, 3]), "bias": draw.random() < 0.8, "batch_first": draw.random() < 0.5,
            "bidirectional": draw.random() < 0.4, "packed": draw.random() < 0.3,
        }  # fmt: skip
        if kind == "LSTM" and hidden > 1 and draw.random() < 0.3:
            case["proj_size"] = draw.randrange(1, hidden)
        if kind == "RNN":
            case["nonlinearity"] = draw.choice(["tanh", "relu"])
        made.append(case)
    return made


def run(net: Any, x: Any, lengths: list[int] | None, states: list[Any]) -> list[Any]:
    """Return outputs, last states and all gradients of a weighted sum of them, in float64 on the CPU."""
    leaves = [x.requires_grad_(), *[s.requires_grad_() for s in states], *net.parameters()]
    given = x if lengths is None else pack_padded_sequence(x, lengths, net.batch_first, enforce_sorted=False)
    out, last = net(given, tuple(states) if len(states) > 1 else states[0])
    results = [out if lengths is None else out.data, *(last if len(states) > 1 else [last])]
    grads = [flambeau.linspace(-1, 1, r.numel()).reshape(r.shape).to(r) for r in results]
    return [t.detach().cpu().double() for t in (*results, *flambeau.autograd.grad(results, leaves, grads))]


@pytest.mark.parametrize("case", cases(), ids=lambda case: "-".join(map(str, case.values())))
def test_networks_agree_with_steps_in_float64(case: dict[str, Any]) -> None:
    flambeau.manual_seed(1)
    case = dict(case)
    kind, dtype, inputs, hidden = (case.pop(name) for name in ("kind", "dtype", "inputs", "hidden"))
    steps, batch, packed = (case.pop(name) for name in ("steps", "batch", "packed"))
    net = getattr(nn, kind)(inputs, hidden, **case, device=GPU, dtype=getattr(flambeau, dtype))
    exact = getattr(nn, kind)(inputs, hidden, **case, dtype=flambeau.float64)
    exact.load_state_dict({name: x.cpu().double() for name, x in net.state_dict().items()})
    x = flambeau.randn(*((batch, steps) if case["batch_first"] else (steps, batch)), inputs)
    cells, state = case["num_layers"] * (1 + case["bidirectional"]), case.get("proj_size") or hidden
    states = [flambeau.randn(cells, batch, n) for n in ((state, hidden) if kind == "LSTM" else (state,))]
    draw = random.Random(batch)
    lengths = [draw.randrange(1, steps + 1) for _ in range(batch)] if packed else None
    rounded = [t.to(net.weight_ih_l0.dtype) for t in (x, *states)]
    with flambeau.backends.cudnn.flags(allow_tf32=False):
        found = run(net, rounded[0].to(GPU), lengths, [s.to(GPU) for s in rounded[1:]])
        repeated = run(net, rounded[0].to(GPU), lengths, [s.to(GPU) for s in rounded[1:]])
    wanted = run(exact, rounded[0].double(), lengths, [s.double() for s in rounded[1:]])
    for a, b, again in zip(found, wanted, repeated, strict=True):
        error = (a - b).abs().max() / b.abs().max().clamp(min=1e-3)
        assert error < TOLERANCES[dtype], float(error)
        assert flambeau.equal(a, again)


def test_a_second_backward_and_second_derivatives_agree() -> None:
    net = nn.GRU(5, 7, 2).to(GPU)
    x = flambeau.randn(4, 3, 5, device=GPU, requires_grad=True)
    out = net(x)[0]
    leaves = [x, *net.parameters()]
    first = flambeau.autograd.grad(out.square().sum(), leaves, retain_graph=True)
    second = flambeau.autograd.grad(out.square().sum(), leaves, create_graph=True)
    for a, b in zip(first, second, strict=True):
        flambeau.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    third = flambeau.autograd.grad(out.square().sum(), leaves, retain_graph=True)
    assert all(flambeau.equal(a, b) for a, b in zip(first, third, strict=True))
    flambeau.autograd.grad(second[0].sum(), x)


def test_a_graph_replays_a_network() -> None:
    net = nn.LSTM(16, 32, 2).to(GPU)
    x = flambeau.randn(6, 4, 16, device=GPU)
    with flambeau.no_grad():
        wanted = net(x)[0]
        graph = flambeau.cuda.CUDAGraph()
        with flambeau.cuda.graph(graph):
            out = net(x)[0]
        x.mul_(2)
        graph.replay()
        assert not flambeau.equal(out, wanted)
        flambeau.testing.assert_close(out, net(x)[0])
