"""The detector against brute force: the transitive closure of a random program's order, every pair."""

from itertools import pairwise

import numpy as np
from fake_drivers import StillDriver
from hypothesis import given
from hypothesis import strategies as st
from race_kit import machine, meta, run

STREAMS, EVENTS, CELLS = 3, 2, 8

# Extents over 8 elements: contiguous runs, and every second element.
EXTENTS = [(at, (n,), (1,)) for at in range(CELLS) for n in (1, 2, 4, 8) if at + n <= CELLS]
EXTENTS += [(0, (4,), (2,)), (1, (4,), (2,)), (0, (2, 2), (4, 1)), (2, (2, 2), (4, 1)), (1, (2,), (4,))]

accesses = st.tuples(
    st.just("access"), st.integers(0, STREAMS - 1), st.sampled_from(EXTENTS), st.sampled_from(EXTENTS)
)
steps = st.one_of(
    accesses,
    accesses,
    st.tuples(st.just("record"), st.integers(0, EVENTS - 1), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("wait"), st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("sync"), st.integers(0, STREAMS - 1)),
    st.tuples(st.just("event_sync"), st.integers(0, EVENTS - 1)),
    st.tuples(st.just("query"), st.integers(0, EVENTS - 1), st.booleans(), st.booleans()),
)
programs = st.lists(steps, min_size=2, max_size=14)


class Reference:
    """Nodes are steps; edges are those that CUDA's documentation gives; order is their transitive closure."""

    def __init__(self, program):
        n = len(program)
        before = np.zeros((n, n), bool)
        last = [None] * STREAMS  # the last node of each stream
        events = [None] * EVENTS
        host = None  # the last node of the host that waited
        self.touched = [None] * n
        for i, (what, *rest) in enumerate(program):
            mine, sources = None, [host]
            if what in ("access", "record"):
                stream = rest[0] if what == "access" else rest[1]
                sources.append(last[stream])
                mine = stream
                if what == "record":
                    events[rest[0]] = i
                else:
                    self.touched[i] = (elements(rest[1]), elements(rest[2]))  # written, read
            elif what == "wait":
                sources += [last[rest[0]], events[rest[1]]]
                mine = rest[0]
            else:
                done = {"sync": lambda r: last[r[0]], "event_sync": lambda r: events[r[0]]}.get(what)
                if done is None and rest[1] and not rest[2]:  # a query of the program that said yes
                    done = lambda r: events[r[0]]  # noqa: E731
                if done is None:
                    continue
                sources.append(done(rest))
                host = i
            if mine is not None:
                last[mine] = i
            for source in sources:
                if source is not None:
                    before[source, i] = True
        for k in range(n):  # Warshall
            before |= np.outer(before[:, k], before[k])
        self.before = before

    def races(self):
        nodes = [i for i, t in enumerate(self.touched) if t is not None]
        for a in nodes:
            for b in nodes:
                if a < b and not self.before[a, b] and conflict(self.touched[a], self.touched[b]):
                    yield a, b


def elements(extent):
    at, shape, strides = extent
    places = np.full((), at)
    for size, stride in zip(shape, strides, strict=True):
        places = places[..., None] + stride * np.arange(size)
    return frozenset(places.ravel().tolist())


def conflict(one, other):
    return bool(one[0] & (other[0] | other[1]) or other[0] & one[1])


def play(program, gpu):
    """Run a program on the detector; the streams' and events' handles do not matter to the reference."""
    base = gpu.mem_alloc(0, 4 * CELLS)
    streams = [1] + [gpu.stream_create(0, 0) for _ in range(STREAMS - 1)]
    events = [gpu.event_create(0, False) for _ in range(EVENTS)]
    for what, *rest in program:
        if what == "access":
            out, source = [(base + 4 * at, meta(shape, strides)) for at, shape, strides in rest[1:]]
            run(gpu, "op", [out], [source], streams[rest[0]])
        elif what == "record":
            gpu.event_record(events[rest[0]], streams[rest[1]])
        elif what == "wait":
            gpu.stream_wait(streams[rest[0]], events[rest[1]])
        elif what == "sync":
            gpu.stream_sync(streams[rest[0]])
        elif what == "event_sync":
            gpu.event_sync(events[rest[0]])
        else:
            gpu.inner.done = rest[1]
            gpu.event_query(events[rest[0]], internal=rest[2])


@given(programs)
def test_races_are_found_where_there_are_any_and_nowhere_else(program):
    gpu, _ = machine("warn", StillDriver())
    play(program, gpu)
    expected = list(Reference(program).races())
    assert bool(gpu.detector.races) == bool(expected)
    assert all(race.fix.verified for race in gpu.detector.races)


@given(programs)
def test_the_proposed_fix_fixes(program):
    """Put the proposed wait before the second access: the reference then orders the pair."""
    gpu, _ = machine("warn", StillDriver())
    play(program, gpu)
    for race in gpu.detector.races:
        assert race.fix.call == "wait_stream"
    pairs = list(Reference(program).races())
    if pairs:
        first, second = pairs[0]
        fixed = list(program)
        fixed[second:second] = [("record", 0, program[first][1]), ("wait", program[second][1], 0)]
        assert (first, second + 2) not in set(Reference(fixed).races())


def test_the_reference_knows_the_textbook_cases():
    """The judge is judged, on programs whose answer is plain."""
    a, b = EXTENTS[0], EXTENTS[0]
    racing = [("access", 0, a, b), ("access", 1, a, b)]
    assert list(Reference(racing).races()) == [(0, 1)]
    for edge in ([("record", 0, 0), ("wait", 1, 0)], [("sync", 0)], [("record", 0, 0), ("event_sync", 0)]):
        assert not list(Reference([racing[0], *edge, racing[1]]).races())
    assert all(x < y for x, y in pairwise(sorted(elements((0, (2, 2), (4, 1))))))
