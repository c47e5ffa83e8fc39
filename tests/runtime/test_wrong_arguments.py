"""Arguments of a wrong type: each function of streams, events, graphs and groups says so in words."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import flambeau as torch
import flambeau.distributed as dist

WRONG: tuple[Any, ...] = (
    None, "x", b"x", 1.5, -7, 1 << 70, True, [], [None], ["x"], {}, (), object(), int, torch, lambda: 1,
)  # fmt: skip
BARE = (
    AttributeError,
    IndexError,
    KeyError,
    NameError,
    AssertionError,
    OverflowError,
    StopIteration,
    RecursionError,
)
"""What speaks of Flambeau's code, not of the program's."""
PYTORCHS = (
    "Invalid device id",
    "Invalid peer device id",
    "Expected backend_options argument",
    "In the beta API",
)
"""Beginnings of texts of AssertionErrors that PyTorch has, too."""

ENDLESS = {"wait", "get", "barrier", "multi_get", "queue_pop"}  # of a store, for what nobody brings
LEFT_OUT = {
    "destroy_process_group", "init_process_group", "breakpoint", "launch", "TCPStore", "FileStore",
    "recv", "irecv", "send", "isend", "recv_object_list", "send_object_list",  # they wait for another rank
}  # fmt: skip


def filled(name: str) -> Any:
    """Something that fits an argument without a default."""
    tensor = torch.ones(2, device="cuda")
    known: dict[str, Callable[[], Any]] = {
        "stream": torch.cuda.Stream, "event": torch.cuda.Event, "end_event": torch.cuda.Event,
        "cuda_graph": torch.cuda.CUDAGraph, "key": lambda: "key", "ranks": lambda: [0], "backend": lambda: "gloo",
        "devices": lambda: [0], "device": lambda: 0, "src": lambda: 0, "dst": lambda: 0,
    }  # fmt: skip
    if name in known:
        return known[name]()
    if "object" in name:
        return [1]
    is_list = name.endswith(("list", "inputs", "outputs", "tensors"))
    return [tensor] if is_list else tensor if "tensor" in name or name in ("input", "output") else 1


def bare_errors(call: Callable[..., Any], left_out: tuple[str, ...] = ()) -> Iterator[str]:
    """Errors of the kind that nobody meant to raise, for each argument and each wrong value."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for parameter in named:
        for wrong in WRONG if parameter.name not in left_out else ():
            given = {p.name: filled(p.name) for p in named if p.default is p.empty} | {parameter.name: wrong}
            try:
                call(**given)
            except BARE as error:
                if not str(error).startswith(PYTORCHS):
                    yield f"{call}: {parameter.name}={wrong!r}: {type(error).__name__}: {error}"
            except Exception:  # one with words
                pass


def methods(made: Callable[[], Any], left_out: set[str]) -> Iterator[Callable[..., Any]]:
    for name in dir(type(made())):
        if not name.startswith("_") and name not in left_out and callable(method := getattr(made(), name)):
            yield method


def functions(module: Any, names: Any) -> Iterator[Callable[..., Any]]:
    for name in names:
        found = getattr(module, name)
        if callable(found) and not (isinstance(found, type) and issubclass(found, BaseException)):
            yield found


def entered(context: Any) -> Callable[..., None]:
    """A context manager's class, which is to refuse at the latest when it is entered."""

    def enter(**given: Any) -> None:
        with context(**given):
            pass

    enter.__signature__ = inspect.signature(context)  # type: ignore[attr-defined]
    return enter


@pytest.fixture
def _gpu() -> Iterator[None]:
    with torch.virtual(devices=1):
        yield


@pytest.fixture
def _group(_gpu: None) -> Iterator[None]:
    dist.init_process_group("cpu:gloo,cuda:nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


CUDA = (
    "Stream", "Event", "ExternalStream", "current_stream", "default_stream", "set_stream", "synchronize", "device",
    "device_of", "set_device", "get_device_properties", "get_device_name", "can_device_access_peer", "manual_seed",
    "get_rng_state", "set_rng_state", "memory_stats", "memory_allocated", "mem_get_info", "set_sync_debug_mode",
    "graph_pool_handle", "is_current_stream_capturing", "get_stream_from_external", "_sleep", "MemPool",
)  # fmt: skip


@pytest.mark.usefixtures("_gpu")
def test_functions_of_torch_cuda() -> None:
    assert [e for call in functions(torch.cuda, CUDA) for e in bare_errors(call)] == []
    torch.cuda.set_sync_debug_mode("default")
    for context in (torch.cuda.stream, torch.cuda.StreamContext, torch.cuda.device, torch.cuda.device_of):
        assert list(bare_errors(entered(context))) == []
    torch.cuda.synchronize()


@pytest.mark.usefixtures("_gpu")
def test_graphs() -> None:
    assert list(bare_errors(entered(torch.cuda.graph))) == []
    assert not torch.cuda.is_current_stream_capturing()
    assert list(bare_errors(torch.cuda.make_graphed_callables, ("callables",))) == []
    torch.cuda.synchronize()


@pytest.mark.usefixtures("_gpu")
@pytest.mark.parametrize("kind", ["Stream", "Event", "CUDAGraph"])
def test_methods_of_streams_events_and_graphs(kind: str) -> None:
    timed = {"enable_timing": True} if kind == "Event" else {}
    assert [
        e for call in methods(lambda: getattr(torch.cuda, kind)(**timed), set()) for e in bare_errors(call)
    ] == []
    tensor = torch.ones(2, device="cuda")
    assert [*bare_errors(tensor.record_stream), *bare_errors(tensor.record_use)] == []
    torch.cuda.synchronize()


@pytest.mark.usefixtures("_group")
def test_groups_and_stores() -> None:
    names = [name for name in dir(dist) if not name.startswith("_") and name not in LEFT_OUT]
    calls = [
        call
        for call in functions(dist, names)
        if not isinstance(call, type) or call.__module__.startswith("flam")
    ]
    calls += methods(lambda: dist.group.WORLD, {"abort", "shutdown", "backend_for", "set_timeout"})
    calls += methods(dist.HashStore, ENDLESS)
    assert [e for call in calls for e in bare_errors(call)] == []
    torch.cuda.synchronize()


@pytest.mark.usefixtures("_gpu")
def test_what_is_said() -> None:
    stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
    said = {
        "wait_stream(): argument 'stream' (position 1) must be Stream, not NoneType": lambda: (
            stream.wait_stream(None)
        ),
        "wait_event(): argument 'event' (position 1) must be Event, not Stream": lambda: stream.wait_event(
            stream
        ),
        "record_event(): argument 'event' (position 1) must be Event, not str": lambda: stream.record_event(
            "x"
        ),
        "record(): argument 'stream' (position 1) must be Stream, not str": lambda: event.record("x"),
        "wait(): argument 'stream' (position 1) must be Stream, not int": lambda: event.wait(3),
        "elapsed_time(): argument 'end_event' (position 1) must be Event, not NoneType": lambda: (
            event.elapsed_time(None)
        ),
        "graph(): argument 'cuda_graph' (position 1) must be CUDAGraph, not NoneType": lambda: (
            torch.cuda.graph(None)
        ),
        "torch.cuda.device_of(): expected a tensor or a storage, not str": lambda: torch.cuda.device_of("x"),
    }
    for text, call in said.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert str(caught.value) == text
