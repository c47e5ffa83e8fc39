"""Streams of the walk backward (PyTorch 1.8's notes, "Stream semantics of backward passes"; SPEC rows G01 to G08)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from autograd.streams_programs import streams_program

import flambeau as torch
from flambeau.runtime import system
from flambeau.tape import engine

SCHEDULES = [
    "earliest",
    *[f"random:{seed}" for seed in range(6)],
    *[f"adversarial:{seed}" for seed in range(6)],
]


def run(program: Callable[[], Any], schedule: str = "earliest", devices: int = 2) -> tuple[Any, Any]:
    """What the program returns, and what the race detector makes of it."""
    with torch.virtual(devices=devices, profile="a100", schedule=schedule, races="warn"):
        value = program()
        torch.cuda.synchronize()
        return value, system.accelerator().detector.certificate()


def forward(stream: Any = None) -> tuple[Any, Any]:
    w = torch.full((64, 64), 0.5, device="cuda", requires_grad=True)
    x = torch.full((64, 64), 0.25, device="cuda")
    if stream is None:
        return w, (w @ x).relu().sum(1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        loss = (w @ x).relu().sum(1)
    w.record_stream(stream)
    x.record_stream(stream)
    return w, loss


def seen(w: Any) -> Any:
    return w.grad.cpu().numpy()


EXPECTED = np.full((64, 64), 16.0, np.float32)  # d/dw of sum(relu(w @ x)): each row's sum of x


def first_safe_example(side_forward: bool) -> Callable[[], Any]:
    def program() -> Any:
        strm = torch.cuda.Stream()
        w, loss = forward(strm if side_forward else None)
        strm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(strm):
            loss.backward(gradient=torch.ones_like(loss))
        torch.cuda.current_stream().wait_stream(strm)
        return seen(w)

    return program


def second_safe_example() -> Any:
    strm = torch.cuda.Stream()
    w, loss = forward()
    initial_grad = torch.ones_like(loss)
    strm.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(strm):
        initial_grad.record_stream(strm)
        loss.backward(gradient=initial_grad)
    torch.cuda.current_stream().wait_stream(strm)
    return seen(w)


def unsafe_example() -> Any:
    strm, other = torch.cuda.Stream(), torch.cuda.Stream()
    w, loss = forward(other)
    torch.cuda.synchronize()
    initial_grad = torch.ones_like(loss)
    with torch.cuda.stream(strm):
        loss.backward(gradient=initial_grad)
    torch.cuda.synchronize()
    return seen(w)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "program",
    [first_safe_example(False), first_safe_example(True), second_safe_example],
    ids=["first", "side", "second"],
)
def test_g05_g07_g08_the_safe_examples(program: Callable[[], Any], schedule: str) -> None:
    value, certificate = run(program, schedule)
    assert certificate.race_free, str(certificate)
    np.testing.assert_array_equal(value, EXPECTED)


def test_g06_the_unsafe_example_is_reported() -> None:
    _, certificate = run(unsafe_example)
    assert not certificate.race_free
    assert any(race.fix.call == "wait_stream" for race in certificate.races), str(certificate)


@pytest.mark.parametrize("how", ["backward", "grad", "method"])
def test_g02_g03_g04_every_way_to_give_an_initial_gradient(how: str) -> None:
    def program() -> Any:
        strm = torch.cuda.Stream()
        w, loss = forward(strm)
        seed = torch.ones_like(loss)
        if how == "backward":
            torch.autograd.backward([loss], grad_tensors=[seed])
        elif how == "method":
            loss.backward(gradient=seed)
        else:
            (w.grad,) = torch.autograd.grad([loss], [w], grad_outputs=[seed])
        return seen(w)

    value, certificate = run(program)
    assert certificate.race_free, str(certificate)
    np.testing.assert_array_equal(value, EXPECTED)


def test_g01_backward_operations_run_on_the_streams_of_their_forward_operations() -> None:
    streams: dict[str, Any] = {}

    class Spy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, name: str) -> Any:
            ctx.name_of_it = name
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            streams[ctx.name_of_it] = (torch.cuda.current_stream(grad.device), torch.cuda.current_device())
            return grad, None

    with torch.virtual(devices=2):
        side, far = torch.cuda.Stream(0), torch.cuda.Stream(1)
        x = torch.ones(8, device="cuda:0", requires_grad=True)
        y = Spy.apply(x, "default")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = Spy.apply(y, "side")
            far.wait_stream(side)
            with torch.cuda.stream(far):
                y = Spy.apply(y.to("cuda:1"), "far")
        before = torch.cuda.current_stream(), torch.cuda.current_device()
        y.sum().backward()
        assert streams == {"default": (torch.cuda.default_stream(0), 0), "side": (side, 0), "far": (far, 1)}
        assert (torch.cuda.current_stream(), torch.cuda.current_device()) == before
        torch.cuda.synchronize()


def branches() -> Any:
    """Forward on two streams and two devices that meet again; every gradient crosses, one to each node.

    (The sum of two gradients that cross makes the stream wait when the second arrives, before the node itself runs.)
    """
    a, b = torch.cuda.Stream(0), torch.cuda.Stream(0)
    w = torch.full((256, 256), 0.5, device="cuda:0", requires_grad=True)
    x = w.detach()
    parts = []
    for stream in (a, b):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            parts.append((w @ x).tanh())
        w.record_stream(stream)
    for stream, part in zip((a, b), parts, strict=True):
        torch.cuda.current_stream().wait_stream(stream)
        part.record_stream(torch.cuda.current_stream())
    there = (parts[0] + parts[1]).to("cuda:1")
    loss = (there * 2).sum()
    loss.backward()
    return w.grad.cpu().numpy()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_cross_streams_and_devices(schedule: str) -> None:
    value, certificate = run(branches, schedule)
    assert certificate.race_free, str(certificate)
    w = np.full((256, 256), 0.5, np.float32)
    slope = 2 * 2 * (1 - np.tanh(w @ w) ** 2)
    np.testing.assert_allclose(value, slope @ w.T, rtol=1e-5)


def run_without(left_out: int) -> tuple[int, Any]:
    """Run `branches` without one of the waits that the walk inserts; return how many there are, and the certificate.

    Waits between devices are not left out: the copies there order the streams, too.
    """
    numbers = itertools.count()
    original = engine.make_stream_wait

    def order(waiter: Any, event: Any) -> None:
        if event.device != waiter.device or next(numbers) != left_out:
            original(waiter, event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "make_stream_wait", order)
        _, certificate = run(branches)
    return next(numbers), certificate


def test_each_inserted_edge_is_needed() -> None:
    """Without any one of the waits that the walk inserts, the race detector fires."""
    edges, certificate = run_without(-1)
    assert edges >= 4 and certificate.race_free
    for left_out in range(edges):
        _, certificate = run_without(left_out)
        assert not certificate.race_free, f"wait {left_out} of {edges} can be left out"


@pytest.mark.parametrize("seed", range(12))
def test_current_streams_amid_the_walk(seed: int) -> None:
    """tests/gpu/walk_streams.py runs the same programs with PyTorch on two GPUs."""
    with torch.virtual(devices=2):
        seen, expected = streams_program(torch, seed)
        torch.cuda.synchronize()
        assert seen == expected


def test_memory_of_a_gradient_is_kept_for_its_new_stream() -> None:
    """A gradient that dies after the walk is not handed out again before its consumer's stream has read it."""

    def program() -> Any:
        side = torch.cuda.Stream()
        x = torch.full((1 << 16,), 2.0, device="cuda", requires_grad=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = (x * x).exp().log()
        x.record_stream(side)
        torch.cuda.current_stream().wait_stream(side)
        y.record_stream(torch.cuda.current_stream())
        (y * 3).sum().backward()
        for _ in range(4):  # would reuse the memory of dead gradients
            torch.full((1 << 16,), 7.0, device="cuda")
        return x.grad.cpu().numpy()

    for schedule in SCHEDULES:
        value, certificate = run(program, schedule)
        assert certificate.race_free, str(certificate)
        np.testing.assert_allclose(value, 12.0, rtol=1e-5)
