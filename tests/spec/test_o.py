"""SPEC O: NVTX: ranges and marks of the program."""

from __future__ import annotations

import itertools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import flambeau as torch
from flambeau.cuda import nvtx
from flambeau.driver.driver_registry import nvtx_tool
from flambeau.observe.tracing.range_recorder import AnnotatedRange, RangeRecorder
from flambeau.runtime.hooks import annotations


@pytest.fixture
def heard() -> Iterator[list[AnnotatedRange]]:
    ranges = RangeRecorder(partial(next, itertools.count()))
    annotations.subscribe(ranges)
    yield ranges.found
    annotations.unsubscribe(ranges)


def test_o01_mark(heard: list[AnnotatedRange]) -> None:
    assert nvtx.mark("here") is None
    nvtx.range_push("a")
    nvtx.mark("inside")
    nvtx.range_pop()
    assert [(r.text, r.begin_ns, r.is_mark) for r in heard] == [
        ("here", 0, True),
        ("inside", 2, True),
        ("a", 1, False),
    ]
    for call in (nvtx.mark, nvtx.range_push, nvtx.range_start):
        with pytest.raises(TypeError, match="msg must be str, not int"):
            call(3)


def test_o02_ranges_nest(heard: list[AnnotatedRange]) -> None:
    assert nvtx.range_push("outer") == 0
    assert nvtx.range_push("inner") == 1
    assert nvtx.range_pop() == 1
    assert nvtx.range_pop() == 0
    assert nvtx.range_pop() == -1
    assert heard == [AnnotatedRange("inner", 0, 1, 2, 1), AnnotatedRange("outer", 0, 0, 3, 0)]


def test_o02_each_thread_has_its_own_stack(heard: list[AnnotatedRange]) -> None:
    nvtx.range_push("main")
    depths: list[int] = []
    other = threading.Thread(target=lambda: depths.extend([nvtx.range_push("other"), nvtx.range_pop()]))
    other.start()
    other.join()
    assert depths == [0, 0] and nvtx.range_pop() == 0
    assert [(r.text, r.thread) for r in heard] == [("other", 1), ("main", 0)]


def test_start_and_end_need_no_order(heard: list[AnnotatedRange]) -> None:
    a, b = nvtx.range_start("a"), nvtx.range_start("b")
    assert isinstance(a, int) and a != b
    nvtx.range_end(a)
    nvtx.range_end(b)
    nvtx.range_end(a)
    assert [(r.text, r.begin_ns, r.end_ns, r.number) for r in heard] == [("a", 0, 2, a), ("b", 1, 3, b)]
    with pytest.raises(TypeError, match="expected int, got str"):
        nvtx.range_end("a")


def test_range_is_a_context_and_a_decorator(heard: list[AnnotatedRange]) -> None:
    with pytest.raises(ZeroDivisionError), nvtx.range("step {} of {last}", 1, last=2):
        nvtx.range_push("inside")
        nvtx.range_pop()
        raise ZeroDivisionError

    @nvtx.range("function")
    def double(x: int) -> int:
        return 2 * x

    assert double(2) == 4
    assert [r.text for r in heard] == ["inside", "step 1 of 2", "function"]
    assert nvtx.range_pop() == -1


def stack() -> None:
    nvtx.range_push("x")
    nvtx.range_pop()


def anywhere() -> None:
    nvtx.range_end(nvtx.range_start("x"))


def block() -> None:
    with nvtx.range("x"):
        pass


@nvtx.range("x")
def decorated() -> None:
    """Nothing."""


@pytest.mark.parametrize(
    "call", [stack, anywhere, block, partial(nvtx.mark, "x")], ids=["stack", "anywhere", "block", "mark"]
)
def test_with_nobody_listening_it_does_next_to_nothing(call: Callable[[], None]) -> None:
    """Less than a microsecond: `bench/overhead.py` measures it, here Python's calls are counted."""
    called: list[str] = []
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    assert len(called) <= 6, called


def test_a_decorated_function_is_told_anew_each_time(heard: list[AnnotatedRange]) -> None:
    decorated(), decorated()
    assert [r.text for r in heard] == ["x", "x"] and decorated.__doc__ == "Nothing."


def test_nvidia_s_tools_hear_through_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    assert nvtx_tool() is None
    calls: list[tuple[object, ...]] = []
    package = types.ModuleType("nvtx")
    for name in ("push_range", "pop_range", "start_range", "end_range", "mark"):
        setattr(package, name, lambda *args, name=name: calls.append((name, *args)) or ("id", name))
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/opt/nsight/libToolsInjection64.so")
    monkeypatch.setitem(sys.modules, "nvtx", package)
    tool = nvtx_tool()
    annotations.subscribe(tool)
    with torch.cuda.nvtx.range("a"):
        nvtx.mark("m")
    nvtx.range_end(nvtx.range_start("b"))
    annotations.unsubscribe(tool)
    assert calls == [
        ("push_range", "a"),
        ("mark", "m"),
        ("pop_range",),
        ("start_range", "b"),
        ("end_range", ("id", "start_range")),
    ]
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with pytest.warns(UserWarning, match="package nvtx is not installed"):
        assert nvtx_tool() is None
