"""Traces: calls with their lines, what devices ran, an arrow for each wait, memory; beside what the driver itself says."""

from __future__ import annotations

import gzip
import json
import random
import re
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import flambeau as torch
from flambeau.core.callsite import line_of, place
from flambeau.driver.virtual import VirtualDriver
from flambeau.observe.tracing import gpu_timing as measured_module
from flambeau.observe.tracing.gpu_timing import Measured
from flambeau.observe.tracing.trace import TraceData, TraceSlice, trace_of
from flambeau.observe.tracing.trace_events import chrome_trace
from flambeau.observe.tracing.tracer import DriverTracer
from flambeau.report.recorder import ProcessRecorder
from flambeau.runtime import system
from flambeau.runtime.streams.wait_reason import reason, wait_reason
from flambeau.tape import engine
from flambeau.testing import conformance

SCHEDULES = ["earliest", "random:1", "adversarial:2", "pct:3:2"]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> ProcessRecorder:
    """Traces each machine that a test opens, as the command line does."""
    found = ProcessRecorder(timeline=True)
    monkeypatch.setattr(system, "_watchers", [found])
    return found


def traced(recorder: ProcessRecorder, program: Callable[[], Any], **machine: Any) -> TraceData:
    with torch.virtual(**{"devices": 2, "races": "warn", **machine}):
        program()
    return recorder.traces[-1]


def on(trace: TraceData, kind: str) -> list[TraceSlice]:
    return [s for s in trace.slices if s.kind == kind]


def on_streams(trace: TraceData) -> list[TraceSlice]:
    return [s for s in trace.slices if trace.lanes[s.lane].index >= 0]


def ends(trace: TraceData, kind: str) -> list[tuple[str, str]]:
    """Lines and names of the slices at both ends of the arrows of a kind."""

    def end(at: int) -> str:
        found = trace.slices[at]
        return f"{found.name}:{line_of(found.site)}" if found.site else found.name

    return sorted((end(a.earlier), end(a.later)) for a in trace.arrows if a.kind == kind)


HERE = Path(__file__).name


def line(text: str) -> int:
    """The number of the line of this file that ends with a comment."""
    (found,) = [
        n for n, t in enumerate(Path(__file__).read_text().splitlines(), 1) if t.endswith(f"  {text}")
    ]
    return found


def two_streams() -> None:
    x = torch.ones(1 << 20, device="cuda")  # the ones
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())  # side waits
    with torch.cuda.stream(side), torch.cuda.nvtx.range("on the side"):
        y = x * 2  # the product
        done = torch.cuda.Event()
        done.record()
    torch.cuda.current_stream().wait_event(done)  # default waits
    z = x + y  # the sum
    y.record_stream(torch.cuda.current_stream())
    done.synchronize()  # host waits for the product
    torch.cuda.current_stream().synchronize()  # host waits for the sum
    z.cpu()  # host copies


def test_commands_calls_and_arrows_have_their_lines(recorder: ProcessRecorder) -> None:
    trace = traced(recorder, two_streams)
    ran = {s.name: s for s in on_streams(trace) if s.kind != "wait"}
    assert list(ran) == ["fill", "add", "copy to the host", "mul"]
    for name, text in (
        ("fill", "# the ones"),
        ("mul", "# the product"),
        ("add", "# the sum"),
        ("copy to the host", "# host copies"),
    ):
        command = ran[name]
        call = trace.slices[command.cause]
        assert (
            command.site
            and line_of(command.site) == line(text)
            and place(command.site).endswith(f"{HERE}:{line(text)}")
        )
        assert (
            call.kind == "give"
            and call.site == command.site
            and call.begin_ns < call.end_ns <= command.end_ns
        )
    assert (
        ran["mul"].detail == "float32[1048576] = float32[1048576], a float32" and ran["mul"].nbytes == 8 << 20
    )
    product = f"mul:{line('# the product')}"
    assert ends(trace, "wait") == sorted(
        [
            (f"fill:{line('# the ones')}", f"wait:{line('# side waits')}"),
            (product, f"wait:{line('# default waits')}"),
        ]
    )
    syncs = ends(trace, "sync")
    assert (product, f"synchronize an event:{line('# host waits for the product')}") in syncs
    assert (f"add:{line('# the sum')}", f"synchronize a stream:{line('# host waits for the sum')}") in syncs
    assert (f"copy to the host:{line('# host copies')}", f"copy to the host:{line('# host copies')}") in syncs
    assert [r.text for r in trace.ranges] == ["on the side"]
    assert [lane.name for lane in trace.lanes] == ["MainThread", "default stream", "side stream 1"]


def test_a_stream_stands_still_from_when_it_came_to_a_wait_until_that_is_over(
    recorder: ProcessRecorder,
) -> None:
    def program() -> None:
        side = torch.cuda.Stream()
        torch.cuda._sleep(10**6)
        side.wait_stream(torch.cuda.current_stream())
        side.wait_stream(torch.cuda.current_stream())  # nothing is left to wait for

    first, second = [s for s in on_streams(traced(recorder, program)) if s.kind == "wait"]
    (sleep,) = [s for s in on_streams(recorder.traces[-1]) if s.name == "_sleep"]
    call = recorder.traces[-1].slices[first.cause]
    assert (first.begin_ns, first.end_ns) == (call.end_ns, sleep.end_ns) and first.end_ns > first.begin_ns
    assert second.begin_ns == second.end_ns == first.end_ns


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_trace_changes_nothing_and_says_what_the_driver_says(
    recorder: ProcessRecorder, schedule: str
) -> None:
    def run() -> tuple[Any, ...]:
        records: list[Any] = []
        with torch.virtual(devices=2, schedule=schedule) as machine:
            machine.driver.on_command = records.append
            random_program(random.Random(7))
            torch.cuda.synchronize()
            return machine.driver.trace_hash(), machine.driver.token(), machine.driver.time_ns(), records

    watched = run()
    trace = recorder.traces[-1]
    recorder.timeline = False
    plain = run()
    assert watched == plain
    seen = sorted(
        (trace.lanes[s.lane].number, s.begin_ns, s.end_ns, s.nbytes)
        for s in on_streams(trace)
        if s.kind != "wait"
    )
    records = [r for r in plain[-1] if r.kind not in ("record", "wait", "poison")]
    assert seen == sorted((r.stream, r.start_ns, r.end_ns, r.nbytes) for r in records) and len(seen) > 40


def random_program(chance: random.Random) -> list[tuple[int, int]]:
    """Sums on streams of two devices that wait for each other; each wait as (handle that waits, handle waited for)."""
    streams = [torch.cuda.Stream(d) for d in (0, 1) for _ in range(3)]
    values = [torch.zeros(64, device=s.device) for s in streams]
    for s in streams:
        s.wait_stream(torch.cuda.default_stream(s.device))
    waits = [(s.handle, torch.cuda.default_stream(s.device).handle) for s in streams]
    worked = set()
    events: dict[Any, tuple[int, bool]] = {}
    for _ in range(120):
        at = chance.randrange(len(streams))
        stream, what = streams[at], chance.random()
        if what < 0.5:
            with torch.cuda.stream(stream):
                values[at].add_(1)
            worked.add(stream.handle)
        elif what < 0.7:
            event = torch.cuda.Event()
            event.record(stream)
            events[event] = stream.handle, stream.handle in worked
        elif what < 0.92 and events:
            event = chance.choice(list(events))
            stream.wait_event(event)
            waits.append((stream.handle, events[event][0]))
        elif what < 0.96:
            stream.synchronize()
        else:
            stream.query()
    return [(waiter, other) for waiter, other in waits if waiter != other]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_wait_of_a_random_program_has_its_arrow(
    recorder: ProcessRecorder, seed: int, schedule: str
) -> None:
    asked: list[tuple[int, int]] = []
    trace = traced(recorder, lambda: asked.extend(random_program(random.Random(seed))), schedule=schedule)
    lanes = trace.lanes
    drawn = []
    for arrow in trace.arrows:
        earlier, later = trace.slices[arrow.earlier], trace.slices[arrow.later]
        assert earlier.end_ns <= later.end_ns
        if arrow.kind == "wait":
            source = lanes[earlier.lane]
            source = source if source.index >= 0 else lanes[earlier.target]  # nothing came before the record
            drawn.append((lanes[later.lane].number, source.number))
    assert sorted(drawn) == sorted(asked)


def test_each_wait_that_backward_inserts_has_its_arrow_and_its_name(
    recorder: ProcessRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered: list[int] = []
    original = engine.make_stream_wait

    def order(waiter: Any, event: Any) -> None:
        ordered.append(waiter.handle)
        original(waiter, event)

    monkeypatch.setattr(engine, "make_stream_wait", order)

    def program() -> None:
        w = torch.full((64, 64), 0.5, device="cuda", requires_grad=True)
        x = w.detach()
        sides = [torch.cuda.Stream() for _ in range(2)]
        parts = []
        for side in sides:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                parts.append((w @ x).tanh())
        for side in sides:
            torch.cuda.current_stream().wait_stream(side)
        (parts[0] + parts[1].to("cuda:1").to("cuda:0")).sum().backward()

    trace = traced(recorder, program)
    drawn = [a for a in trace.arrows if a.text.startswith("backward: ")]
    assert sorted(ordered) == sorted(trace.lanes[trace.slices[a.later].lane].number for a in drawn)
    assert len(ordered) == 5
    for a in drawn:
        earlier, later = (trace.lanes[trace.slices[at].lane].number for at in (a.earlier, a.later))
        assert re.search(
            rf"on stream {earlier} of .*called backward|from stream {earlier} of .* to stream {later} of",
            a.text,
        )
    texts = " ".join(a.text for a in drawn)
    assert "the gradient of AddBackward0 crosses from stream 1 of cuda:0 to stream" in texts
    assert "for TanhBackward0" in texts and "for torch::autograd::AccumulateGrad" in texts
    assert {trace.slices[a.later].reason for a in drawn} == {a.text for a in drawn}
    copies = [a.text for a in trace.arrows if a.text.startswith("copy between devices: ")]
    assert len(copies) == 8  # forth and back: two waits for each of two copies


def test_memory_is_what_the_allocators_say(recorder: ProcessRecorder) -> None:
    peaks: list[tuple[int, int]] = []

    def program() -> None:
        kept = [torch.empty(1 << 18, device=f"cuda:{i % 2}") for i in range(6)]
        del kept[2:4]
        kept.append(torch.empty(1 << 24, device="cuda"))
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 40, device="cuda")
        torch.cuda.empty_cache()
        peaks.extend((torch.cuda.max_memory_allocated(i), torch.cuda.max_memory_reserved(i)) for i in (0, 1))
        page = torch.empty(100).pin_memory()
        assert page.is_pinned()

    memory = traced(recorder, program).memory
    for index in (0, 1):
        mine = [entry for entry in memory if entry[1] == index]
        assert max(used for _, _, used, _ in mine) == peaks[index][0]  # sizes here are whole blocks
        assert max(reserved for *_, reserved in mine) == peaks[index][1]
        assert all(0 <= used <= reserved for _, _, used, reserved in mine)
    assert max(used for _, index, used, _ in memory if index == -1) == 400


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_what_is_reserved_comes_and_goes(
    recorder: ProcessRecorder, settings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", settings)
    kept: list[int] = []

    def program() -> None:
        x = torch.empty(30 << 18, device="cuda:1")
        y = torch.empty(90 << 18, device="cuda:1")
        kept.append(torch.cuda.memory_reserved(1))
        del x, y
        torch.cuda.empty_cache()
        kept.append(torch.cuda.memory_reserved(1))

    trace = traced(recorder, program)
    reserved = [entry[3] for entry in trace.memory if entry[1] == 1]
    assert (max(reserved), reserved[-1]) == (kept[0], 0) and kept[0] >= 120 << 20 and kept[1] == 0
    names = {s.name for s in on(trace, "memory")}
    assert names == ({"cuMemMap", "cuMemUnmap"} if settings else {"cudaMalloc", "cudaFree"})


def test_giving_memory_back_waits_for_work_that_is_under_way(recorder: ProcessRecorder) -> None:
    def program() -> None:
        for waits in (False, True):
            x = torch.empty(30 << 18, device="cuda")
            del x
            torch.cuda._sleep(10**6)
            if waits:
                torch.cuda.synchronize()
            torch.cuda.empty_cache()

    trace = traced(recorder, program)
    frees = [at for at, s in enumerate(trace.slices) if s.name == "cudaFree"]
    waited = [a.later for a in trace.arrows if trace.slices[a.later].name == "cudaFree"]
    assert len(frees) == 2 and waited == frees[:1]
    assert trace.slices[frees[0]].end_ns - trace.slices[frees[0]].begin_ns > 500_000


def test_a_call_within_a_call_owns_what_it_gave() -> None:
    """As a destructor's does, which runs while the host waits; and calls of two threads overlap like this."""
    tracer = tracing(measures=False)
    outer, inner = tracer.stream_create(0, 0), tracer.stream_create(0, 0)
    ptr = tracer.mem_alloc(0, 512)
    with tracer._note("sync", "the outer", outer):
        tracer.fill(ptr, 0, 512, inner)
    with tracer._note("give", "its own", outer):
        tracer.inner.fill(ptr, 0, 512, outer)
        tracer.fill(ptr, 0, 512, inner)
    tracer.device_sync(0)
    trace = trace_of(tracer)
    causes = [trace.slices[s.cause].name for s in on_streams(trace)]
    assert sorted(causes) == ["fill", "fill", "its own"]


def test_reasons_end_with_what_they_are_for() -> None:
    assert reason() == ""
    with wait_reason("{} {}".format, "outer", 1):
        with pytest.raises(KeyError), wait_reason(str, "inner"):
            assert reason() == "inner"
            raise KeyError
        assert reason() == "outer 1"
    assert reason() == ""


def test_races_join_the_slices_of_both_accesses(recorder: ProcessRecorder) -> None:
    def program() -> None:
        side = torch.cuda.Stream()
        x = torch.ones(1 << 16, device="cuda")
        torch.ones(3, device="cuda").mul_(2)
        with torch.cuda.stream(side):
            x.mul_(3)  # the race
        page = torch.ones(4).pin_memory()
        with torch.cuda.stream(side):
            page.cuda(non_blocking=True)
        page.fill_(0)

    trace = traced(recorder, program)
    device, host = (
        next(r for r in trace.races if r[0].device.startswith(name)) for name in ("cuda", "pinned")
    )
    first, second = (trace.slices[at] for at in device[1:] if at is not None)
    assert (first.name, second.name) == ("fill", "mul")
    assert second.site and line_of(second.site) == line("# the race")
    assert host[1] is not None and trace.slices[host[1]].name == "copy to the device" and host[2] is None
    assert trace.checked and not traced(recorder, program, races="off").checked


def test_what_raised_gave_nothing(recorder: ProcessRecorder) -> None:
    def program() -> None:
        side = torch.cuda.Stream()
        x = torch.ones(1 << 16, device="cuda")
        with torch.cuda.stream(side), pytest.raises(torch.RaceError):
            x.mul_(3)
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            x.add_(1)

    trace = traced(recorder, program, races="error")
    assert [s.name for s in trace.slices if s.kind == "give"] == ["fill", "mul", "add"]
    assert [s.name for s in on_streams(trace)] == ["fill", "add"]
    (race,) = trace.races
    assert race[1] is not None and race[2] is None  # its second side never ran


def test_a_graphs_commands_belong_to_its_launch(recorder: ProcessRecorder) -> None:
    def program() -> None:
        x = torch.ones(64, device="cuda")
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y.add_(1)
            torch.cuda.current_stream().wait_stream(side)
            y.mul_(2)
        graph.replay()  # first replay
        graph.replay()
        assert y.sum().item() == 64 * 6

    trace = traced(recorder, program)
    launches = [at for at, s in enumerate(trace.slices) if s.name == "graph" and s.kind == "give"]
    assert [s.name for s in trace.slices if s.cause == launches[0] and s.kind == "kernel"] == [
        "mul",
        "mul",
        "add",
    ]
    inside = [a for a in trace.arrows if a.kind == "wait" and trace.slices[a.later].cause == launches[0]]
    lanes = [[trace.lanes[trace.slices[at].lane].name for at in (a.earlier, a.later)] for a in inside]
    assert len(lanes) == 2 and all("a graph's stream" in pair for pair in lanes)


def test_threads_have_lanes_of_their_own(recorder: ProcessRecorder) -> None:
    def work() -> None:
        with torch.cuda.nvtx.range("in a thread"):
            torch.ones(3, device="cuda:1").add_(1)

    def program() -> None:
        torch.ones(3, device="cuda")
        thread = threading.Thread(target=work, name="helper")
        thread.start()
        thread.join()

    trace = traced(recorder, program)
    lanes = [lane.name for lane in trace.lanes if lane.index < 0]
    assert lanes == ["MainThread", "helper"]
    assert {s.name for s in trace.slices if trace.lanes[s.lane].name == "helper"} >= {"fill", "add"}
    assert [trace.lanes[r.thread].name for r in trace.ranges] == ["helper"]
    assert {trace.slices[s.cause].lane for s in on_streams(trace) if trace.lanes[s.lane].index == 1} == {1}


# -- the format of Chrome and Perfetto ---------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_format_is_sound(recorder: ProcessRecorder, schedule: str) -> None:
    def program() -> None:
        two_streams()
        random_program(random.Random(3))

    trace = traced(recorder, program, schedule=schedule)
    document = json.loads(json.dumps(chrome_trace(trace).document(who="me")))
    events = document["traceEvents"]
    assert document["who"] == "me" and {e["ph"] for e in events} == set("MXsfC")
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == len(trace.slices) + len(trace.ranges) and all(e["dur"] >= 0 for e in slices)
    rows: dict[tuple[int, int], list[Any]] = {}
    for e in slices:
        rows.setdefault((e["pid"], e["tid"]), []).append((round(e["ts"] * 1000), -round(e["dur"] * 1000)))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(rows) == named
    for spans in rows.values():
        assert nested(spans)
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    finishes = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == finishes.keys() and len(starts) == sum(e["ph"] == "s" for e in events)
    for number, start in starts.items():
        for e in (start, finishes[number]):
            at = round(e["ts"] * 1000)
            assert any(begin <= at <= begin - less for begin, less in rows[e["pid"], e["tid"]])
        assert start["cat"] == finishes[number]["cat"] and start["ts"] <= finishes[number]["ts"] + 1e-3
    waits = [e["name"] for e in starts.values() if e["cat"] == "wait"]
    assert len(waits) == sum(a.kind == "wait" for a in trace.arrows)
    counters = {(e["pid"], e["name"]): e["args"]["bytes"] for e in events if e["ph"] == "C"}
    assert {name for _, name in counters} == {"memory allocated", "memory reserved"}
    assert counters[0, "memory reserved"] > counters[0, "memory allocated"] >= 0


def nested(spans: list[tuple[int, int]]) -> bool:
    """Whether slices of a row lie within each other or beside, never across."""
    open_ends: list[int] = []
    for begin, less in sorted(spans):
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        if open_ends and begin - less > open_ends[-1]:
            return False
        open_ends.append(begin - less)
    return True


def test_an_empty_trace_is_one_too(tmp_path: Path) -> None:
    made = chrome_trace(TraceData({}, True))
    assert made.events == []
    made.write(tmp_path / "t.json.gz", n=1)
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes())) == {
        "traceEvents": [], "displayTimeUnit": "ns", "n": 1,
    }  # fmt: skip


# -- real GPUs: the same times by events -------------------------------------------------------------------


def measured(program: Callable[[DriverTracer], None]) -> tuple[TraceData, list[Any]]:
    """A trace by timing events on a virtual machine, and the machine's own account of the same work."""
    driver = VirtualDriver(2)
    records: list[Any] = []
    driver.on_command = records.append
    tracer = DriverTracer(driver, driver, [0, 1])
    tracer.source = Measured(driver, driver.time_ns)
    program(tracer)
    tracer.device_sync(0)
    tracer.device_sync(1)
    work = sorted([r for r in records if r.kind not in ("record", "wait", "poison")], key=lambda r: r.seq)
    return trace_of(tracer), work


def test_timing_events_give_the_times_of_real_gpus() -> None:
    def program(driver: DriverTracer) -> None:
        side, page = driver.stream_create(0, 0), driver.host_alloc(1 << 22)
        a, b = driver.mem_alloc(0, 1 << 22), driver.mem_alloc(1, 1 << 22)
        event = driver.event_create(0, False)
        driver.copy_in(a, page, side)
        driver.event_record(event, side)
        driver.stream_wait(1, event)
        driver.fill(a, 0, 1 << 22, 1)
        driver.host_call(lambda: None, 1)
        driver.copy(b, a, 1 << 22, 1)
        driver.event_record(event, 1)
        driver.event_sync(event)
        driver.copy_out(page, b, 2)

    trace, work = measured(program)
    ran = sorted([s for s in on_streams(trace) if s.kind != "wait"], key=lambda s: s.seq)
    assert (
        [s.kind for s in ran]
        == [r.kind for r in work]
        == ["copy_in", "fill", "host_call", "copy", "copy_out"]
    )
    first = work[0].start_ns - ran[0].begin_ns  # a trace of real GPUs begins with its first call
    for found, record in zip(ran, work, strict=True):
        assert found.end_ns + first == pytest.approx(record.end_ns, abs=8_000)
        assert found.begin_ns + first == pytest.approx(record.start_ns, abs=8_000)
    (wait,) = on(trace, "wait")[-1:]
    assert wait.end_ns == ran[0].end_ns
    assert [(trace.slices[a.earlier].kind, trace.slices[a.later].kind, a.kind) for a in trace.arrows] == [
        ("copy_in", "wait", "wait"), ("copy", "sync", "sync"), ("copy", "sync", "sync"), ("copy_out", "sync", "sync"),
    ]  # fmt: skip


def test_events_of_finished_work_are_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured_module, "_MANY", 8)
    made = []

    def program(driver: DriverTracer) -> None:
        a = driver.mem_alloc(0, 512)
        before = driver.event_create(0, False)
        for _ in range(200):
            driver.fill(a, 0, 512, 1)
            driver.stream_sync(1)
        made.append(driver.event_create(0, False) - before)

    trace, work = measured(program)
    assert len(work) == 200 == len([s for s in on_streams(trace) if s.kind == "fill"])
    assert made[0] < 40
    assert all(a.end_ns <= b.begin_ns for a, b in pairwise(on(trace, "fill")))


def test_what_raises_on_a_real_gpu_is_no_work() -> None:
    def program(driver: DriverTracer) -> None:
        a = driver.mem_alloc(0, 512)
        driver.fill(a, 0, 512, 1)
        with pytest.raises(RuntimeError):
            driver.fill(a + 4096, 0, 512, 1)
        driver.fill(a, 1, 512, 1)

    trace, work = measured(program)
    assert len(work) == 2 == len([s for s in on_streams(trace) if s.kind == "fill"])
    assert len([s for s in trace.slices if s.name == "fill" and s.kind == "give"]) == 3


def test_a_device_that_failed_leaves_what_is_known() -> None:
    def fail() -> None:
        raise ValueError("in the middle")

    tracer = tracing(measures=True)
    ptr = tracer.mem_alloc(0, 512)
    tracer.fill(ptr, 0, 512, 1)
    tracer.stream_sync(1)
    source = tracer.source
    assert isinstance(source, Measured)
    source._take_up(all_of_them=True)
    tracer.host_call(fail, 1)
    with pytest.raises(torch.DriverError):
        tracer.stream_sync(1)
    trace = trace_of(tracer)
    assert [s.name for s in on_streams(trace)] == ["fill"]
    assert [s.name for s in on(trace, "give")] == ["fill", "host function"]


def tracing(measures: bool) -> DriverTracer:
    driver = VirtualDriver(2)
    tracer = DriverTracer(driver, driver, [0, 1])
    if measures:
        tracer.source = Measured(driver, driver.time_ns)
    return tracer


@pytest.mark.parametrize("measures", [False, True], ids=["simulated", "measured"])
@pytest.mark.parametrize("case", conformance.cases, ids=lambda case: case.__name__)
def test_a_tracer_keeps_the_drivers_contract(case: Any, measures: bool) -> None:
    driver = tracing(measures)
    case(driver)
    if not case.__name__.startswith("close_"):
        trace = trace_of(driver)
        assert all(max(a.earlier, a.later) < len(trace.slices) for a in trace.arrows)
        driver.close()
