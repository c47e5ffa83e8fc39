"""Random programs over two GPUs and the CPU that record which streams are current in each backward function."""

from __future__ import annotations

import random
from typing import Any

Seen = dict[int, tuple[int, list[str]]]


def streams_program(m: Any, seed: int, nodes: int = 30) -> tuple[Seen, Seen]:
    """Walk backward through a random graph.

    Args:
        m: The library, with two GPUs.
        seed: Decides the graph, its streams, and the caller's streams and device.
        nodes: How many functions there are.

    Returns:
        For each function's number the current device and the current stream of both GPUs in its backward; and what
        PyTorch's engine promises: a GPU's function runs in that GPU's thread, so on its own stream, with the default
        streams of other GPUs; the CPU's functions run in the caller's thread.
    """
    rng = random.Random(seed)
    streams = {f"{d}:{k}": m.cuda.Stream(d) for d in range(2) for k in range(2)}
    streams |= {f"{d}:default": m.cuda.default_stream(d) for d in range(2)}
    seen: Seen = {}
    expected: Seen = {}

    def name_of(stream: Any) -> str:
        return next(name for name, each in streams.items() if each == stream)

    class Spy(m.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, number: int, *inputs: Any) -> Any:
            ctx.number, ctx.count = number, len(inputs)
            return sum(inputs[1:], inputs[0] * 1)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            now = [name_of(m.cuda.current_stream(d)) for d in range(2)]
            seen[ctx.number] = m.cuda.current_device(), now
            return (None, *[grad] * ctx.count)

    def choose(d: int) -> str:
        return rng.choice([f"{d}:default", f"{d}:0", f"{d}:1"])

    tensors = [m.ones(4, device=d, requires_grad=True) for d in ("cuda:0", "cuda:1", "cpu")]
    for number in range(nodes):
        place = rng.choice(["cuda:0", "cuda:1", "cpu"])
        inputs = rng.sample(tensors, rng.randint(1, 2))
        m.cuda.synchronize(0), m.cuda.synchronize(1)
        here = [choose(0), choose(1)]
        with m.cuda.stream(streams[here[0]]), m.cuda.stream(streams[here[1]]):
            tensors.append(Spy.apply(number, *[t.to(place) for t in inputs]))
        if place != "cpu":
            index = int(place[-1])
            own = [f"{d}:default" if d != index else here[d] for d in range(2)]
            expected[number] = index, own
    m.cuda.synchronize(0), m.cuda.synchronize(1)
    used = sum(t.sum().cpu() for t in tensors)
    callers, device = [choose(0), choose(1)], rng.randrange(2)
    with m.cuda.stream(streams[callers[0]]), m.cuda.stream(streams[callers[1]]), m.cuda.device(device):
        used.backward()
    m.cuda.synchronize(0), m.cuda.synchronize(1)
    return seen, {number: expected.get(number, (device, callers)) for number in range(nodes)}
