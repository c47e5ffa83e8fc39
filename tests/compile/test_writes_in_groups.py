"""In-place operators inside of compiled functions: random programs on views of few tensors, against PyTorch's CPU build.

Integers, so that every order of additions gives the same bits.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import EXHAUSTIVE

import flambeau as torch

SHAPE = (4, 6)
WRITES = (
    "add_",
    "sub_",
    "mul_",
    "copy_",
    "maximum",
    "fill_",
    "clamp_",
    "neg_",
    "masked_fill_",
    "out",
    "setitem",
)
VIEWS = ("alias", "rows", "columns", "t", "row", "flat", "wide", "halves")
STEP = st.tuples(
    st.sampled_from([*WRITES, *WRITES, *VIEWS, "pure", "pure", "drop", "read"]),
    st.integers(0, 5),
    st.integers(0, 5),
)


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    with torch.virtual(races="error"):
        yield


class Programs:
    """Values of one library, and steps that change them."""

    def __init__(self, m: Any, device: str) -> None:
        self.m = m
        first = m.arange(24, device=device).view(SHAPE) % 7 - 3
        self.values = [first, m.arange(24, device=device).view(SHAPE) % 5, (first > 0).to(m.int32)]
        self.log: list[Any] = []

    def run(self, steps: list[tuple[str, int, int]]) -> None:
        for name, i, j in steps:
            a, b = (self.values[k % len(self.values)] for k in (i, j))
            try:
                made = self.step(name, a, b)
            except RuntimeError as error:
                self.log.append((name, type(error).__name__))
                continue
            if made is not None and len(self.values) < 6:
                self.values.append(made)
            elif made is not None:
                self.values[i] = made

    def step(self, name: str, a: Any, b: Any) -> Any:
        if name == "drop":
            if len(self.values) > 3:
                self.values.pop()
        elif name == "read":
            self.log.append(a.tolist())
        elif name == "pure":
            return a * 2 - b
        elif name in VIEWS:
            return {
                "alias": lambda: a.view(a.shape), "rows": lambda: a[::2], "columns": lambda: a[..., 1:], "t": a.t,
                "row": lambda: a[0], "flat": lambda: a.view(-1), "wide": lambda: a.expand(2, *a.shape),
                "halves": lambda: a.chunk(2)[-1],
            }[name]()  # fmt: skip
        elif name in ("clamp_", "neg_"):
            return a.clamp_(-50, 50) if name == "clamp_" else a.neg_()
        elif name in ("maximum", "out"):
            if a.shape == b.shape:  # else `out=` is resized, and other views show memory that nothing has set
                self.m.maximum(a, b, out=a) if name == "maximum" else self.m.add(b, b, out=a)
        elif name == "setitem":
            a[...] = b
        elif name == "fill_":
            return a.fill_(3)
        elif name == "masked_fill_":
            return a.masked_fill_(b > 0, 1)
        else:
            return getattr(a, name)(b)

    def state(self) -> list[Any]:
        return [(t.tolist(), tuple(t.shape), t.stride(), t._version, str(t.dtype)) for t in self.values]


def observed(m: Any, device: str, rounds: list[list[tuple[str, int, int]]], compile: Any) -> list[Any]:
    program = Programs(m, device)
    for steps in rounds:
        compile(program.run)(steps)
    return [program.log, program.state()]


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors:UserWarning")
@given(rounds=st.lists(st.lists(STEP, min_size=3, max_size=12), min_size=1, max_size=2))
@settings(max_examples=2000 if EXHAUSTIVE else 40, deadline=None)
def test_random_writes_equal_pytorch(rounds: list[list[tuple[str, int, int]]]) -> None:
    oracle = pytest.importorskip("torch")
    want = observed(oracle, "cpu", rounds, lambda function: function)
    assert observed(torch, "cuda", rounds, torch.compile) == want


def groups(function: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines of the fusion log that a call of a compiled function writes."""
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    capsys.readouterr()
    torch.compile(function)()
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusion: ")]


def test_writes_into_two_tensors_are_one_kernel(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, total = torch.ones(8, device="cuda"), torch.zeros(8, device="cuda")

    def body() -> Any:
        y = x * 2
        total.add_(y).mul_(3)
        y.relu_()
        x.copy_(total)
        return y

    lines = groups(body, monkeypatch, capsys)
    assert len(lines) == 1
    assert "one kernel of" in lines[0]
    assert (x.tolist(), total.tolist(), x._version, total._version) == ([6.0] * 8, [6.0] * 8, 1, 2)


def test_read_in_another_layout_issues_the_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.arange(9, device="cuda").view(3, 3)

    def body() -> Any:
        x.mul_(2)
        return x.t() + x

    lines = groups(body, monkeypatch, capsys)
    assert "reads what the group writes in another layout" in lines[0]


def test_write_of_what_was_read_in_another_layout_issues_the_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check the order: one kernel would let a thread write what another one has yet to read."""
    x = torch.arange(9, device="cuda").view(3, 3)

    def body() -> Any:
        turned = x.t() + 1
        x.mul_(2)
        return turned

    lines = groups(body, monkeypatch, capsys)
    assert "writes what the group reads in another layout" in lines[0]


def test_pending_result_keeps_its_memory_when_written() -> None:
    x = torch.ones(1 << 16, device="cuda")

    def body() -> Any:
        y = x * 2
        y.add_(1).mul_(x)
        return y

    body()
    peaks = []
    for function in (body, torch.compile(body)):
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = function()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert result[0].item() == 3
        assert result._version == 2
        del result
    assert peaks[1] <= peaks[0]


def test_gradient_through_writes_is_recorded() -> None:
    def body(w: Any) -> Any:
        y = w * 2
        y.mul_(w)
        y.add_(1).relu_()
        return y

    results = []
    for function in (body, torch.compile(body)):
        w = torch.arange(-3.0, 5, device="cuda").requires_grad_()
        function(w).sum().backward()
        results.append(w.grad.tolist())
    assert results[0] == results[1]


def step(optimizer: Any) -> Callable[[Any], Any]:
    return lambda w: optimizer.step()


LISTS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "sgd": lambda w: step(torch.optim.SGD([w], lr=0.5, momentum=0.9)),
    "adam": lambda w: step(torch.optim.Adam([w], lr=0.5)),
    "capturable adam": lambda w: step(torch.optim.Adam([w], lr=0.5, capturable=True)),
    "rmsprop": lambda w: step(torch.optim.RMSprop([w], lr=0.5)),
    "clipping": lambda w: lambda w: torch.nn.utils.clip_grad_norm_([w], 1.0),
    "clipping of values": lambda w: lambda w: torch.nn.utils.clip_grad_value_([w], 0.5),
    "foreach": lambda w: lambda w: torch._foreach_mul_([w.detach(), w.grad], 3.0),
    "average": lambda w: lambda w: torch._foreach_lerp_([w.detach()], [w.grad], 0.25),
    "norm": lambda w: lambda w: torch._foreach_norm([w.grad])[0],
}


@pytest.mark.parametrize("name", LISTS)
def test_changes_of_lists_see_pending_writes(name: str) -> None:
    """Change parameter and gradient by calls that wait, then by an operator over lists, whose plan is new or known."""
    observed = []
    for wrap in (lambda function: function, torch.compile):
        w = torch.nn.Parameter(torch.linspace(-1, 1, 12, device="cuda").view(3, 4))
        w.grad = torch.ones(3, 4, device="cuda")
        change = LISTS[name](w)

        def body(w: Any = w, change: Any = change) -> Any:
            w.detach().mul_(2).add_(0.5)
            w.grad.mul_(w.detach())
            result = change(w)
            return w.detach() * 1, w.grad * 1, result

        compiled = wrap(body)
        runs = [compiled() for _ in range(4)]
        observed.append([[x.tolist() for x in run if isinstance(x, torch.Tensor)] for run in runs])
    assert observed[0] == observed[1]
