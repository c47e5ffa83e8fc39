"""Graphs that are long, freed, walked by threads, or spread over devices and streams."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.runtime import system


@contextmanager
def no_collector() -> Iterator[None]:
    """Whatever goes inside goes by its count of references alone."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def chain(x: Any, length: int) -> Any:
    y = x
    for _ in range(length):
        y = y + 1
    return y


def test_a_chain_of_200_000_nodes_is_walked_and_freed_without_recursion() -> None:
    depth = sys.getrecursionlimit()
    x = torch.ones((), requires_grad=True)
    y = chain(x, 200_000)
    y.backward()
    assert x.grad.item() == 1
    y = chain(x, 200_000)
    del y  # freed unwalked
    assert sys.getrecursionlimit() == depth


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_long_chain_that_keeps_its_graph_is_freed_too() -> None:
    x = torch.ones((), requires_grad=True)
    y = chain(x, 50_000)
    y.backward(retain_graph=True)
    y.backward(create_graph=True)
    x.grad = None
    del y
    z = torch.ones((), requires_grad=True)
    y = z
    for _ in range(50_000):
        y = y.view(())
    y.backward()
    assert z.grad.item() == 1


class Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        raise ValueError("boom")


def raising_hook(_: Any) -> None:
    raise ValueError("boom")


def clean(x: Any) -> None:
    ((x @ x).relu() * x).sum().backward()


def twice(x: Any) -> None:
    (grad,) = torch.autograd.grad((x * x * x).sum(), x, create_graph=True)
    grad.sum().backward()


def in_place(x: Any) -> None:
    y = x * 1
    y[0].mul_(2)
    y.tanh_()
    y.retain_grad()
    y.sum().backward()


def function_raises(x: Any) -> None:
    with pytest.raises(ValueError, match="boom"):
        Boom.apply(x * 2).exp().sum().backward()


def hook_raises(x: Any) -> None:
    y = (x * 2).tanh()
    y.register_hook(raising_hook)
    with pytest.raises(ValueError, match="boom"):
        (y * x).sum().backward()


def walk_raises(x: Any) -> None:
    y = (x * 2).exp()
    z = (y * x).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def checkpointed(x: Any) -> None:
    torch.utils.checkpoint.checkpoint(lambda t: (t @ t).tanh().exp(), x, use_reentrant=False).sum().backward()


def hooked(x: Any) -> None:
    handle = x.register_hook(lambda g: g * 2)
    (x * x).sum().backward()
    handle.remove()


PROGRAMS = [clean, twice, in_place, function_raises, hook_raises, walk_raises, checkpointed, hooked]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_memory_is_back_at_its_start(program: Any) -> None:
    """Without the collector: a graph has no cycles, also where the walk ends with an exception."""
    with torch.virtual(devices=1), no_collector():
        x = torch.full((32, 32), 0.25, device="cuda", requires_grad=True)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        program(x)
        x.grad = None
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before


def test_a_node_goes_with_its_tensor() -> None:
    with no_collector():
        x = torch.ones(3, requires_grad=True)
        y = (x * 2).exp()
        node = weakref.ref(y.grad_fn)
        assert node() is not None
        del y
        assert node() is None


def test_saved_tensors_are_freed_as_the_walk_goes() -> None:
    """At most a few layers' memory at any time of the walk, where the graph is not kept."""
    seen: list[int] = []
    with torch.virtual(devices=1):
        x = torch.full((256, 256), 0.5, device="cuda", requires_grad=True)
        y = x
        for _ in range(8):
            y = y.sigmoid()
            y.register_hook(lambda g: seen.append(torch.cuda.memory_allocated()))
        loss = y.sum()
        del y
        loss.backward()
        torch.cuda.synchronize()
    layer = 256 * 256 * 4
    assert seen[0] - seen[-1] >= 5 * layer


def test_what_save_on_cpu_saves_is_not_on_the_device() -> None:
    with torch.virtual(devices=1):
        x = torch.full((256, 256), 0.5, device="cuda", requires_grad=True)
        before = torch.cuda.memory_allocated()
        with torch.autograd.graph.save_on_cpu():
            y = (x * 2).sigmoid().sigmoid().sum()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() - before < 2048
        y.backward()
        torch.cuda.synchronize()
        expected = x.grad.cpu().numpy()
    p = torch.full((256, 256), 0.5, requires_grad=True)
    (p * 2).sigmoid().sigmoid().sum().backward()
    np.testing.assert_allclose(expected, p.grad.numpy(), rtol=1e-6)


def test_what_a_checkpoint_covers_is_not_kept() -> None:
    def layers(t: Any) -> Any:
        for _ in range(6):
            t = t.sigmoid()
        return t.sum()

    def held(reentrant: bool | None) -> int:
        with torch.virtual(devices=1):
            x = torch.full((256, 256), 0.5, device="cuda", requires_grad=True)
            before = torch.cuda.memory_allocated()
            if reentrant is None:
                loss = layers(x)
            else:
                loss = torch.utils.checkpoint.checkpoint(layers, x, use_reentrant=reentrant)
            torch.cuda.synchronize()
            found: int = torch.cuda.memory_allocated() - before
            loss.backward()
            torch.cuda.synchronize()
            return found

    assert held(None) >= 6 * 256 * 256 * 4
    assert held(False) < 2048
    assert held(True) < 2048


def test_data_of_another_place_lets_the_old_memory_go() -> None:
    with torch.virtual(devices=1), no_collector():
        x = torch.ones(1000, device="cuda", requires_grad=True)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        x.data = x.data.cpu()
        assert torch.cuda.memory_allocated() == before - 4096


def test_threads_walk_graphs_of_their_own_at_once() -> None:
    results: dict[int, float] = {}
    errors: list[BaseException] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            start.wait()
            x = torch.full((8,), float(number), requires_grad=True)
            for _ in range(20):
                x.grad = None
                chain(x * x, 50).sum().backward()
            results[number] = x.grad[0].item()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors
    assert results == {n: 2.0 * n for n in range(4)}


def test_modes_are_of_a_thread() -> None:
    seen: list[tuple[bool, bool]] = []

    def look() -> None:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        seen.append((torch.ones(1).is_inference(), (torch.ones(1, requires_grad=True) * 2).requires_grad))

    with torch.inference_mode():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert torch.ones(1).is_inference()
    assert seen == [(True, False), (False, True)]


def spread() -> Any:
    """A graph over two devices and four streams."""
    w = torch.full((64, 64), 0.5, device="cuda:0", requires_grad=True)
    streams = [torch.cuda.Stream(0), torch.cuda.Stream(0), torch.cuda.Stream(1), torch.cuda.Stream(1)]
    parts = []
    for stream in streams[:2]:
        stream.wait_stream(torch.cuda.current_stream(0))
        with torch.cuda.stream(stream):
            parts.append((w * w).tanh())
        w.record_stream(stream)
    there = []
    for near, far, part in zip(streams[:2], streams[2:], parts, strict=True):
        with torch.cuda.stream(near), torch.cuda.stream(far):
            with torch.cuda.stream(near):
                moved = part.to("cuda:1")
            there.append((moved * 3).exp())
    for far, part in zip(streams[2:], there, strict=True):
        torch.cuda.current_stream(1).wait_stream(far)
        part.record_stream(torch.cuda.current_stream(1))
    (there[0] + there[1]).sum().backward()
    return w.grad.cpu().numpy()


@pytest.mark.parametrize(
    "schedule", ["earliest", *[f"random:{n}" for n in range(5)], *[f"adversarial:{n}" for n in range(5)]]
)
def test_a_graph_over_two_devices_and_four_streams(schedule: str) -> None:
    with torch.virtual(devices=2, profile="a100", schedule=schedule, races="warn"):
        value = spread()
        torch.cuda.synchronize()
        certificate = system.accelerator().detector.certificate()
    assert certificate.race_free, str(certificate)
    w = 0.5
    t = np.tanh(w * w)
    np.testing.assert_allclose(value, 2 * np.exp(3 * t) * 3 * (1 - t * t) * 2 * w, rtol=1e-5)
