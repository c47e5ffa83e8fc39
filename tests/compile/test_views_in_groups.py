"""Views of pending results and joined results inside of compiled functions: random programs, against PyTorch's CPU build.

Integers, so that every order of additions gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import EXHAUSTIVE

import flambeau as torch

VIEWS: dict[str, Callable[[Any, Any], Any]] = {
    "slice": lambda m, x: x[..., 1:3],
    "step": lambda m, x: x[..., ::2],
    "t": lambda m, x: x.transpose(0, -1),
    "flat": lambda m, x: x.reshape(-1),
    "row": lambda m, x: x[0],
    "new": lambda m, x: x.unsqueeze(-2),
    "wide": lambda m, x: x.expand(2, *x.shape),
    "pairs": lambda m, x: x.unflatten(-1, (2, -1)),
    "diagonal": lambda m, x: x.diagonal(0, 0, -1),
    "halves": lambda m, x: m.cat(x.chunk(2, -1)[::-1], -1),
    "rotate": lambda m, x: m.cat((-x[..., 2:], x[..., :2]), -1),
    "stack": lambda m, x: m.stack((x, x * 2), -1),
    "join": lambda m, x: m.cat((x, x - 1, x), 0),
}
STEP = st.tuples(
    st.sampled_from([*VIEWS, *VIEWS, "add", "mul", "maximum", "add", "mul", "in_place", "drop", "sum"]),
    st.integers(0, 5),
    st.integers(0, 5),
)


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    with torch.virtual(races="error"):
        yield


class Programs:
    """Values of one library, and steps on them."""

    def __init__(self, m: Any, device: str) -> None:
        self.m = m
        first = m.arange(24, device=device).view(4, 6)
        self.values = [first % 7 - 3, first.view(2, 3, 4) % 5 - 2, first[0] - 1]
        self.log: list[str] = []

    def run(self, steps: list[tuple[str, int, int]]) -> None:
        for name, i, j in steps:
            a, b = (self.values[k % len(self.values)] for k in (i, j))
            try:
                made = self.step(name, a, b)
            except (RuntimeError, IndexError) as error:
                self.log.append(type(error).__name__)
                continue
            if made.numel() < 200:
                self.values.append(made)
            if len(self.values) > 6:
                self.values.pop(i % 6)

    def step(self, name: str, a: Any, b: Any) -> Any:
        if name in VIEWS:
            return VIEWS[name](self.m, a + 1 if b is a else a)
        if name == "in_place":
            return a.mul_(3).clamp_(-50, 50)
        if name == "drop":
            return a * 2
        return a.sum(-1) if name == "sum" else getattr(self.m, name)(a, b).clamp(-99, 99)

    def state(self) -> list[Any]:
        return [(t.tolist(), tuple(t.shape), t.stride(), t._version) for t in self.values]


def observe(m: Any, device: str, rounds: list[list[tuple[str, int, int]]], compile: Any) -> list[Any]:
    program = Programs(m, device)
    for steps in rounds:
        compile(program.run)(steps)
    return [program.log, program.state()]


@given(rounds=st.lists(st.lists(STEP, min_size=3, max_size=12), min_size=1, max_size=2))
@settings(max_examples=2000 if EXHAUSTIVE else 60, deadline=None)
def test_random_views_equal_pytorch(rounds: list[list[tuple[str, int, int]]]) -> None:
    oracle = pytest.importorskip("torch")
    want = observe(oracle, "cpu", rounds, lambda function: function)
    assert observe(torch, "cuda", rounds, torch.compile) == want


def rotary(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x[..., :8], x[..., 8:]
    return x * cos + torch.cat((-second, first), -1) * sin


def rotate_halves(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos[:, :8] - b * sin[:, :8], a * sin[:, :8] + b * cos[:, :8]), -1)


def rotate_pairs(x: Any, cos: Any, sin: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos[:, 8:] - b * sin[:, 8:], a * sin[:, 8:] + b * cos[:, 8:]), -1).flatten(-2)


def turn(x: Any, cos: Any, sin: Any) -> Any:
    return (x * cos).transpose(1, 2).unsqueeze(0) + 1


def gate(x: Any, cos: Any, sin: Any) -> Any:
    up, down = (x + cos).chunk(2, -1)
    return torch.nn.functional.silu(up) * down


def part(x: Any, cos: Any, sin: Any) -> Any:
    """Rotate a quarter of each row, whose boxes have other sizes than the rest."""
    a, b, rest = x[..., :2], x[..., 2:4], x[..., 4:]
    return torch.cat((torch.cat((-b, a), -1) * cos[:, :4], rest), -1)


FUNCTIONS = [rotary, rotate_halves, rotate_pairs, turn, gate, part]


def operands() -> list[Any]:
    torch.manual_seed(3)
    return [torch.randn(2, 3, 5, 16, device="cuda"), *(torch.randn(5, 16, device="cuda") for _ in range(2))]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_function_of_views_is_one_kernel(
    function: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    want = function(*operands())
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    capsys.readouterr()
    got = torch.compile(function)(*operands())
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusion: ")]
    assert len(lines) == 1
    assert "one kernel of" in lines[0]
    assert torch.equal(got, want)
    assert got.stride() == want.stride()


def test_memory_of_rotary_is_that_of_the_result() -> None:
    x = torch.randn(64, 128, 16, device="cuda")
    cos, sin = (torch.randn(128, 16, device="cuda") for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = torch.compile(rotary)(x, cos, sin)
    assert torch.cuda.max_memory_allocated() - before == result.nbytes


def test_result_without_strides_in_the_view_is_stored_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check a view in which the elements of a broadcast operand have no stride, and that its memory is freed."""

    def body() -> Any:
        flat = (x * row).reshape(-1)
        return flat[1:] - 1

    x, row = torch.randn(64, 256, device="cuda"), torch.randn(256, device="cuda")
    want = body()
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    before = torch.cuda.memory_allocated()
    got = torch.compile(body)()
    assert capsys.readouterr().err.count("one kernel of") == 2
    assert torch.equal(got, want)
    assert torch.cuda.memory_allocated() - before <= got.nbytes + 512


def test_view_shares_memory_and_version_with_its_result() -> None:
    def body(x: Any) -> Any:
        y = x * 2
        view = y[1:].detach()
        y.add_(1)
        assert view._version == 1
        late = view * 10
        view.zero_()
        return y, view, late

    y, view, late = torch.compile(body)(torch.ones(3, device="cuda"))
    assert (y.tolist(), view.tolist(), late.tolist()) == ([3, 0, 0], [0, 0], [30, 30])
    assert view.data_ptr() == y.data_ptr() + 4
    assert (view.storage_offset(), y._version) == (1, 2)


def test_gradient_through_views_equals_eager() -> None:
    gradients = []
    for function in (rotary, torch.compile(rotary)):
        x, cos, sin = operands()
        x.requires_grad_()
        function(x, cos, sin).square().sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)
