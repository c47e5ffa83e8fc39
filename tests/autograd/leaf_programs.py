"""Random programs that use leaves on several streams, with the stream on which each leaf accumulates, for any library."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any


def uses(m: Any) -> dict[str, Callable[[Any], Any]]:
    """Return ways to record a function of a leaf of eight elements, by name, in the library `m`."""

    class Twice(m.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * 2

    return {
        "operator": lambda w: w * 3,
        "both operands": lambda w: w * w,
        "view": lambda w: w[2:],
        "view of a view": lambda w: w.view(2, 4).t(),
        "several views": lambda w: w.split(2)[1],
        "custom function": lambda w: Twice.apply(w),
        "saved": lambda w: w.exp() * w,
        "in place on another": lambda w: m.zeros(8, device="cuda").mul_(w),
    }


def programs(
    m: Any, seed: int, steps: int = 60
) -> Iterator[tuple[list[Any], list[Any], bool, Callable[[], bool]]]:
    """Run a random program; yield after each step what a reference without counts expects.

    The reference holds PyTorch's `AccumulateGrad` as a number: it is created by a use while no graph holds it.

    Args:
        m: The library, with a GPU open.
        seed: Decides the program.
        steps: How many uses and deletions.

    Yields:
        The leaves; the stream of each leaf's node; whether the last gradient crosses streams to reach its leaf; a
        function that walks backward through the last graph and returns whether the library warned of that.
    """
    rng = random.Random(seed)
    ways = list(uses(m).values())
    streams = [m.cuda.current_stream(), m.cuda.Stream(), m.cuda.Stream()]
    leaves = [m.ones(8, device="cuda", requires_grad=True) for _ in range(2)]
    m.cuda.synchronize()
    holders: list[set[int]] = [set(), set()]
    expected = [streams[0], streams[0]]
    graphs: dict[int, Any] = {}
    for number in range(steps):
        if graphs and rng.random() < 0.45:
            gone = rng.choice(list(graphs))
            del graphs[gone]
            for each in holders:
                each.discard(gone)
            continue
        k, stream = rng.randrange(2), rng.choice(streams)
        with m.cuda.stream(stream):
            graphs[number] = rng.choice(ways)(leaves[k])
        if not holders[k]:
            expected[k] = stream
        holders[k].add(number)
        if all(holders):
            yield leaves, expected, stream != expected[k], lambda: _warns(graphs[number])  # noqa: B023


def _warns(graph: Any) -> bool:
    """Return True if walking backward through a graph warns of the stream of a leaf."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph.sum().backward(retain_graph=True)
    return any("AccumulateGrad node's stream" in str(each.message) for each in caught)
