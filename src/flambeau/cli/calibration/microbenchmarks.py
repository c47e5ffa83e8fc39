"""Microbenchmarks of a GPU, its link to the host, and its host's calls.

The same code runs on a real GPU, which it measures, and on a virtual one, whose constants the fit varies. Sizes are
drawn at random. A device's time is between two events around a row of calls that wait behind a spinning kernel, so
that the host's time does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

from flambeau.core.errors import RaceError

Params = dict[str, Any]
Call = Callable[[], object]
Clock = Callable[[], int]
"""Nanoseconds of the host."""

DEVICE, HOST, UNTIL_IDLE = "device", "host", "until idle"
_MOST_CALLS = 10
_ENOUGH_NS = 40_000_000  # ns of all calls of one round
# ns that a spinning kernel runs longer than the host needs for the calls queued behind it
_BEHIND_NS = 60_000
_CYCLES_A_NS = 2.0  # at most
_ROUNDS = 5


class Sizes(NamedTuple):
    """The bytes of a device's L2 cache and of its memory, which bound the sizes that are drawn."""

    l2: int
    memory: int


@dataclass(frozen=True)
class Benchmark:
    """A kind of microbenchmark.

    Attributes:
        name: Name in tables and files.
        count: How many are drawn for the fit; as many others are drawn for the report.
        timing: Whose time counts for one call: "device", "host", or "until idle": the host's until the device is idle.
        draw: Draws the parameters.
        build: Builds the call for a library (`flambeau`) and parameters.
        reads: True if the host reads what was computed, which virtual GPUs without data refuse.
    """

    name: str
    count: int
    timing: str
    draw: Callable[[Random, Sizes], Params]
    build: Callable[[Any, Params], Call]
    reads: bool = False


def log_int(r: Random, low: int, high: int) -> int:
    """Draw an integer whose logarithm is uniform."""
    return round(low * (high / low) ** r.random())


# -- kernels ----------------------------------------------------------------------------------------------------------


def _draw_launch(r: Random, sizes: Sizes) -> Params:
    return {"op": r.choice(("add_", "mul_")), "numel": log_int(r, 1, 4096)}


def _draw_cached(r: Random, sizes: Sizes) -> Params:
    nbytes = log_int(r, max(sizes.l2 // 32, 1 << 16), max(sizes.l2 // 4, 1 << 17))
    return {"op": r.choice(("add_", "mul_", "add")), "numel": nbytes // 12}


def _draw_streamed(r: Random, sizes: Sizes) -> Params:
    nbytes = log_int(r, max(3 * sizes.l2, 1 << 26), min(sizes.memory // 16, 1 << 31))
    return {"op": r.choice(("add_", "mul_", "add")), "numel": nbytes // 12}


def _draw_sum(r: Random, sizes: Sizes) -> Params:
    return {"op": r.choice(("sum", "sum of rows")), "numel": log_int(r, 1 << 10, 1 << 27) // 256 * 256}


def _elementwise(t: Any, p: Params) -> Call:
    x, y, out = (t.ones(p["numel"], device="cuda") for _ in range(3))
    call: Call = {
        "add_": lambda: x.add_(y),
        "mul_": lambda: x.mul_(1.0),
        "add": lambda: t.add(x, y, out=out),
        "sum": lambda: x.sum(),
        "sum of rows": lambda: x.view(-1, 256).sum(1),
    }[p["op"]]
    return call


def _draw_product(low: int, high: int) -> Callable[[Random, Sizes], Params]:
    def draw(r: Random, sizes: Sizes) -> Params:
        return {side: log_int(r, low // 64, high // 64) * 64 for side in ("rows", "columns", "depth")}

    return draw


def _product_of(dtype: str, tf32: bool = False) -> Callable[[Any, Params], Call]:
    def build(t: Any, p: Params) -> Call:
        kind = getattr(t, dtype)
        a = t.ones(p["rows"], p["depth"], dtype=kind, device="cuda")
        b = t.ones(p["depth"], p["columns"], dtype=kind, device="cuda")
        out = t.empty(p["rows"], p["columns"], dtype=kind, device="cuda")

        def run() -> None:
            with _float32_precision(t, tf32):
                t.mm(a, b, out=out)

        return run

    return build


@contextmanager
def _float32_precision(t: Any, tf32: bool) -> Iterator[None]:
    switch = t.backends.cuda.matmul
    before = switch.allow_tf32
    switch.allow_tf32 = tf32
    try:
        yield
    finally:
        switch.allow_tf32 = before


def _draw_graph(r: Random, sizes: Sizes) -> Params:
    return {"nodes": r.choice((5, 10, 20, 40, 80)), "numel": log_int(r, 1, 4096)}


def _graph(t: Any, p: Params) -> Call:
    x = t.ones(p["numel"], device="cuda")
    stream, graph = t.cuda.Stream(), t.cuda.CUDAGraph()
    with t.cuda.stream(stream):
        x.add_(1)
    t.cuda.synchronize()
    with t.cuda.graph(graph, stream=stream):
        for _ in range(p["nodes"]):
            x.add_(1)
    replay: Call = graph.replay
    return replay


# -- copies -----------------------------------------------------------------------------------------------------------


def _draw_copy(low: int, high: int) -> Callable[[Random, Sizes], Params]:
    return lambda r, sizes: {"nbytes": log_int(r, low, high)}


def _copy_of(inward: bool, pinned: bool) -> Callable[[Any, Params], Call]:
    def build(t: Any, p: Params) -> Call:
        create = t.empty if pinned else t.ones  # pages of pageable memory exist from the first write on
        host = create(p["nbytes"], dtype=t.uint8, pin_memory=pinned)
        device = t.empty(p["nbytes"], dtype=t.uint8, device="cuda")
        target, source = (device, host) if inward else (host, device)
        return lambda: target.copy_(source, non_blocking=pinned)

    return build


def _both_ways(t: Any, p: Params) -> Call:
    into, out = (_copy_of(inward, True)(t, p) for inward in (True, False))
    side = t.cuda.Stream()

    def run() -> None:
        side.wait_stream(t.cuda.current_stream())
        into()
        with t.cuda.stream(side):
            out()
        t.cuda.current_stream().wait_stream(side)

    return run


# -- the host ---------------------------------------------------------------------------------------------------------


def _no_params(r: Random, sizes: Sizes) -> Params:
    return {}


def _record(t: Any, p: Params) -> Call:
    event, stream = t.cuda.Event(), t.cuda.current_stream()
    return lambda: event.record(stream)


def _wait(t: Any, p: Params) -> Call:
    event, side = t.cuda.Event(), t.cuda.Stream()
    event.record()
    return lambda: side.wait_event(event)


def _poll(t: Any, p: Params) -> Call:
    call: Call = t.cuda.current_stream().query
    return call


def _synchronization(t: Any, p: Params) -> Call:
    call: Call = t.cuda.current_stream().synchronize
    return call


def _draw_allocation(r: Random, sizes: Sizes) -> Params:
    return {"nbytes": log_int(r, 1 << 25, 1 << 28)}


def _allocation(t: Any, p: Params) -> Call:
    def run() -> None:
        kept = t.empty(p["nbytes"], dtype=t.uint8, device="cuda")
        del kept
        t.cuda.empty_cache()

    t.cuda.empty_cache()
    return run


def _draw_call(r: Random, sizes: Sizes) -> Params:
    return {
        "op": r.choice(("add", "add_", "relu", "sum", "mean", "mm", "view", "softmax", "layer_norm", "cat"))
    }


def _eager_call(t: Any, p: Params) -> Call:
    x, y = (t.ones(64, 64, device="cuda") for _ in range(2))
    call: Call = {
        "add": lambda: x + y,
        "add_": lambda: x.add_(y),
        "relu": lambda: x.relu(),
        "sum": lambda: x.sum(),
        "mean": lambda: x.mean(),
        "mm": lambda: x @ y,
        "view": lambda: x.view(-1),
        "softmax": lambda: x.softmax(1),
        "layer_norm": lambda: t.nn.functional.layer_norm(x, (64,)),
        "cat": lambda: t.cat([x, y]),
    }[p["op"]]
    return call


_LARGE = _draw_product(2048, 4096)
BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark("launch", 6, DEVICE, _draw_launch, _elementwise),
        Benchmark("in the L2 cache", 8, DEVICE, _draw_cached, _elementwise),
        Benchmark("in memory", 8, DEVICE, _draw_streamed, _elementwise),
        Benchmark("sums", 8, DEVICE, _draw_sum, _elementwise),
        Benchmark("product, float16", 4, DEVICE, _LARGE, _product_of("float16")),
        Benchmark("product, bfloat16", 4, DEVICE, _LARGE, _product_of("bfloat16")),
        Benchmark("product, tf32", 4, DEVICE, _LARGE, _product_of("float32", tf32=True)),
        Benchmark("product, float32", 4, DEVICE, _LARGE, _product_of("float32")),
        Benchmark("product, float64", 4, DEVICE, _LARGE, _product_of("float64")),
        Benchmark("small product, float16", 6, DEVICE, _draw_product(256, 1024), _product_of("float16")),
        Benchmark("small product, float32", 6, DEVICE, _draw_product(256, 1024), _product_of("float32")),
        Benchmark("graph", 6, DEVICE, _draw_graph, _graph),
        Benchmark("pinned to device", 10, DEVICE, _draw_copy(64, 1 << 25), _copy_of(True, True)),
        Benchmark("device to pinned", 10, DEVICE, _draw_copy(64, 1 << 25), _copy_of(False, True), reads=True),
        Benchmark("both at once", 6, DEVICE, _draw_copy(1 << 20, 1 << 24), _both_ways, reads=True),
        Benchmark("pageable to device", 10, UNTIL_IDLE, _draw_copy(64, 1 << 25), _copy_of(True, False)),
        Benchmark("device to pageable", 10, UNTIL_IDLE, _draw_copy(64, 1 << 25), _copy_of(False, False), reads=True),
        Benchmark("event record", 1, HOST, _no_params, _record),
        Benchmark("event wait", 1, HOST, _no_params, _wait),
        Benchmark("poll", 1, HOST, _no_params, _poll),
        Benchmark("synchronize", 1, HOST, _no_params, _synchronization),
        Benchmark("allocation", 3, HOST, _draw_allocation, _allocation),
        Benchmark("eager call", 10, HOST, _draw_call, _eager_call),
    )
}  # fmt: skip


# -- timing -----------------------------------------------------------------------------------------------------------


def draw(seed: int, sizes: Sizes) -> list[Params]:
    """Return the rows to measure: `benchmark`, `params`, and `held`, True for rows that only the report uses."""
    return [
        {"benchmark": benchmark.name, "held": held, "params": benchmark.draw(random, sizes)}
        for benchmark in BENCHMARKS.values()
        for held in (False, True)
        for random in [Random(f"{seed} {benchmark.name} {held}")]
        for _ in range(benchmark.count)
    ]


def measure(t: Any, row: Params, clock: Clock, rounds: int = _ROUNDS) -> tuple[float, int]:
    """Measure a row.

    Args:
        t: The library, `flambeau`.
        row: A row of `draw`. Its `calls`, if it has been measured before, is kept.
        clock: The host's clock.
        rounds: Number of repetitions, of which the median counts.

    Returns:
        Nanoseconds of one call, and how many calls in a row were measured.
    """
    benchmark = BENCHMARKS[row["benchmark"]]
    call = benchmark.build(t, row["params"])
    for _ in range(2):
        call()
    t.cuda.synchronize()
    calls = row.get("calls") or _number_of_calls(t, call, clock)
    time = {DEVICE: _device_ns, HOST: _host_ns, UNTIL_IDLE: _idle_ns}[benchmark.timing]
    return statistics.median([time(t, call, clock, calls) for _ in range(rounds)]), calls


def _number_of_calls(t: Any, call: Call, clock: Clock) -> int:
    ns = _idle_ns(t, call, clock, 1)
    return max(min(_MOST_CALLS, int(_ENOUGH_NS / max(ns, 1))), 1)


def _idle_ns(t: Any, call: Call, clock: Clock, calls: int) -> float:
    begin = clock()
    for _ in range(calls):
        call()
    t.cuda.synchronize()
    return (clock() - begin) / calls


def _host_ns(t: Any, call: Call, clock: Clock, calls: int) -> float:
    begin = clock()
    for _ in range(calls):
        call()
    end = clock()
    t.cuda.synchronize()
    return (end - begin) / calls


def _device_ns(t: Any, call: Call, clock: Clock, calls: int) -> float:
    host = _host_ns(t, call, clock, calls) * calls
    start, end = (t.cuda.Event(enable_timing=True) for _ in range(2))
    t.cuda._sleep(int(_CYCLES_A_NS * (1.3 * host + _BEHIND_NS)))
    start.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    ms: float = start.elapsed_time(end)
    return ms * 1e6 / calls


def measure_all(t: Any, clock: Clock, seed: int, limit: float = 100.0, rounds: int = _ROUNDS) -> Params:
    """Measure the current device of a library.

    Args:
        t: The library, `flambeau`.
        clock: The host's clock.
        seed: The seed of the random sizes.
        limit: Seconds of the host's clock after which the remaining rows are left out, with an error.
        rounds: Number of repetitions of each row, of which the median counts.

    Returns:
        `device`, its properties; `seed`; and `rows`, each with `ns` and `calls`, or `error`.
    """
    free, total = t.cuda.mem_get_info()
    properties = t.cuda.get_device_properties(t.cuda.current_device())
    device = {name: getattr(properties, attribute) for name, attribute in _PROPERTIES.items()}
    device |= {"memory": total, "reserved": total - free}
    rows = draw(seed, Sizes(device["l2"], total))
    begin = clock()
    for row in rows:
        if clock() - begin > limit * 1e9:
            row["error"] = f"not measured within {limit:.0f} s"
            continue
        try:
            row["ns"], row["calls"] = measure(t, row, clock, rounds)
        except RaceError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            row["error"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        t.cuda.empty_cache()
    return {"device": device, "seed": seed, "rows": rows}


_PROPERTIES = {  # key of a profile -> attribute of the device's properties
    "name": "name", "major": "major", "minor": "minor", "sms": "multi_processor_count",
    "threads_per_sm": "max_threads_per_multi_processor", "shared_memory_per_sm": "shared_memory_per_multiprocessor",
    "clock_khz": "clock_rate", "l2": "L2_cache_size",
}  # fmt: skip
