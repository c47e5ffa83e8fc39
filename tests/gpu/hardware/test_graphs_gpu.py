"""CUDA graphs on a real GPU: replays against eager runs, random numbers, libraries' workspaces, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpu_kit import needs_gpu

import flambeau as torch

pytestmark = needs_gpu


def captured(work: Any, warm: bool = True) -> tuple[Any, Any]:
    """A graph of the work, which has run before: libraries make their handles then."""
    if warm:
        with torch.cuda.stream(torch.cuda.Stream()):
            work()
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


@pytest.mark.parametrize(
    "work",
    [
        lambda x: (x * 2 + 1).relu(),
        lambda x: (x @ x.t()).sum(0),
        lambda x: x.sum(),
        lambda x: x.softmax(1).cumsum(0),
        lambda x: x.flatten().sort().values,
        lambda x: torch.nn.functional.layer_norm(x, (96,)).max(1).values,
        lambda x: torch.nn.functional.conv2d(x.reshape(1, 1, 64, 96), x[:3, :3].reshape(1, 1, 3, 3)),
    ],
    ids=["pointwise", "matmul", "sum", "scan", "sort", "norm", "convolution"],
)
def test_replays_equal_eager_runs(work: Any) -> None:
    x = torch.rand(64, 96, device="cuda")
    graph, y = captured(lambda: work(x))
    for _ in range(3):
        x.copy_(torch.rand(64, 96))
        graph.replay()
        wanted = work(x)
        torch.cuda.synchronize()
        assert torch.allclose(y, wanted, rtol=1e-5, atol=1e-6)


def test_scratch_memory_outlives_what_the_stream_needs_later() -> None:
    """Eager work on the captured stream needs more scratch memory and replaces its own; the graph's stays."""
    x, stream = torch.rand(1 << 20, device="cuda"), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    x.sum()
    with torch.cuda.graph(graph, stream=stream):
        y = x.sum()
    with torch.cuda.stream(stream):
        for rows in (1, 100, 10_000, 100_000):
            torch.rand(rows, 700, device="cuda").sum(0)
    torch.cuda.synchronize()
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.allclose(y, x.sum())


def test_streams_fork_and_join() -> None:
    x, side = torch.ones(1 << 16, device="cuda"), torch.cuda.Stream()

    def work() -> Any:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            y = x * 3
        z = x + 1
        here.wait_stream(side)
        return y * z

    graph, out = captured(work)
    x.fill_(4)
    graph.replay()
    torch.cuda.synchronize()
    assert out.min().item() == out.max().item() == 60.0


def test_replays_draw_what_eager_calls_would() -> None:
    def draws() -> tuple[Any, ...]:
        ones = torch.ones(1000, device="cuda")
        return (
            torch.rand(500, device="cuda"),
            torch.randn(70, device="cuda"),
            torch.nn.functional.dropout(ones, 0.5),
            torch.poisson(ones * 3),
        )

    draws()
    torch.cuda.manual_seed(5)
    wanted = [[t.tolist() for t in draws()] for _ in range(3)]
    torch.cuda.manual_seed(5)
    graph, drawn = captured(draws, warm=False)
    found = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        found.append([t.tolist() for t in drawn])
    found.append([t.tolist() for t in draws()])
    assert found == wanted


def test_what_is_not_allowed_raises_and_leaves_all_usable(tmp_path: Path) -> None:
    x = torch.ones(16, device="cuda")
    for forbidden in (lambda: x.sum().item(), torch.cuda.synchronize, lambda: torch.ones(4).to("cuda")):
        with pytest.raises(RuntimeError):
            captured(forbidden, warm=False)
        assert not torch.cuda.is_current_stream_capturing()
        assert x.sum().item() == 16
    graph, _ = captured(lambda: x + 1)
    graph.debug_dump(str(tmp_path / "graph.dot"))
    assert "digraph" in (tmp_path / "graph.dot").read_text()


def test_graphed_modules_learn_as_eager_ones() -> None:
    torch.manual_seed(0)
    nets = [torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).cuda()]
    nets.append(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)).cuda())
    nets[1].load_state_dict(nets[0].state_dict())
    nets[1] = torch.cuda.make_graphed_callables(nets[1], (torch.zeros(16, 64, device="cuda"),))
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for _ in range(4):
        x = torch.randn(16, 64, device="cuda")
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
    for mine, theirs in zip(*[net.parameters() for net in nets], strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_graph_may_be_part_of_another() -> None:
    x = torch.zeros(4, device="cuda")
    inner, _ = captured(lambda: x.mul_(2))
    outer, _ = captured(lambda: (x.add_(10), inner.replay(), x.sub_(1), inner.replay()))
    x.zero_()
    for _ in range(2):
        outer.replay()
    inner.replay()
    torch.cuda.synchronize()
    want = ((0 + 10) * 2 - 1) * 2
    assert x.tolist() == [(((want + 10) * 2 - 1) * 2) * 2] * 4
    draws, _ = captured(lambda: x.uniform_())
    with pytest.raises(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        draws.replay()


def test_a_kept_graph_has_cudas_names_and_is_made_ready_anew() -> None:
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        x.add_(1)
    assert graph.raw_cuda_graph()
    graph.instantiate()
    first = graph.raw_cuda_graph_exec()
    graph.replay()
    graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()
    assert first and x.tolist() == [2.0] * 4
