"""The loss of classes in compiled functions: gradients of eager code, by one kernel after the count of targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import EXHAUSTIVE

import flambeau as torch


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    with torch.virtual(races="error"):
        yield


def loss_and_gradient(run: Any, shape: tuple[int, int], kind: Any) -> list[Any]:
    torch.manual_seed(1)
    x = torch.randn(shape, device="cuda").to(kind).requires_grad_()
    loss = run(x, torch.randint(0, min(shape[1], 5), shape[:1], device="cuda"))
    loss.sum().backward()
    return [loss.detach(), x.grad]


@given(
    shape=st.sampled_from([(6, 10), (3, 64), (2, 40000), (300, 100)]),
    kind=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    smoothing=st.sampled_from([0.0, 0.1]),
    ignored=st.sampled_from([-100, 2]),
)
@settings(max_examples=300 if EXHAUSTIVE else 30, deadline=None)
def test_cross_entropy_equals_eager_code(
    shape: Any, kind: Any, reduction: str, smoothing: float, ignored: int
) -> None:
    def run(x: Any, y: Any) -> Any:
        loss = torch.nn.functional.cross_entropy(
            x * 2, y, reduction=reduction, label_smoothing=smoothing, ignore_index=ignored
        )
        return loss * 0.5

    want = loss_and_gradient(run, shape, kind)
    for got, expected in zip(loss_and_gradient(torch.compile(run), shape, kind), want, strict=True):
        assert torch.equal(got.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("classes", [1000, 50257])
def test_gradient_of_scores_is_one_kernel(
    classes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(600, classes, device="cuda", dtype=torch.bfloat16).requires_grad_()
    y = torch.arange(600, device="cuda")
    loss = torch.compile(lambda: torch.nn.functional.cross_entropy(x.float(), y))()
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    capsys.readouterr()
    loss.backward()
    last = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusion: ")][-1]
    assert all(name in last for name in ("one kernel of", "nll_slope", "log_softmax", "copy"))
