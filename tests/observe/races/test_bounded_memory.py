"""What the detector remembers does not grow with the number of operations."""

import gc
import os
import random
import types

import pytest
from fake_drivers import StillDriver
from race_kit import kernel, machine, meta, wait

from flambeau.driver.protocol import Launch
from flambeau.observe import accesses, lifetimes

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
OPERATIONS = 10_000_000 if EXHAUSTIVE else 150_000
_SEGMENT = 1 << 17
LEAVES = (type, types.ModuleType, types.FunctionType, types.CodeType, types.BuiltinFunctionType)


def objects(root):
    """How many objects can be reached from here, but for code."""
    seen, todo = {id(root)}, [root]
    while todo:
        for other in gc.get_referents(todo.pop()):
            if id(other) not in seen and not isinstance(other, LEAVES):
                seen.add(id(other))
                todo.append(other)
    return len(seen)


class Program:
    """Steps of every kind, with ever new streams, events, sizes, addresses, pinned buffers; `waits` on the host or not."""

    def __init__(self, waits):
        self.gpu, self.cpu = machine("warn", StillDriver())
        self.random, self.waits = random.Random(0), waits
        gpu = self.gpu
        self.segment = gpu.mem_alloc(0, _SEGMENT)
        self.fixed = [gpu.mem_alloc(0, 1 << 12) for _ in range(3)]
        for ptr in self.fixed:
            gpu.fill(ptr, 0, 1 << 12, 1)
        m = meta((1 << 10,))
        self.add = gpu.load(Launch(kernel("add"), (m,), (m, m)), 0)
        self.launch = gpu.launcher(self.add)
        self.streams = [1]
        self.blocks = []
        self.steps = (
            [self.launches] * 8 + [self.block] * 4 + [self.stream, self.event, self.pinned, self.view]
        )

    def run(self, count):
        """Until the detector has numbered as many commands, records, waits and lives of memory."""
        while self.gpu.detector.number < count:
            self.random.choice(self.steps)()

    def launches(self):
        out, a, b = self.random.sample(self.fixed, 3)
        stream = self.random.choice(self.streams)
        for other in self.streams:
            wait(self.gpu, stream, other)
        for _ in range(4):
            self.launch((out, a, b), (), stream)

    def block(self):
        """A block of some size at some place: memory is divided anew again and again."""
        gpu, nbytes = self.gpu, 1 << self.random.randrange(9, 14)
        ptr = self.segment + self.random.randrange(_SEGMENT // nbytes) * nbytes
        stream = self.random.choice(self.streams)
        for other in self.streams:
            wait(self.gpu, stream, other)
        gpu.block_alloc(ptr, nbytes, stream, pool=int(nbytes > 1 << 11))
        gpu.fill(ptr, 0, self.random.randrange(1, nbytes), stream)
        if self.random.random() < 0.3:
            wait(self.gpu, self.streams[-1], stream)
            gpu.fill(ptr, 0, nbytes, self.streams[-1])
        gpu.block_free(ptr, nbytes, stream)

    def stream(self):
        gpu = self.gpu
        if len(self.streams) > 3:
            gone = self.streams.pop(1)
            wait(self.gpu, 1, gone)
            if self.waits:
                gpu.stream_sync(gone)
            gpu.stream_destroy(gone)
        made = gpu.stream_create(0, 0)
        wait(self.gpu, made, 1)
        self.streams.append(made)

    def event(self):
        wait(self.gpu, *self.random.sample([*self.streams, 2], 2))

    def pinned(self):
        gpu = self.gpu
        memory = gpu.host_alloc(1 << 12)
        gpu.block_alloc(memory.ptr, 1 << 12, 0)
        gpu.copy_in(self.fixed[0], memory, self.random.choice(self.streams))  # these race, on two lines
        gpu.block_free(memory.ptr, 1 << 12, 0)
        if self.waits:
            gpu.device_sync(0)
        gpu.host_free(memory)

    def view(self):
        at, size = self.random.randrange(64), self.random.randrange(1, 64)
        self.gpu.fill(self.fixed[0] + 4 * at, 1, 4 * size, self.random.choice(self.streams))


@pytest.mark.parametrize("waits", [True, False], ids=["waits on the host", "never waits on the host"])
def test_it_does_not_grow(waits, monkeypatch):
    monkeypatch.setattr(accesses, "_LIMIT", 512)  # so that they are reached early
    monkeypatch.setattr(lifetimes, "_FREES", 64)
    program = Program(waits)
    counts = []
    for part in range(1, 9):
        program.run(part * OPERATIONS // 8)
        counts.append(objects(program.gpu.detector))
    assert max(counts[4:]) < 1.5 * max(counts[:4]), counts
    program.gpu.detector.certificate()  # its races are told


def test_a_buffer_written_piece_by_piece_keeps_few_layouts_and_counts_as_written():
    gpu, _ = machine("warn", StillDriver())
    cache, side = gpu.mem_alloc(0, 1 << 16), gpu.stream_create(0, 0)
    for row in range(1 << 12):
        gpu.fill(cache + 16 * row, 0, 16, 1)
        if row % 100 == 99:
            gpu.stream_sync(1)
    gpu.stream_sync(1)
    assert len(gpu.detector.shadow.cells) < 1000
    gpu.copy(gpu.mem_alloc(0, 1 << 16), cache, 1 << 16, side)
    assert gpu.detector.certificate().race_free
    gpu.fill(cache + 16 * 77, 0, 16, 1)
    assert len(gpu.detector.races) == 1


def test_layouts_that_the_host_has_not_waited_for_are_kept():
    gpu, _ = machine("warn", StillDriver())
    cache, side = gpu.mem_alloc(0, 1 << 16), gpu.stream_create(0, 0)
    gpu.fill(cache + 16 * 5, 0, 16, side)
    for row in range(1 << 10):
        gpu.fill(cache + 16 * row, 0, 16, 1)
    assert len(gpu.detector.races) == 1


def test_weights_that_ever_new_streams_read():
    gpu, _ = machine("warn", StillDriver())
    weights = gpu.mem_alloc(0, 64)
    gpu.fill(weights, 0, 64, 1)
    out = gpu.mem_alloc(0, 64)
    for _ in range(
        1000
    ):  # a stream per request, each after the one before, and nobody ever waits on the host
        side = gpu.stream_create(0, 0)
        wait(gpu, side, 1)
        gpu.copy(out, weights, 64, side)
        wait(gpu, 1, side)
        gpu.stream_destroy(side)
    assert objects(gpu.detector) < 5000
    assert gpu.detector.certificate().race_free


def test_memory_of_streams_that_are_gone_keeps_nothing_of_them():
    gpu, _ = machine("warn", StillDriver())
    segment, counts = gpu.mem_alloc(0, _SEGMENT), []
    for step in range(
        4000
    ):  # a stream per request, whose memory another stream uses; nobody waits on the host
        side, other, ptr = gpu.stream_create(0, 0), gpu.stream_create(0, 0), segment + 512 * (step % 100)
        wait(gpu, side, 1)
        gpu.block_alloc(ptr, 512, side, pool=0)
        gpu.fill(ptr, 0, 512, side)
        wait(gpu, other, side)
        gpu.fill(ptr, 0, 512, other)
        gpu.block_free(ptr, 512, side)
        wait(gpu, 1, other)
        gpu.stream_destroy(side)
        gpu.stream_destroy(other)
        counts += [objects(gpu.detector)] if step % 500 == 499 else []
    assert max(counts[4:]) < 1.3 * max(counts[2:4]), counts
    assert gpu.detector.certificate().race_free


def test_one_bug_is_one_report_however_many_streams_it_has():
    gpu, _ = machine("warn", StillDriver())
    a = gpu.mem_alloc(0, 64)
    for _ in range(100):
        side = gpu.stream_create(0, 0)
        gpu.fill(a, 0, 64, side)
    (race,) = gpu.detector.races
    assert race.count == 99
    gpu.detector.certificate()
