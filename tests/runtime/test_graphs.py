"""CUDA graphs on virtual GPUs: replays against eager runs, memory, random numbers, what a capture refuses, races."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch as oracle

import flambeau as torch
from flambeau.core.errors import InvalidAddressError, RaceError
from flambeau.runtime import system
from flambeau.runtime.hooks import launch_hooks, memory_hooks

MIB = 1 << 20


@pytest.fixture
def gpu() -> Iterator[None]:
    with torch.virtual(devices=2, races="error"):
        yield


def captured(work: Callable[[], Any], **options: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = work()
    return graph, result


def refuse(match: str, work: Callable[[], Any], **options: Any) -> None:
    """The work raises inside of a capture, which then gives no graph; afterwards all is as ever."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    error = pytest.raises(RuntimeError, match="previous error during capture")
    with error as caught, torch.cuda.graph(graph, **options):
        work()
    assert isinstance(caught.value.__context__, RuntimeError)
    assert match in str(caught.value.__context__)
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    assert torch.ones(3, device="cuda").sum().item() == 3


# -- replays ---------------------------------------------------------------------------------------------


def test_a_replay_reads_its_static_inputs_anew(gpu: None) -> None:
    x = torch.zeros(8, device="cuda")
    graph, y = captured(lambda: (x * 2 + 1).relu())
    for value in (1.0, -3.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert y.tolist() == [max(2 * value + 1, 0)] * 8


def test_nothing_runs_while_it_is_captured(gpu: None) -> None:
    x = torch.ones(8, device="cuda")
    captured(lambda: x.add_(1))
    assert x.tolist() == [1.0] * 8


PROGRAM_STREAMS = 3


def program(seed: int, x: Any, streams: list[Any]) -> list[Any]:
    """Sums and products on several streams, which wait for each other where one needs another's result."""
    chance = random.Random(seed)
    origin = torch.cuda.current_stream()
    made = [(x, origin)]
    events = {}
    start = torch.cuda.Event()
    start.record()
    for stream in streams:
        stream.wait_event(start)
    for _ in range(14):
        stream = chance.choice([origin, *streams])
        (a, of_a), (b, of_b) = chance.choice(made), chance.choice(made)
        for tensor, other in ((a, of_a), (b, of_b)):
            if other != stream and id(tensor) in events:
                stream.wait_event(events[id(tensor)])
        with torch.cuda.stream(stream):
            out = a + b if chance.random() < 0.5 else a * b - 1
            events[id(out)] = torch.cuda.Event()
            events[id(out)].record()
        made.append((out, stream))
    for stream in streams:
        origin.wait_stream(stream)
    return [tensor for tensor, _ in made[1:]]


@pytest.mark.parametrize("schedule", ["earliest", "random:1", "random:2", "adversarial:0", "pct:3:2"])
def test_replays_equal_eager_runs_under_every_schedule(schedule: str) -> None:
    with torch.virtual(devices=1, races="error", poison=True, schedule=schedule):
        for seed in range(4):
            streams = [torch.cuda.Stream() for _ in range(PROGRAM_STREAMS)]
            x = torch.zeros(5, device="cuda")
            graph, outs = captured(lambda: program(seed, x, streams))  # noqa: B023
            for value in (0.5, -1.25):
                x.fill_(value)
                graph.replay()
                torch.cuda.synchronize()
                wanted = program(seed, x, streams)
                torch.cuda.synchronize()
                assert [t.tolist() for t in outs] == [t.tolist() for t in wanted]


def test_two_devices_in_one_graph(gpu: None) -> None:
    x = torch.ones(4, device="cuda:0")
    side = torch.cuda.Stream(1)

    def work() -> Any:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            y = torch.empty(4, device="cuda:1")
            y.copy_(x, non_blocking=True)
            y += 1
        here.wait_stream(side)
        return y

    graph, y = captured(work)
    x.fill_(41)
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [42.0] * 4


def test_launches_of_one_graph_come_one_after_the_other() -> None:
    for seed in range(5):
        with torch.virtual(devices=1, races="error", schedule=f"random:{seed}"):
            x = torch.zeros(4, device="cuda")
            graph, _ = captured(lambda x=x: x.add_(1).mul_(2))
            streams = [torch.cuda.Stream() for _ in range(4)]
            for stream in streams:
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    graph.replay()
            torch.cuda.synchronize()
            assert x.tolist() == [30.0] * 4


def test_the_default_stream_may_replay_but_not_capture(gpu: None) -> None:
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        graph.capture_begin()
    with pytest.raises(RuntimeError, match="without a capture_begin"):
        graph.capture_end()


def test_begin_end_pool_and_reset(gpu: None) -> None:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(4, device="cuda")
    for call in (graph.replay, graph.pool, lambda: graph.debug_dump("nowhere")):
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            call()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph.capture_begin()
        assert torch.cuda.is_current_stream_capturing()
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()
        with pytest.raises(RuntimeError, match="during a capture"):
            graph.reset()
        y = x + 1
        with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="same stream"):
            graph.capture_end()
        graph.capture_end()
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [2.0] * 4
    graph.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with torch.cuda.graph(graph):
        z = x + 2
    graph.replay()
    torch.cuda.synchronize()
    assert z.tolist() == [3.0] * 4


def test_a_kept_graph_is_made_ready_by_the_program_or_its_first_launch(gpu: None) -> None:
    x = torch.zeros(4, device="cuda")
    for asked in (True, False):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with pytest.raises(RuntimeError, match=r"capture_end\(\) must have been called"):
            graph.instantiate()
        with torch.cuda.graph(graph):
            x.add_(1)
        with pytest.raises(RuntimeError, match=r"until instantiate\(\) has been called"):
            graph.raw_cuda_graph_exec()
        if asked:
            graph.instantiate()
        graph.replay()
        graph.instantiate()
        graph.replay()
        for raw in (graph.raw_cuda_graph, graph.raw_cuda_graph_exec):
            with pytest.raises(torch.NotSupportedError, match="not a cudaGraph_t"):
                raw()
        graph.reset()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [4] * 4
    plain, _ = captured(lambda: x + 1)
    with pytest.raises(RuntimeError, match="unless CUDAGraph was initialized with keep_graph=true"):
        plain.raw_cuda_graph()


def test_unknown_modes_and_kept_graphs_are_refused(gpu: None) -> None:
    with pytest.raises(RuntimeError, match="Unknown capture error mode"):
        captured(lambda: None, capture_error_mode="always")
    with pytest.raises(NotImplementedError, match="enable_annotations"):
        torch.cuda.graph(torch.cuda.CUDAGraph(), enable_annotations=True)
    with pytest.raises(RuntimeError, match="keep_graph=true"):
        torch.cuda.CUDAGraph().instantiate()


def test_it_is_written_for_graphviz(gpu: None, tmp_path: Path) -> None:
    x = torch.ones(4, device="cuda")
    graph, _ = captured(lambda: (x + 1).exp())
    graph.enable_debug_mode()
    graph.debug_dump(str(tmp_path / "graph.dot"))
    text = (tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph") and "kernel add" in text and "kernel exp" in text and " -> " in text


def test_outside_of_captures_nobody_captures() -> None:
    with torch.virtual(devices=1):
        assert not torch.cuda.is_current_stream_capturing()
        assert not torch.cuda.is_initialized()


def test_a_launch_costs_the_host_one_launch() -> None:
    def host_time(replayed: bool) -> int:
        with torch.virtual(devices=1) as machine:
            x = torch.ones(4, device="cuda")

            def work() -> None:
                for _ in range(50):
                    x.add_(1)

            graph, _ = captured(work)
            torch.cuda.synchronize()
            before = machine.driver.time_ns()
            graph.replay() if replayed else work()
            return machine.driver.time_ns() - before

    assert 20 * host_time(True) < host_time(False)


# -- memory ----------------------------------------------------------------------------------------------


def test_memory_of_the_capture_is_nobody_elses(gpu: None) -> None:
    x = torch.full((MIB,), 3.0, device="cuda")
    graph, y = captured(
        lambda: (x * 2) + (x * 3)
    )  # the products are gone after the capture, their memory is kept
    others = [torch.zeros(MIB, device="cuda") for _ in range(4)]
    graph.replay()
    torch.cuda.synchronize()
    assert y.max().item() == 15.0 and all(not other.any() for other in others)


def test_memory_comes_back_with_reset(gpu: None) -> None:
    x = torch.ones(4 * MIB, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph, y = captured(lambda: x * 2)
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved()
    assert held >= before + 16 * MIB
    del y
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == held
    graph.reset()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_emptying_the_cache_does_nothing_in_a_capture(gpu: None, mode: str) -> None:
    x = torch.ones(4 * MIB, device="cuda")
    z = torch.ones(16 * MIB, device="cuda")
    torch.cuda.empty_cache()
    before, graph = torch.cuda.memory_reserved(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        del z
        torch.cuda.empty_cache()
        y = x * 2
        assert torch.cuda.memory_reserved() == before + 16 * MIB
    graph.replay()
    assert y.sum().item() == 8 * MIB
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before - 64 * MIB + 16 * MIB


def test_graphs_share_a_pool(gpu: None) -> None:
    x = torch.ones(4 * MIB, device="cuda")
    first, y = captured(lambda: x * 2 + 1)
    alone = torch.cuda.memory_reserved()
    second, z = captured(lambda: y * 2 + 1, pool=first.pool())
    assert second.pool() == first.pool()
    assert torch.cuda.memory_reserved() - alone <= 32 * MIB
    x.fill_(3)
    first.replay()
    second.replay()
    torch.cuda.synchronize()
    assert z.min().item() == z.max().item() == 15.0
    handle = torch.cuda.graph_pool_handle()
    third, _ = captured(lambda: x * 2, pool=handle)
    assert third.pool() == handle != first.pool()


def test_a_graphs_memory_outlives_the_stream_that_it_was_captured_on(gpu: None) -> None:
    x = torch.ones(4 * MIB, device="cuda")
    graph, y = captured(lambda: (x * 2) + (x * 3))
    for _ in range(100):  # streams end, and their memory goes back when many have
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.empty(MIB, device="cuda")
    x.fill_(2)
    graph.replay()
    torch.cuda.synchronize()
    assert y.min().item() == y.max().item() == 10.0


def test_a_static_input_that_is_gone_is_noticed() -> None:
    with torch.virtual(devices=1):
        inputs = [torch.ones(4 * MIB, device="cuda")]
        graph, y = captured(lambda: inputs[0] * 2)
        graph.replay()
        torch.cuda.synchronize()
        inputs.clear()
        torch.cuda.empty_cache()
        with pytest.raises(InvalidAddressError, match="not allocated"):
            graph.replay()
        assert y.min().item() == 2.0


def test_tensors_used_on_other_streams_may_die_in_a_capture(gpu: None) -> None:
    x, side = torch.ones(MIB, device="cuda"), torch.cuda.Stream()
    pinned = torch.ones(16).pin_memory()

    def work() -> Any:
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        temporary = x * 2
        side.wait_stream(here)
        with torch.cuda.stream(side):
            y = temporary + 1
        temporary.record_stream(side)
        del temporary
        more = torch.zeros(MIB, device="cuda") + 5
        here.wait_stream(side)
        return y, more, pinned.to("cuda", non_blocking=True)

    graph, (y, more, copied) = captured(work)
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        assert y.min().item() == y.max().item() == 3.0
        assert more.min().item() == more.max().item() == 5.0
        assert copied.tolist() == [1.0] * 16
    torch.cuda.empty_cache()


# -- what a graph's inputs must outlive ------------------------------------------------------------------


def test_freed_inputs_are_told_before_a_replay(gpu: None) -> None:
    x, y, out = (torch.ones(8, device="cuda") for _ in range(3))

    def work() -> Any:
        made = x + y
        return torch.mul(made, 2, out=out), made[:4]

    graph, results = captured(work, check_input_liveness=True)
    graph.replay()
    del results  # the graph's own memory stays
    graph.replay()
    z, y = y.view(2, 4), None  # a view keeps it
    graph.replay()
    del z
    with pytest.raises(
        RuntimeError, match=r"replay detected 1 dead tensor\(s\)\.\nDead tensor #1 \(data_ptr=0x"
    ) as told:
        graph.replay()
    text = str(told.value)
    assert "captured by 'add' at tests/runtime/test_graphs.py:" in text
    assert f"freed at tests/runtime/test_graphs.py:{line_of('    del z')}" in text
    again = torch.zeros(8, device="cuda")  # the same memory is another tensor
    out = None
    with pytest.raises(RuntimeError, match="2 dead"):
        graph.replay()
    del again
    graph.reset()
    assert not memory_hooks._subscribers.members and not launch_hooks._recorders.members


def line_of(text: str) -> int:
    return 1 + Path(__file__).read_text().splitlines().index(text)


def test_results_of_graphs_of_one_pool_are_no_inputs_that_die(gpu: None) -> None:
    x = torch.ones(8, device="cuda")
    first, y = captured(lambda: x * 2, check_input_liveness=True)
    second, z = captured(lambda: y + 1, pool=first.pool(), check_input_liveness=True)
    y = None
    first.replay(), second.replay()
    assert z.tolist() == [3.0] * 8
    first.reset(), second.reset()


def test_a_watched_graph_is_watched_until_it_is_reset(gpu: None) -> None:
    x = torch.ones(8, device="cuda")
    first, _ = captured(lambda: x.mul_(2), check_input_liveness=True)
    with torch.profiler.profile(profile_memory=True):
        x.add_(1)
    second, _ = captured(lambda: x.add_(3), pool=first.pool(), check_input_liveness=True)
    first.replay(), second.replay()
    assert x.tolist() == [7.0] * 8
    x.resize_(4000)  # it moves
    for graph in (first, second):
        with pytest.raises(RuntimeError, match="1 dead tensor"):
            graph.replay()
        graph.reset()
    with torch.cuda.graph(first):
        x.add_(1)
    x = None
    first.replay()  # nobody watches
    assert not memory_hooks._subscribers.members


# -- random numbers --------------------------------------------------------------------------------------


def draws() -> tuple[Any, ...]:
    rate = torch.full((40,), 3.0, device="cuda")
    dropped = torch.nn.functional.dropout(rate, 0.5)
    return torch.rand(5, device="cuda"), torch.randn(7, device="cuda"), torch.poisson(rate), dropped


def test_replays_draw_what_eager_calls_would(gpu: None) -> None:
    torch.cuda.manual_seed(5)
    wanted = [[t.tolist() for t in draws()] for _ in range(3)]
    torch.cuda.manual_seed(5)
    graph, drawn = captured(draws)
    found = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        found.append([t.tolist() for t in drawn])
    found.append([t.tolist() for t in draws()])
    assert found == wanted


def test_generators_are_a_graph_s_from_their_first_number_on(gpu: None) -> None:
    generator = torch.Generator("cuda:0").manual_seed(7)
    wanted = [torch.rand(6, device="cuda", generator=generator).tolist() for _ in range(4)]
    for register in (False, True):
        generator.manual_seed(7)
        graph = torch.cuda.CUDAGraph()
        if register:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            drawn = torch.rand(6, device="cuda", generator=generator)
            generator.manual_seed(7)  # no other seed, and it goes on
            with pytest.raises(RuntimeError, match="only if new seed is the same as the original seed"):
                generator.manual_seed(1)
            for call in (
                generator.get_offset,
                lambda: generator.set_offset(4),
                generator.seed,
                generator.clone_state,
            ):
                with pytest.raises(
                    RuntimeError, match=r"Cannot call CUDAGeneratorImpl::.* during CUDA graph capture"
                ):
                    call()
        found = []
        for _ in range(2):
            graph.replay()
            torch.cuda.synchronize()
            found.append(drawn.tolist())
        found.append(torch.rand(6, device="cuda", generator=generator).tolist())
        assert found == wanted[:3]
        with pytest.raises(RuntimeError, match="before the capture"):
            graph.register_generator_state(generator)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.cuda.CUDAGraph().register_generator_state(torch.Generator())


def test_states_that_generators_share(gpu: None) -> None:
    """In the order of draws it is one stream of numbers, whoever draws; eager and in a graph."""
    generator = torch.Generator("cuda").manual_seed(9)
    wanted = [torch.rand(4, device="cuda", generator=generator).tolist() for _ in range(6)]
    first = torch.Generator("cuda").manual_seed(9)
    second = first.graphsafe_get_state()
    assert second is not first and second.device == first.device and second.initial_seed() == 9
    found = [torch.rand(4, device="cuda", generator=g).tolist() for g in (first, second)]
    apart = first.clone_state()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        third = torch.Generator("cuda")
        third.graphsafe_set_state(first.graphsafe_get_state())
        drawn = [torch.rand(4, device="cuda", generator=g) for g in (third, second)]
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        found += [t.tolist() for t in drawn]
    assert found == wanted and first.get_offset() == third.get_offset() == 24
    assert torch.rand(4, device="cuda", generator=apart).tolist() == wanted[2]


def test_a_generator_may_change_its_state_in_a_capture(gpu: None) -> None:
    """As partitioned training steps do: the default generator draws from another state for a while."""
    torch.cuda.init()
    default = torch.cuda.default_generators[0]
    other = torch.Generator("cuda").manual_seed(3)
    default.manual_seed(4)
    wanted = [torch.rand(3, device="cuda", generator=g).tolist() for g in (default, other, default, other)]
    default.manual_seed(4), other.manual_seed(3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before = default.graphsafe_get_state()
        first = torch.rand(3, device="cuda")
        default.graphsafe_set_state(other)
        second = torch.rand(3, device="cuda")
        default.graphsafe_set_state(before)
    found = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        found += [first.tolist(), second.tolist()]
    assert found == wanted and torch.cuda.get_rng_state()[8] == 8


def test_recomputation_in_a_graph_draws_the_same_numbers(gpu: None) -> None:
    def function(x: Any) -> Any:
        return x * torch.sigmoid(torch.randn(5, device="cuda"))

    def step() -> tuple[Any, Any]:
        x = torch.ones(5, device="cuda", requires_grad=True)
        out = torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False)
        return torch.autograd.grad(out.sum(), x)[0], torch.rand(2, device="cuda")

    torch.cuda.manual_seed(42)
    wanted = [[t.tolist() for t in step()] for _ in range(2)]
    torch.cuda.manual_seed(42)
    graph, results = captured(step)
    found = []
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        found.append([t.tolist() for t in results])
    assert found == wanted


def test_what_shared_states_refuse() -> None:
    cpu, reference = torch.Generator(), oracle.Generator()
    for generator, module in ((cpu, torch), (reference, oracle)):
        with pytest.raises(
            NotImplementedError, match="graphsafe_get_state is not supported in this Generator"
        ):
            generator.graphsafe_get_state()
        with pytest.raises(
            NotImplementedError, match="graphsafe_set_state is not supported in this Generator"
        ):
            generator.graphsafe_set_state(module.Generator())
        with pytest.raises(TypeError, match="expected a Generator, but got int"):
            generator.graphsafe_set_state(3)
        module.rand(3, generator=generator), module.randn(1, generator=generator)
        twin = generator.clone_state()
        assert module.rand(3, generator=twin).tolist() == module.rand(3, generator=generator).tolist()
        assert twin is not generator and twin.initial_seed() == generator.initial_seed()
    with torch.virtual(devices=1), pytest.raises(RuntimeError, match="Expected a CUDA Generator"):
        torch.Generator("cuda").graphsafe_set_state(cpu)


# -- what a capture refuses ------------------------------------------------------------------------------

CAPTURING = "operation not permitted when stream is capturing"


def test_waits_and_questions_are_refused() -> None:
    with torch.virtual(devices=1):
        x, event = torch.ones(4, device="cuda"), torch.cuda.Event()
        event.record()
        refuse(CAPTURING, lambda: x.sum().item())
        refuse(CAPTURING, lambda: x.cpu())
        refuse(CAPTURING, torch.cuda.synchronize)
        refuse(CAPTURING, lambda: torch.cuda.current_stream().synchronize(), capture_error_mode="relaxed")
        refuse(CAPTURING, lambda: torch.cuda.current_stream().query())
        refuse(CAPTURING, event.query)
        refuse(CAPTURING, event.synchronize, capture_error_mode="thread_local")
        refuse(CAPTURING, lambda: torch.ones(4).to("cuda"))


def test_relaxed_captures_let_others_wait(gpu: None) -> None:
    x, event = torch.ones(4, device="cuda"), torch.cuda.Event()
    event.record()
    graph, (y, done) = captured(lambda: (x + 1, event.query()), capture_error_mode="relaxed")
    assert done
    graph.replay()
    torch.cuda.synchronize()
    assert y.tolist() == [2.0] * 4


def test_events_of_a_capture_are_not_asked(gpu: None) -> None:
    x, event = torch.ones(4, device="cuda"), torch.cuda.Event()

    def work() -> Any:
        y = x + 1
        event.record()
        return y

    captured(work)
    for call in (event.query, event.synchronize, torch.cuda.Stream().wait_event):
        with pytest.raises(RuntimeError, match="last recorded in a capturing stream"):
            call(event) if call.__name__ == "wait_event" else call()
    event.record()
    event.synchronize()
    assert event.query()


def test_work_that_was_not_captured_is_not_waited_for(gpu: None) -> None:
    event = torch.cuda.Event()
    event.record()
    refuse("dependency created on uncaptured work", lambda: torch.cuda.current_stream().wait_event(event))


def test_the_default_stream_does_not_join(gpu: None) -> None:
    refuse(
        "would make the legacy stream depend on a capturing",
        lambda: torch.cuda.default_stream().wait_stream(torch.cuda.current_stream()),
    )


def test_work_of_a_stream_that_does_not_come_back_is_refused(gpu: None) -> None:
    x, side = torch.ones(4, device="cuda"), torch.cuda.Stream()

    def work() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.add(1)

    with pytest.raises(RuntimeError, match="capturing stream has unjoined work"):
        captured(work)
    with torch.cuda.stream(side):  # which captures no longer
        assert not torch.cuda.is_current_stream_capturing()
        side.wait_stream(torch.cuda.default_stream())
        assert x.add(1).tolist() == [2.0] * 4


def test_an_error_of_the_program_ends_the_capture(gpu: None) -> None:
    stream = torch.cuda.current_stream()

    def work() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        captured(work)
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()


def test_memory_runs_out_without_harm() -> None:
    with torch.virtual(devices=1, profile="v100-16g"):
        x = torch.ones(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            with pytest.raises(torch.cuda.OutOfMemoryError):
                torch.empty(1 << 40, device="cuda")
            y = x + 1
        graph.replay()
        torch.cuda.synchronize()
        assert y.tolist() == [2.0] * 4


# -- races -----------------------------------------------------------------------------------------------


def test_a_replay_races_with_what_does_not_wait_for_it() -> None:
    with torch.virtual(devices=1, races="error"):
        x, stream = torch.ones(64, device="cuda"), torch.cuda.Stream()
        graph, y = captured(lambda: x * 2)
        with torch.cuda.stream(stream):
            graph.replay()
        with pytest.raises(RaceError, match="mul") as caught:
            y.sum()
        assert "lambda: x * 2" in str(caught.value)
        torch.cuda.current_stream().wait_stream(stream)
        y.sum()
        with torch.cuda.stream(stream), pytest.raises(RaceError, match="sum"):
            graph.replay()  # writes what the sum may still read


def test_streams_inside_of_a_graph_race_too() -> None:
    with torch.virtual(devices=1, races="error"):
        x, side = torch.ones(64, device="cuda"), torch.cuda.Stream()

        def work() -> None:
            here = torch.cuda.current_stream()
            side.wait_stream(here)
            x.add_(1)
            with torch.cuda.stream(side):
                x.mul_(2)
            here.wait_stream(side)

        graph, _ = captured(work)
        with pytest.raises(RaceError, match="side stream"):
            graph.replay()


def test_a_capture_orders_nothing_that_runs() -> None:
    with torch.virtual(devices=1, races="error"):
        x, one, two = torch.ones(64, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()
        one.wait_stream(torch.cuda.current_stream())

        def work() -> None:
            two.wait_stream(one)
            with torch.cuda.stream(two):
                x.add(1)
            one.wait_stream(two)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=one):
            work()
        with torch.cuda.stream(one):
            x.add_(1)
        with torch.cuda.stream(two), pytest.raises(RaceError):
            x.mul(2)


# -- networks --------------------------------------------------------------------------------------------


class Several(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        y = self.inner(x).tanh()
        return {"a": y, "b": [y * 2, (x.sum(),)]}


def network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Dropout(0.25), torch.nn.Linear(8, 3)
    ).cuda()


def test_graphed_modules_learn_as_eager_ones(gpu: None) -> None:
    eager = network(0)
    graphed = copy.deepcopy(eager)
    made = torch.cuda.make_graphed_callables(graphed, (torch.zeros(5, 6, device="cuda"),))
    assert made is graphed
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (eager, graphed)]
    for step in range(3):
        x = torch.randn(5, 6, device="cuda")
        losses = []
        for net, optimizer in zip((eager, graphed), optimizers, strict=True):
            torch.cuda.manual_seed(step)
            loss = net(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] == losses[1]
    for mine, theirs in zip(graphed.parameters(), eager.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for net in (eager, graphed):
        net.eval()
    x = torch.randn(2, 6, device="cuda")  # another shape: the graph could not take it
    assert torch.equal(eager(x), graphed(x))


def test_graphed_modules_keep_running_statistics(gpu: None) -> None:
    """Buffers that the forward pass writes are the module's own: a launch goes on with them, eager passes too."""
    torch.manual_seed(0)
    eager = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 3)
    ).cuda()
    graphed = copy.deepcopy(eager)
    torch.cuda.make_graphed_callables(graphed, (torch.randn(5, 6, device="cuda"),))
    assert graphed[1].num_batches_tracked == 3, "the runs before the capture, as in PyTorch"
    eager.load_state_dict(graphed.state_dict())
    for step in range(4):
        x, drawn = torch.randn(5, 6, device="cuda"), []
        for net in (eager, graphed):
            torch.cuda.manual_seed(step)
            net.train(step != 2)  # the third pass is eager for both, and reads the statistics
            net.zero_grad()
            drawn.append(net(x))
            drawn[-1].square().sum().backward()
        assert torch.equal(*drawn)
        assert torch.cuda.get_rng_state()[8] == (0 if step == 2 else 4)
        for mine, theirs in zip(graphed.parameters(), eager.parameters(), strict=True):
            assert torch.equal(mine.grad, theirs.grad)
    assert graphed[1].num_batches_tracked == 6
    for name, buffer in graphed.named_buffers():
        assert torch.equal(buffer, eager.get_buffer(name)), name


def test_graphed_callables_need_arguments_each(gpu: None) -> None:
    nets, x = (torch.nn.Linear(2, 2).cuda(), torch.nn.Linear(2, 2).cuda()), torch.ones(1, 2, device="cuda")
    with pytest.raises(ValueError, match="2 callables, but 1 tuples of sample_args"):
        torch.cuda.make_graphed_callables(nets, ((x,),))


def test_graphed_callables_in_a_row_and_nested_results(gpu: None) -> None:
    first, second = network(1).eval(), Several().cuda()
    inner = torch.nn.Linear(3, 6).cuda()
    reference = [copy.deepcopy(net) for net in (first, inner, second)]
    x = torch.randn(5, 6, device="cuda", requires_grad=True)
    hidden = torch.randn(5, 3, device="cuda", requires_grad=True)
    wide = torch.randn(5, 6, device="cuda", requires_grad=True)
    made = torch.cuda.make_graphed_callables((first, inner, second), ((x,), (hidden,), (wide,)))
    results = []
    for a, b, c in (made, reference):
        given = torch.arange(30.0, device="cuda").reshape(5, 6).div(30).requires_grad_()
        out = c(b(a(given)))
        (out["a"].sum() + out["b"][0].square().sum() + out["b"][1][0]).backward()
        results.append((given.grad.tolist(), out["a"].tolist(), [p.grad.tolist() for p in c.parameters()]))
    assert results[0] == results[1]


def test_graphed_functions_and_what_they_refuse(gpu: None) -> None:
    assert torch.cuda.graphs.make_graphed_callables is torch.cuda.make_graphed_callables
    assert torch.cuda.graphs.graph is torch.cuda.graph and not hasattr(torch.cuda.graphs, "gc_collect")
    x = torch.ones(3, device="cuda", requires_grad=True)
    nested = torch.cuda.make_graphed_callables(
        lambda pair, named: {"sum": pair[0] + pair[1], "rest": [named["scale"] * pair[0]]},
        ((x, x.detach() + 1), {"scale": x.detach() + 2}),
    )
    given = (torch.full_like(x, 3), torch.full_like(x, 4))
    found = nested(given, {"scale": torch.full_like(x, 5)})
    assert (found["sum"] == 7).all() and (found["rest"][0] == 15).all()
    for wrong in ((list(given), {"scale": x}), (given, {"other": x}), (given, x), (given,)):
        with pytest.raises(RuntimeError, match="nested as its sample_args were"):
            nested(*wrong)
    double = torch.cuda.make_graphed_callables(lambda t: t * 2, (x,))
    y = torch.full((3,), 5.0, device="cuda", requires_grad=True)
    double(y).sum().backward()
    assert y.grad.tolist() == [2.0] * 3
    with pytest.raises(AssertionError, match="only Tensors"):
        torch.cuda.make_graphed_callables(lambda t: t, (1.0,))
    with pytest.raises(TypeError, match="takes and returns tensors"):
        torch.cuda.make_graphed_callables(lambda t: 3, (x,))
    hooked = network(0)
    hooked.register_forward_hook(lambda *_: None)
    with pytest.raises(AssertionError, match="hooks"):
        torch.cuda.make_graphed_callables(hooked, (torch.zeros(5, 6, device="cuda"),))
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="autocast caching"):
        torch.cuda.make_graphed_callables(network(0), (torch.zeros(5, 6, device="cuda"),))


@pytest.mark.parametrize("scaled", [False, True])
def test_a_whole_step_of_training_is_one_graph(scaled: bool) -> None:
    """Forward, backward and optimizer: as eager steps, with and without a loss that is scaled."""
    with torch.virtual(devices=1, races="error", poison=True):
        torch.manual_seed(3)
        eager = torch.nn.Linear(8, 4).cuda()
        graphed = copy.deepcopy(eager)
        nets, factor = (eager, graphed), 8.0 if scaled else 1.0
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9) for net in nets]
        x, wanted = torch.ones(3, 8, device="cuda"), torch.zeros(3, 4, device="cuda")

        def step(which: int) -> Any:
            optimizers[which].zero_grad(set_to_none=True)
            loss = (nets[which](x) - wanted).square().mean() * factor
            loss.backward()
            optimizers[which].step()
            return loss

        for which in (0, 1):
            step(which)  # makes the optimizer's state
        with torch.cuda.stream(torch.cuda.Stream()) as stream:
            stream.wait_stream(torch.cuda.default_stream())
            for which in (0, 1):
                step(which)
        graph, loss = captured(lambda: step(1), stream=stream)
        for _ in range(4):
            x.copy_(torch.randn(3, 8))
            expected = step(0)
            graph.replay()
            torch.cuda.synchronize()
            assert loss.item() == expected.item()
        for mine, theirs in zip(graphed.parameters(), eager.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_a_graph_may_be_part_of_another(gpu: None) -> None:
    x = torch.zeros(4, device="cuda")
    side = torch.cuda.Stream()

    def forked() -> None:
        x.add_(1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.mul_(2)
        torch.cuda.current_stream().wait_stream(side)
        x.add_(3)

    inner, _ = captured(forked)
    outer, _ = captured(lambda: (x.add_(10), inner.replay(), x.sub_(1), inner.replay()))
    whole, _ = captured(lambda: (outer.replay(), x.neg_()))
    assert x.tolist() == [0] * 4
    want = 0
    for _ in range(3):
        whole.replay()
        want = -((((want + 10 + 1) * 2 + 3) - 1 + 1) * 2 + 3)
    inner.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [(want + 1) * 2 + 3] * 4


def test_random_numbers_of_a_graph_within_another_go_on(gpu: None) -> None:
    x = torch.zeros(6, device="cuda")
    inner, _ = captured(lambda: x.add_(torch.rand(6, device="cuda")))
    outer, _ = captured(lambda: (x.uniform_(), inner.replay(), inner.replay()))
    torch.cuda.manual_seed(3)
    for _ in range(2):
        outer.replay()
    state = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(3)
    want = None
    for _ in range(2):
        want = torch.rand(6, device="cuda") + torch.rand(6, device="cuda") + torch.rand(6, device="cuda")
    assert torch.allclose(x, want) and (torch.cuda.get_rng_state() == state).all()


def test_a_graph_within_another_races_with_what_nobody_orders() -> None:
    with torch.virtual(races="error"):
        x = torch.zeros(4, device="cuda")
        inner, _ = captured(lambda: x.add_(1))
        side = torch.cuda.Stream()

        def unordered() -> None:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                x.mul_(2)
            inner.replay()
            torch.cuda.current_stream().wait_stream(side)

        outer, _ = captured(unordered)
        with pytest.raises(RaceError, match=r"mul|add"):
            outer.replay()


def test_graphed_callables_leave_the_certificate() -> None:
    with torch.virtual(1, races="error"):
        x = torch.ones(5, 6, device="cuda")
        graphed = torch.cuda.make_graphed_callables(torch.nn.Linear(6, 2).cuda(), (x,))
        graphed(x).sum().backward()
        torch.cuda.synchronize()
        found = system.accelerator().detector.certificate()
    assert found.race_free, str(found)
