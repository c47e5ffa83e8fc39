"""What compiled functions launch on virtual GPUs: how many commands, with which memory, named and placed how."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import flambeau as torch

SIZE = 1 << 16  # elements, of which memory is a multiple of the allocator's unit


@pytest.fixture(autouse=True)
def devices() -> Iterator[None]:
    with torch.virtual(devices=2, races="error"):
        yield


def chain(x: Any) -> Any:
    return ((x * 2 + 1).tanh() - x).abs()


def test_chain_is_one_command_with_live_results_only() -> None:
    x = torch.randn(SIZE, device="cuda")
    want = chain(x)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    compiled = torch.compile(chain)
    got = compiled(x)
    assert torch.cuda.max_memory_allocated() == before + SIZE * 4
    assert torch.equal(got, want)


def test_live_intermediates_are_stored() -> None:
    def several(x: Any) -> Any:
        a = x + 1
        b = a * a
        return a, (b - x).relu()

    x = torch.randn(3, 5, device="cuda")
    for got, want in zip(torch.compile(several)(x), several(x), strict=True):
        assert torch.equal(got, want)


def test_result_has_no_memory_before_something_reads_it() -> None:
    def body(x: Any) -> Any:
        before = torch.cuda.memory_allocated()
        y = x * 2
        assert (y.shape, y.dtype, y.stride(), y.device) == (x.shape, x.dtype, x.stride(), x.device)
        assert torch.cuda.memory_allocated() == before
        assert y.data_ptr() % 16 == 0
        assert torch.cuda.memory_allocated() > before
        return y

    torch.compile(body)(torch.ones(SIZE, device="cuda"))


def test_errors_are_raised_at_the_call() -> None:
    def body(x: Any) -> str:
        y = x + 1
        with pytest.raises(RuntimeError, match="must match the size"):
            y + torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="same device"):
            y + torch.ones(4, device="cuda:1")
        return "raised"

    assert torch.compile(body)(torch.ones(4, device="cuda")) == "raised"


def test_calls_of_two_shapes_are_two_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A kernel goes through the elements of one shape."""
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    x, y = torch.ones(6, 4, device="cuda"), torch.ones(5, device="cuda")
    torch.compile(lambda: ((x + 1) * 2, (y - 1) * 3))()
    groups = [line for line in capsys.readouterr().err.splitlines() if line.startswith("fusion: ")]
    assert [line.split(": ")[1] for line in groups] == ["cuda:0 [6, 4]", "cuda:0 [5]"]
    assert "issued because: the next call has another shape" in groups[0]


def test_memory_is_at_most_that_of_eager_code() -> None:
    """Inputs that die one after the other: one kernel would need them all."""

    def body(values: list[Any]) -> list[Any]:
        return [values.pop() + k for k in range(len(values))]

    peaks = []
    for function in (body, torch.compile(body)):
        values = [torch.ones(SIZE, device="cuda") for _ in range(6)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = function(values)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        assert [int(r[0]) for r in results] == list(range(1, 7))
        del results
    assert peaks[1] <= peaks[0] == SIZE * 4


def test_memory_of_inputs_that_died_together_is_freed() -> None:
    def body(values: list[Any]) -> tuple[Any, Any]:
        product = values.pop() * values.pop()
        return product, 3.0 - product * 2

    peaks = []
    for function in (body, torch.compile(body)):
        values = [torch.ones(SIZE, device="cuda", dtype=torch.int64) for _ in range(2)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = function(values)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del results
    assert peaks[1] <= peaks[0] == SIZE * 8


def test_memory_of_inputs_of_calls_that_are_dropped_is_freed() -> None:
    """Read one tensor in two layouts, of which only a call that nothing needs reads the first."""

    def body(values: list[Any]) -> Any:
        x, small = values.pop(), values.pop() + 1
        torch.maximum(x, small)
        del small
        y = x.t() * 0.5
        del x
        return -1.0 - y

    peaks = []
    for function in (body, torch.compile(body)):
        values = [torch.ones(1, 1, device="cuda"), torch.ones(256, 256, device="cuda")]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = function(values)
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del result
    assert peaks[1] <= peaks[0]


def test_event_covers_pending_launches() -> None:
    def body(x: Any, stream: Any) -> Any:
        y = x * 2 + 1
        y.record_stream(stream)
        event = torch.cuda.Event()
        event.record()
        with torch.cuda.stream(stream):
            stream.wait_event(event)
            z = y * y  # races="error": raises if the launch of y came after the event
        torch.cuda.current_stream().wait_stream(stream)
        z.record_stream(torch.cuda.current_stream())
        return z + 0

    x = torch.randn(100, device="cuda")
    stream = torch.cuda.Stream()
    assert torch.equal(torch.compile(body)(x, stream), body(x, stream))


def test_other_thread_issues_pending_launches() -> None:
    def body(x: Any) -> Any:
        y = x * 2
        thread = threading.Thread(target=lambda: x.zero_())
        thread.start()
        thread.join()
        return y + x

    assert torch.compile(body)(torch.ones(4, device="cuda")).tolist() == [2.0] * 4


def test_race_report_names_the_operators_and_the_line() -> None:
    def body(x: Any, stream: Any) -> Any:
        with torch.cuda.stream(stream):
            y = x * 2 + 1
        x.zero_()
        return y

    with torch.virtual(devices=1, races="error"), pytest.raises(flambeau_error()) as error:
        x = torch.ones(100, device="cuda")
        torch.cuda.synchronize()
        torch.compile(body)(x, torch.cuda.Stream())
    line = body.__code__.co_firstlineno + 2
    assert "fused(mul, add)" in str(error.value)
    assert f"{os.path.basename(__file__)}:{line}" in str(error.value)


def flambeau_error() -> type[Exception]:
    from flambeau.core.errors import RaceError

    return RaceError


def test_disabled_function_inside_runs_eagerly() -> None:
    @torch.compiler.disable
    def inner(x: Any) -> Any:
        before = torch.cuda.memory_allocated()
        y = x + 1
        assert torch.cuda.memory_allocated() > before
        return y

    x = torch.ones(SIZE, device="cuda")
    assert torch.compile(lambda x: inner(x * 2) * 3)(x)[0].item() == 9


@pytest.mark.parametrize("way", ["variable", "stance", "backend"])
def test_fusion_can_be_turned_off(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def body(x: Any) -> Any:
        before = torch.cuda.memory_allocated()
        y = x + 1
        assert torch.cuda.memory_allocated() > before
        return y

    x = torch.ones(SIZE, device="cuda")
    if way == "variable":
        monkeypatch.setenv("FLAMBEAU_COMPILE", "off")
    if way == "stance":
        with torch.compiler.set_stance("force_eager"):
            torch.compile(body)(x)
    else:
        torch.compile(body, backend="eager" if way == "backend" else "inductor")(x)


def test_log_names_operators_lines_and_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    x = torch.ones(8, device="cuda")
    torch.compile(lambda x: (x * 2 + 1).sum())(x)
    text = capsys.readouterr().err
    assert "one kernel of mul" in text
    assert "sum cannot be fused" in text
    assert os.path.basename(__file__) in text


def test_backward_of_compiled_function_is_fused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    w = torch.randn(64, 64, device="cuda", requires_grad=True)
    eager = torch.autograd.grad(chain(w).sum(), w)[0]
    loss = torch.compile(lambda w: chain(w).sum())(w)
    monkeypatch.setenv("FLAMBEAU_LOGS", "fusion")
    loss.backward()
    assert "one kernel of" in capsys.readouterr().err
    assert torch.equal(w.grad, eager)


def test_failed_allocation_raises_and_later_reads_explain() -> None:
    kept: list[Any] = []

    def body(x: Any) -> None:
        kept.append(x.expand(1 << 20, -1) + 1)
        torch.cuda.synchronize()

    x = torch.ones(1 << 18, device="cuda")  # 1 TiB of results
    with pytest.raises(RuntimeError):
        torch.compile(body)(x)
    gc.collect()
