"""Profilers: what is called, what devices ran for it, when; by steps; as tables and traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpus as hardware
import pytest
import torch as oracle
from gpus import either, gpus, simulated

import flambeau as torch
from flambeau.autograd import profiler_recorder
from flambeau.observe.tracing.range_recorder import RangeRecorder
from flambeau.profiler import DeviceType, ProfilerAction, ProfilerActivity, profile, record_function, schedule
from flambeau.runtime.hooks import annotations, launch_hooks

pytestmark = either


@pytest.fixture(autouse=True)
def two_gpus() -> Iterator[None]:
    with gpus(devices=2):
        yield
    assert (
        not torch.core.flags.flags.profiled
        and not launch_hooks._recorders.members
        and not annotations._listeners.members
    )


def by_name(events: Any) -> dict[str, Any]:
    return {e.key: e for e in events if e.device_type is DeviceType.CPU}


def test_calls_nest_in_blocks_and_own_what_they_started() -> None:
    x = torch.randn(64, 64, device="cuda:1")
    torch.ones(3, device="cuda:1") @ torch.ones(3, device="cuda:1")
    with profile(record_shapes=True, with_flops=True) as prof:
        with record_function("outer"):
            y = x @ x
            with record_function("inner"):
                y.sum()
        x.add_(1)
    events = prof.events()
    calls_ = by_name(events)
    assert list(calls_) == ["outer", "aten::matmul", "inner", "aten::sum", "aten::add"]
    assert calls_["aten::sum"].cpu_parent is calls_["inner"] and calls_["inner"].cpu_parent is calls_["outer"]
    assert calls_["aten::add"].cpu_parent is None
    assert calls_["outer"].is_user_annotation and not calls_["aten::sum"].is_user_annotation
    assert calls_["aten::matmul"].input_shapes == [[64, 64], [64, 64]]
    assert calls_["aten::matmul"].flops == 2 * 64**3
    ran = [e for e in events if e.device_type is DeviceType.CUDA]
    assert [e.name for e in ran] == ["matmul", "sum", "add"] and {e.device_index for e in ran} == {1}
    assert [k.name for k in calls_["aten::matmul"].kernels] == ["matmul"]
    outer = calls_["outer"]
    assert outer.self_device_time_total == 0
    assert outer.device_time_total == pytest.approx(sum(e.time_range.elapsed_us() for e in ran[:2]))
    assert outer.self_cpu_time_total <= outer.cpu_time_total


def test_averages_and_the_table() -> None:
    x = torch.ones(100, device="cuda")
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as prof:
        for n in (100, 50, 50):
            x[:n].exp()
    averages = prof.key_averages()
    host, device = averages
    assert (host.key, host.count, device.key, device.count) == ("aten::exp", 3, "exp", 3)
    assert host.device_time_total == pytest.approx(device.self_device_time_total)
    assert host.cpu_time == pytest.approx(host.cpu_time_total / 3)
    by_shape = by_name(prof.key_averages(group_by_input_shape=True))
    assert by_shape["aten::exp"].count == 2
    table = averages.table(sort_by="cuda_time_total", row_limit=1)
    assert "Self CUDA time total" in table and table.count("exp") == 1
    assert "CPU total" in str(averages) and str(averages).count("exp") == 2
    with pytest.raises(AttributeError, match="nothing is sorted by 'size'"):
        averages.table(sort_by="size")


def test_a_block_inside_itself_counts_once() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof, record_function("a"), record_function("a"):
        torch.ones(1000).sum()
    average = by_name(prof.key_averages())["a"]
    outer = by_name(prof.events()[:1])["a"]
    assert average.count == 2 and average.cpu_time_total == outer.cpu_time_total


def test_the_host_alone() -> None:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        torch.ones(2) + 1
        torch.ones(2, device="cuda").mul(2)
    assert {e.device_type for e in prof.events()} == {DeviceType.CPU}
    assert {"aten::add", "aten::mul"} <= set(by_name(prof.events()))
    with profile(activities=[ProfilerActivity.CUDA]) as prof:
        torch.ones(2, device="cuda").mul(2)
    assert [e.name for e in prof.events()][-1] == "mul" and {e.device_type for e in prof.events()} == {
        DeviceType.CUDA
    }


@simulated
def test_copies_are_device_events_and_times_repeat() -> None:
    def run() -> list[tuple[Any, ...]]:
        with torch.virtual(devices=2):
            x = torch.ones(1 << 20).pin_memory()
            with profile() as prof:
                y = x.cuda(non_blocking=True)
                torch.cuda._sleep(10**6)
                y.to("cuda:1").mul(2).cpu()
            return [(e.name, e.device_index, e.time_range.start, e.time_range.end) for e in prof.events()]

    first = run()
    names = [name for name, index, *_ in first if index >= 0]
    assert names == [
        "Memcpy HtoD (Pinned -> Device)",
        "_sleep",
        "Memcpy PtoP (Device -> Device)",
        "mul",
        "Memcpy DtoH (Device -> Pageable)",
    ]
    assert first == run()


def test_copies_are_calls_that_own_what_devices_copied(tmp_path: Path) -> None:
    host, pinned = torch.ones(1000), torch.ones(1000).pin_memory()
    with profile(record_shapes=True) as prof:
        x = host.cuda()
        x.copy_(pinned, non_blocking=True)
        x.cpu()
        pinned.copy_(x)
        x.resize_(2000)
    copies = [e for e in prof.events() if e.device_type is DeviceType.CPU and e.name == "aten::copy_"]
    names = [kernel.name for call in copies for kernel in call.kernels]
    assert names == [
        "Memcpy HtoD (Pageable -> Device)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy DtoH (Device -> Pageable)",
        "Memcpy DtoH (Device -> Pinned)",
        "Memcpy DtoD (Device -> Device)",
    ]
    row = by_name(prof.key_averages())["aten::copy_"]
    assert row.count == 5 and row.device_time_total == sum(c.device_time_total for c in copies) > 0
    prof.export_chrome_trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X" and e["cat"] == "gpu_memcpy"]
    assert [e["name"] for e in slices] == names and {e["args"]["bytes"] for e in slices} == {4000}
    assert sum(e["ph"] == "s" for e in events) == 5


def test_a_graph_s_launch_owns_its_kernels() -> None:
    x = torch.ones(8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.mul_(2).add_(1)
    with profile() as prof:
        graph.replay()
    (launch,) = [e for e in prof.events() if e.device_type is DeviceType.CPU]
    assert launch.name == "cudaGraphLaunch" and launch.device_time_total > 0
    if not hardware.real:  # there a graph is one piece of work
        assert [kernel.name for kernel in launch.kernels] == ["mul", "add"]


def test_backward_is_recorded() -> None:
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with profile() as prof:
        (x @ x).sum().backward()
    assert by_name(prof.key_averages())["aten::matmul"].count == 3


@simulated
def test_each_gpu_s_part_of_a_collective_is_a_call_s() -> None:
    parts = [torch.ones(1024, device=f"cuda:{i}") for i in range(2)]
    with profile() as prof:
        torch.cuda.nccl.all_reduce(parts)
    told = [e for e in prof.events() if e.name == "nccl:all_reduce"]
    assert [[(k.name, k.device_index) for k in call.kernels] for call in told] == [
        [("all_reduce", 0)],
        [("all_reduce", 1)],
    ]
    assert all(call.device_time_total > 0 for call in told)


def test_functions_of_the_tape_are_rows_as_pytorch_s_are() -> None:
    def rows(module: Any, where: str) -> list[tuple[str, str | None]]:
        x, w = (module.ones(3, device=where, requires_grad=True) for _ in range(2))
        x.register_hook(lambda grad: grad * 2)
        w.register_post_accumulate_grad_hook(lambda leaf: None)
        activities = [module.profiler.ProfilerActivity.CPU]
        with (
            module.profiler.profile(activities=activities) as prof,
            module.profiler.record_function("backward"),
        ):
            y = (x * w).exp()
            (y.sum() + (y * 2).sum()).backward()
        return [
            (e.name, None if e.cpu_parent is None else e.cpu_parent.name)
            for e in prof.events()
            if "Backward" in e.name or "autograd" in e.name
        ]

    wanted = rows(oracle, "cpu")
    for where in ("cpu", "cuda"):
        found = rows(torch, where)
        assert sorted(found) == sorted(wanted)
        assert found[:4] == wanted[:4] and len(found) == 16, found
    x = torch.ones(4, device="cuda", requires_grad=True)
    with profile() as prof:
        x.exp().sum().backward()
    (node,) = [e for e in prof.events() if e.name == "ExpBackward0"]
    assert [k.name for call in node.cpu_children for k in call.kernels] == [
        "mul"
    ] and node.device_time_total > 0
    ranges = RangeRecorder(lambda: 0)
    annotations.subscribe(ranges)
    with torch.autograd.profiler.emit_nvtx():
        x.exp().sum().backward()
    annotations.unsubscribe(ranges)
    assert "ExpBackward0" in [r.text for r in ranges.found]


def test_a_profile_may_begin_and_end_within_a_walk() -> None:
    x = torch.ones(3, requires_grad=True)
    prof = profile(activities=[ProfilerActivity.CPU])
    y = x.exp()
    y.register_hook(lambda grad: prof.start())
    y.sum().backward()
    prof.stop()
    assert "aten::mul" in {e.name for e in prof.events()}
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        y = x.exp()
        y.register_hook(lambda grad: prof.stop())
        y.sum().backward()
    assert "SumBackward0" in {e.name for e in prof.events()}


@simulated
def test_work_of_before_is_not_counted_and_an_outer_listener_goes_on() -> None:
    machine = torch.virtual(devices=1)
    with machine:
        kinds: list[str] = []
        x = torch.ones(4, device="cuda")
        machine.driver.on_command = lambda record: kinds.append(record.name)
        x.add_(1)
        with profile() as prof:
            x.mul_(2)
        x.exp()
        torch.cuda.synchronize()
        assert [e.name for e in prof.events() if e.device_type is DeviceType.CUDA] == ["mul"]
        assert [k for k in kinds if k in ("add", "mul", "exp")] == ["add", "mul", "exp"]


@simulated
def test_timing_events_stand_in_where_no_driver_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on real GPUs: the times of a pair of events around each piece of work."""
    x = torch.ones(1 << 22, device="cuda:1")
    y = torch.ones(1 << 20)
    real = profiler_recorder.ProfileRecorder.start

    def start(self: Any) -> None:
        monkeypatch.setattr(profiler_recorder.system, "is_virtual", lambda: False)
        real(self)
        monkeypatch.undo()

    monkeypatch.setattr(profiler_recorder.ProfileRecorder, "start", start)
    with profile() as prof:
        x.mul(2)
        torch.cuda._sleep(10**6)
        torch.ones(3).add(1)
        y.to("cuda:1").cpu()
    ran = [e for e in prof.events() if e.device_type is DeviceType.CUDA]
    into, out = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"
    assert [(e.name, e.device_index) for e in ran] == [("_sleep", 0), ("mul", 1), (into, 1), (out, 1)]
    assert ran[0].time_range.elapsed_us() == pytest.approx(10**6 / 1410, rel=0.05)
    assert ran[2].time_range.elapsed_us() > (1 << 22) / 32e3  # not faster than 32 GB/s
    assert by_name(prof.events())["aten::mul"].kernels == [ran[1]]


def test_schedules() -> None:
    act = schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)
    names = ["none", "none", *["warmup", "record", "record_and_save", "none"] * 2, "none"]
    assert [act(i).name.lower() for i in range(11)] == names
    with pytest.warns(UserWarning, match="Profiler won't be using warmup") as caught:
        endless = schedule(wait=0, warmup=0, active=1)
    assert caught[0].filename == __file__
    assert [endless(i) for i in (0, 99)] == [ProfilerAction.RECORD_AND_SAVE] * 2


SCHEDULES: list[dict[str, int]] = [
    {"wait": 1, "warmup": 1, "active": 2},
    {"wait": 2, "warmup": 1, "active": 1, "repeat": 2, "skip_first": 3},
    {"wait": 2, "warmup": 1, "active": 3, "skip_first_wait": 1, "repeat": 2},
    {"wait": -1, "warmup": 1, "active": 1},
    {"wait": 1, "warmup": 1, "active": 0},
    {"wait": 1, "warmup": 1, "active": 1, "repeat": -2},
]


@pytest.mark.parametrize("asked", SCHEDULES, ids=str)
def test_schedules_are_pytorch_s(asked: dict[str, int]) -> None:
    def said(made: Any) -> Any:
        try:
            act = made.schedule(**asked)
            return [act(i).name for i in range(30)]
        except AssertionError as error:
            return str(error)

    assert said(torch.profiler) == said(oracle.profiler)


def test_steps_are_recorded_by_the_schedule() -> None:
    saved: list[list[str]] = []
    x = torch.ones(3, device="cuda")
    with (
        profile(
            schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
            on_trace_ready=lambda prof: saved.append([e.name for e in prof.events() if e.device_index < 0]),
        ) as prof,
        pytest.warns(UserWarning, match="set acc_events=True"),
    ):
        for _ in range(9):
            x.add_(1)
            prof.step()
    steps = [[name for name in names if name.startswith("ProfilerStep")] for names in saved]
    assert steps == [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]]
    assert [names.count("aten::add") for names in saved] == [2, 2]
    assert by_name(prof.key_averages())["ProfilerStep*"].count == 2


def training(module: Any, **options: Any) -> tuple[list[tuple[int, int]], Any]:
    """A training loop under a profiler: at which steps it was told, and how often the user's block is in each."""
    net = module.nn.Sequential(module.nn.Linear(4, 8), module.nn.ReLU(), module.nn.Linear(8, 1))
    optimizer = module.optim.SGD(net.parameters(), lr=0.1)
    told: list[tuple[int, int]] = []

    def ready(prof: Any) -> None:
        told.append((prof.step_num, {e.key: e.count for e in prof.key_averages()}["step"]))

    with module.profiler.profile(
        activities=[module.profiler.ProfilerActivity.CPU],
        schedule=module.profiler.schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=ready,
        **options,
    ) as prof:
        for _ in range(9):
            with module.profiler.record_function("step"):
                optimizer.zero_grad()
                net(module.ones(2, 4)).square().mean().backward()
                optimizer.step()
            prof.step()
    return told, prof


def test_a_training_loop_is_told_of_at_pytorch_s_steps(tmp_path: Path) -> None:
    ours, prof = training(torch, acc_events=True)
    theirs, reference = training(oracle, acc_events=True)
    assert ours == theirs == [(4, 2), (8, 4)]
    names = {e.key for e in prof.key_averages()}
    blocks = {"ProfilerStep*", "step", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"}
    assert blocks <= names & {e.key for e in reference.key_averages()}
    assert {"aten::addmm", "aten::mean", "aten::relu"} <= names
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    slices = [
        e["name"] for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"
    ]
    assert sorted(n for n in slices if n.startswith("ProfilerStep")) == [
        f"ProfilerStep#{i}" for i in (2, 3, 6, 7)
    ]
    with pytest.warns(UserWarning, match="Profiler clears events at the end of each cycle") as caught:
        assert training(torch)[0] == [(4, 2), (8, 2)]
    assert len(caught) == 1 and caught[0].filename == __file__


def test_lines_of_calls(tmp_path: Path) -> None:
    x = torch.ones(1000, 100)

    def inner() -> None:
        x.sum()

    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as prof:
        inner()
        x.sum()
        inner()
    first, second, _ = prof.events()
    assert [line.rpartition(" ")[2] for line in first.stack[:2]] == ["inner", "test_lines_of_calls"]
    assert first.stack[0].startswith(f"{__file__}(") and "flambeau/tensor" not in "".join(first.stack)
    assert second.stack == first.stack[1:] or second.stack[1:] == first.stack[2:]
    by_line = prof.key_averages(group_by_stack_n=1)
    assert [(e.count, e.stack) for e in by_line] == [(2, first.stack[:1]), (1, second.stack[:1])]
    assert "Source Location" in by_line.table() and "Source Location" not in prof.key_averages().table()
    prof.export_stacks(str(tmp_path / "stacks"))
    for line in (tmp_path / "stacks").read_text().splitlines():
        frames, _, us = line.rpartition(" ")
        assert int(us) > 0 and "test_lines_of_calls" in frames and " " not in frames
    with pytest.raises(ValueError, match="metric should be one of"):
        prof.export_stacks(str(tmp_path / "stacks"), "time")
    with pytest.raises(AssertionError, match=r"export_stacks\(\) requires with_stack=True"):
        profile().export_stacks(str(tmp_path / "stacks"))


def test_the_table_s_header_and_shapes() -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof, record_function("block"):
        torch.ones(2, 3).exp()
    table = prof.key_averages(group_by_input_shape=True).table(header="Title", max_shapes_column_width=5)
    assert table.splitlines()[1] == "Title" and "CPU total %" in table and "Input Shapes" in table
    assert "[[..." in table
    top = prof.events().table(top_level_events_only=True)
    assert top.startswith("This report only display top-level ops statistics") and "aten::exp" not in top


def test_old_names_of_figures_warn() -> None:
    with profile() as prof:
        torch.ones(3, device="cuda").exp()
    for event in (prof.events()[0], prof.key_averages()[0]):
        for old, new in (("cuda_time", "device_time"), ("cuda_time_total", "device_time_total"),
                         ("self_cuda_time_total", "self_device_time_total")):  # fmt: skip
            with pytest.warns(FutureWarning, match=f"`{old}` is deprecated, please use `{new}`"):
                assert getattr(event, old) == getattr(event, new) > 0
    with pytest.warns(FutureWarning, match="`use_cuda` is deprecated"):
        alone = profile(activities=[ProfilerActivity.CPU], use_cuda=True)
    assert alone.activities == {ProfilerActivity.CPU, ProfilerActivity.CUDA}


def test_traces(tmp_path: Path) -> None:
    x = torch.ones(3, device="cuda")
    with profile(
        on_trace_ready=torch.profiler.tensorboard_trace_handler(str(tmp_path / "log"), "me", True)
    ) as prof:
        with record_function("block"):
            x.add_(1)
        prof.add_metadata("who", "me")
        prof.add_metadata_json("n", "[1]")
    (file,) = (tmp_path / "log").iterdir()
    assert file.name == "me.0.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(file.read_bytes()))
    assert trace["who"] == "me" and trace["n"] == [1]
    slices = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    assert {n: e["cat"] for n, e in slices.items()} == {
        "block": "user_annotation",
        "aten::add": "cpu_op",
        "add": "kernel",
    }
    start, finish = (next(e for e in trace["traceEvents"] if e["ph"] == ph) for ph in "sf")
    assert slices["add"]["args"] == {}
    assert (start["ts"], finish["ts"]) == (slices["aten::add"]["ts"], slices["add"]["ts"])
    slack = (
        100 if hardware.real else 0
    )  # microseconds: the host's clock and the GPU's are told apart so closely
    assert slices["block"]["ts"] <= slices["aten::add"]["ts"] <= slices["add"]["ts"] + slack


def test_the_old_profiler(tmp_path: Path) -> None:
    x = torch.ones(3, device="cuda")
    with torch.autograd.profiler.profile(use_cuda=True) as prof:
        x.add_(1)
        with pytest.raises(RuntimeError, match="Profiler didn't finish running"):
            prof.table()
    assert [e.name for e in prof.function_events] == ["aten::add", "add"]
    assert prof.total_average().count == 2 and prof.self_cpu_time_total >= 0 and "aten::add" in prof.table()
    prof.export_chrome_trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [e["ph"] for e in events if e["ph"] != "M"] == ["X", "s", "f", "X"]
    with pytest.raises(RuntimeError, match="not reentrant"), prof:
        pass
    with torch.autograd.profiler.profile(enabled=False) as prof:
        x.add_(1)
    assert prof.function_events is None
    for kind in (torch.autograd.profiler.profile, profile):
        with pytest.raises(torch.NotSupportedError, match="with_modules is for TorchScript's models"):
            kind(with_modules=True)


def test_emit_nvtx_makes_ranges_of_calls() -> None:
    ranges = RangeRecorder(lambda: 0)
    annotations.subscribe(ranges)
    with torch.autograd.profiler.emit_nvtx(record_shapes=True) as emitter:
        torch.ones(2, 3, device="cuda") * 2
    torch.ones(2).exp()
    annotations.unsubscribe(ranges)
    assert [r.text for r in ranges.found][-1] == "aten::mul, sizes = [[2, 3], []]"
    with pytest.raises(RuntimeError, match="not reentrant"), emitter:
        pass


def test_errors_end_a_recording() -> None:
    with pytest.raises(ZeroDivisionError), profile() as prof, record_function("x"):
        raise ZeroDivisionError
    assert [e.name for e in prof.events()] == ["x"]
    for call in ("events", "key_averages", "export_chrome_trace"):
        arguments = ("/nowhere",) if call == "export_chrome_trace" else ()
        with pytest.raises(AssertionError) as ours:
            getattr(profile(), call)(*arguments)
        with pytest.raises(AssertionError) as theirs:
            getattr(oracle.profiler.profile(), call)(*arguments)
        assert str(ours.value) == str(theirs.value)
    for none in ([], ["cpu"]):
        with pytest.raises(AssertionError, match="No valid profiler activities found"):
            profile(activities=none)
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        profile().toggle_collection_dynamic(True, [])
    assert repr(torch.autograd.profiler.profile()) == "<unfinished torch.autograd.profile>"


def test_figures_of_products_and_shapes_are_pytorch_s() -> None:
    def rows(module: Any) -> dict[str, tuple[int, list[list[int]]]]:
        a, b = module.ones(4, 8), module.ones(8, 2)
        image, kernel = module.ones(2, 3, 9, 8), module.ones(6, 3, 3, 2)
        parts, grouped = module.ones(2, 4, 9, 8), module.ones(6, 2, 3, 3)
        batch = module.ones(5, 3, 4)
        with module.profiler.profile(
            activities=[module.profiler.ProfilerActivity.CPU], record_shapes=True, with_flops=True
        ) as prof:
            for name, call in {
                "mm": lambda: a @ b,
                "addmm": lambda: module.addmm(module.ones(2), a, b),
                "bmm": lambda: module.bmm(batch, batch.transpose(1, 2)),
                "add": lambda: a + a,
                "mul": lambda: a * a,
                "conv": lambda: module.nn.functional.conv2d(image, kernel, padding=1, stride=2),
                "grouped": lambda: module.nn.functional.conv2d(parts, grouped, groups=2, dilation=2),
            }.items():
                with module.profiler.record_function(name):
                    call()
        found = {}
        for event in prof.events():
            parent = event
            while parent.cpu_parent is not None:
                parent = parent.cpu_parent
            if event.flops:
                assert parent.name not in found
                found[parent.name] = (event.flops, [shape for shape in event.input_shapes if shape][:3])
        return found

    ours, theirs = rows(torch), rows(oracle)
    assert ours["addmm"][1].pop(0) == [4, 2] and theirs["addmm"][1].pop(0) == [2]  # broadcast
    assert ours == theirs and len(ours) == 7


def test_times_are_told_as_pytorch_tells_them() -> None:
    names = [f"{name}_str" for name in ("cpu_time", "device_time", "cpu_time_total", "device_time_total",
             "self_cpu_time_total", "self_device_time_total")]  # fmt: skip
    for us in (0.0, 999.9996, 1234.5, 2.5e6):
        ours = torch.autograd.profiler.FunctionEventAvg(
            "x", count=2, cpu_time_total=us, self_cpu_time_total=us
        )
        theirs = oracle.autograd.profiler_util.FunctionEventAvg()
        theirs.count, theirs.cpu_time_total, theirs.self_cpu_time_total = 2, us, us
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]


def test_arguments_of_kineto_may_be_none() -> None:
    names = (
        "experimental_config",
        "execution_trace_observer",
        "custom_trace_id_callback",
        "post_processing_timeout_s",
    )
    with profile(**dict.fromkeys(names)) as prof:
        torch.ones(3) + 1
    assert prof.events()
    for name in names:
        with pytest.raises(torch.NotSupportedError, match=f"{name} is of Kineto"):
            profile(**{name: 1.0})


def test_stacks_of_the_old_profiler(tmp_path: Path) -> None:
    with torch.autograd.profiler.profile(with_stack=True) as run:
        torch.ones(3) + 1
    run.export_stacks(tmp_path / "stacks")
    assert Path(__file__).name in (tmp_path / "stacks").read_text()
    with torch.autograd.profiler.profile() as run:
        torch.ones(3) + 1
    with pytest.raises(AssertionError, match="requires with_stack=True"):
        run.export_stacks(tmp_path / "none")
    assert not (tmp_path / "none").exists()
