"""Order among ready commands under `earliest`: priority, then the time at which a command became ready, then age."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from virtual_kit import NOTHING, SLEEP, adder

import flambeau as torch
from flambeau.core.dtype import int64
from flambeau.driver.protocol import Launch
from flambeau.driver.virtual import VirtualDriver
from flambeau.driver.virtual.scheduling.scheduler import Command

STREAMS = 6  # four of cuda:0 and two of cuda:1, every second one of high priority
SIZES = (1 << 8, 1 << 16, 1 << 17, 1 << 20)  # of kernels: from one multiprocessor to all of them


def test_short_kernel_of_idle_stream_starts_before_the_others_queue():
    with torch.virtual(1):
        a, x = torch.ones(2048, 2048, device="cuda"), torch.ones(1000, device="cuda")
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            for _ in range(10):  # 2 ms of the device, eight times what the host needs to launch them
                a @ a
        with torch.cuda.stream(second):
            x + x
        second.synchronize()
        assert not first.query()


def filling(driver):
    """A kernel that fills the device for longer than the host takes for all of a test's launches; memory for it."""
    return adder(driver, 1 << 26, 0, NOTHING), driver.mem_alloc(0, 4 << 26)


def test_streams_that_fill_the_device_take_turns():
    driver, names = VirtualDriver(1), []
    streams = [driver.stream_create(0, 0) for _ in range(3)]
    exe, ptr = filling(driver)
    driver.on_command = lambda record: names.append(streams.index(record.stream))
    for stream in streams:
        for _ in range(4):
            driver.launch(exe, (ptr, ptr, ptr), (), stream)
    driver.device_sync(0)
    assert names == [0, 1, 2] * 4
    driver.close()


def test_high_priority_goes_before_what_became_ready_first():
    driver, names = VirtualDriver(1), []
    low, high = driver.stream_create(0, 0), driver.stream_create(0, -1)
    exe, ptr = filling(driver)
    driver.on_command = lambda record: names.append("low" if record.stream == low else "high")
    for stream in (low, low, low, high, high, high):
        driver.launch(exe, (ptr, ptr, ptr), (), stream)
    driver.device_sync(0)
    assert names == ["low", "high", "high", "high", "low", "low"]
    driver.close()


def test_small_kernel_does_not_overtake_a_large_one_that_waits():
    driver, ended = VirtualDriver(1), []
    streams = [driver.stream_create(0, 0) for _ in range(4)]
    half, sleep = adder(driver, 1 << 17), driver.load(Launch(SLEEP, (), (int64,)), 0)
    whole, ptr = filling(driver)
    driver.on_command = lambda record: ended.append((streams.index(record.stream), record.start_ns))
    driver.launch(half, (ptr, ptr, ptr), (), streams[0])
    driver.launch(whole, (ptr, ptr, ptr), (), streams[1])
    driver.launch(whole, (ptr, ptr, ptr), (), streams[2])
    driver.launch(sleep, (), (1000,), streams[3])
    driver.device_sync(0)
    starts = dict(ended)
    assert starts[2] <= starts[3]
    driver.close()


# -- random programs against the rule, spelled out step by step ------------------------------------------------


@dataclass
class Asked:
    """A command with what the reference may know of it: when it was enqueued, and behind what."""

    command: Command
    enqueued: int
    behind: list[Command]


class Requests:
    """Notes each command as it is enqueued; stands where the scheduler keeps its request log."""

    def __init__(self, core):
        self.core, self.asked, self._tails = core, [], {}

    def on_enqueue(self, command):
        behind = [*command.waits]
        if command.stream in self._tails:
            behind.append(self._tails[command.stream])
        self._tails[command.stream] = command
        self.asked.append(Asked(command, self.core.now, behind))

    def on_poll(self, question, done): ...

    def on_wait(self, target): ...


class Machine:
    """The rule of `Earliest`, step by step: at each moment it tries all ready commands, the first in rank first."""

    def __init__(self, asked):
        self.waiting, self.ends, self.starts = list(asked), {}, {}
        self.running = []  # (end, engine part, multiprocessors held)

    def ready(self, each):
        """When it is ready, if all that it comes behind has its end; None if not."""
        if any(c not in self.ends for c in each.behind):
            return None
        return max([each.enqueued, *[self.ends[c] for c in each.behind]])

    def room(self, command, part, now):
        held = [sms for end, engine, sms in self.running if engine is part and end > now]
        if not hasattr(part, "_total"):
            return 0 if held else 1
        free = part._total - sum(held)
        return free if free >= (command.sms + 1) // 2 else 0

    def moment(self, now):
        """Start the first of what can start now; False: nothing can."""
        ready = [(each, at) for each in self.waiting if (at := self.ready(each)) is not None and at <= now]
        refused = set()
        for each, _ in sorted(ready, key=lambda e: (e[0].command.stream.priority, e[1], e[0].command.seq)):
            command, parts = each.command, () if each.command.engine is None else each.command.engine.parts
            rooms = [self.room(command, part, now) for part in parts]
            if all(rooms) and refused.isdisjoint(parts):
                granted = min([command.sms, *rooms])
                work = command.work * command.sms // granted if granted != command.sms else command.work
                self.starts[command] = now
                self.ends[command] = now if command.engine is None else now + command.latency + work
                self.running += [(self.ends[command], part, granted) for part in parts]
                self.waiting.remove(each)
                return True
            refused.update(parts)
        return False

    def run(self):
        now = 0
        while self.waiting:
            while self.moment(now):
                pass
            times = [end for end, _, _ in self.running] + [at for e in self.waiting if (at := self.ready(e))]
            later = [time for time in times if time > now]
            if self.waiting:
                now = min(later)
        return {command.seq: start for command, start in self.starts.items()}


STREAM = st.integers(0, STREAMS - 1)
STEPS = st.one_of(
    st.tuples(st.just("kernel"), STREAM, st.sampled_from(SIZES)),
    st.tuples(st.just("sleep"), STREAM, st.integers(1, 40_000)),
    st.tuples(st.just("in"), STREAM, st.integers(1, 1 << 14)),
    st.tuples(st.just("out"), STREAM, st.integers(1, 1 << 14)),
    st.tuples(st.just("between"), STREAM, st.integers(1, 1 << 14)),
    st.tuples(st.just("fill"), STREAM, st.integers(1, 1 << 14)),
    st.tuples(st.just("host"), STREAM),
    st.tuples(st.just("graph"), st.sampled_from((0, 1))),
    st.tuples(st.just("wait"), STREAM, STREAM),
    st.tuples(st.just("sync"), STREAM),
    st.tuples(st.just("query"), STREAM),
)


class Program:
    """A driver with what random programs use: streams, kernels of all sizes, pinned memory, a graph."""

    def __init__(self, peers, queue):
        self.driver = driver = VirtualDriver(2)
        if peers:
            driver.peer_enable(0, 1)
        driver._core._queue = queue
        self.streams = [driver.stream_create(i // 4, -(i % 2)) for i in range(STREAMS)]
        self.memory = [driver.mem_alloc(i, 4 * SIZES[-1]) for i in range(2)]
        self.adders = {(i, size): adder(driver, size, i) for i in range(2) for size in SIZES}
        self.sleeps = [driver.load(Launch(SLEEP, (), (int64,)), i) for i in range(2)]
        self.pinned = driver.host_alloc(1 << 14)
        self.graph = self.recorded()
        self.requests = driver._core.request_log = Requests(driver._core)

    def recorded(self):
        """A graph with a kernel on one stream beside two on another."""
        driver, (first, second) = self.driver, self.streams[:2]
        driver.capture_begin(first, "global")
        self.kernel(first, SIZES[1])
        self.wait(second, first)
        for size in (SIZES[3], SIZES[0]):
            self.kernel(first, size)
            self.kernel(second, size)
        self.wait(first, second)
        return driver.capture_end(first)

    def kernel(self, stream, size):
        index = self.streams.index(stream) // 4
        ptr = self.memory[index]
        self.driver.launch(self.adders[index, size], (ptr, ptr, ptr), (), stream)

    def wait(self, stream, other):
        event = self.driver.event_create(self.streams.index(other) // 4, False)
        self.driver.event_record(event, other)
        self.driver.stream_wait(stream, event)

    def play(self, name, *at):
        driver, stream = self.driver, self.streams[at[0]]
        index = at[0] // 4
        here = self.memory[index]
        if name == "kernel":
            self.kernel(stream, at[1])
        elif name == "sleep":
            driver.launch(self.sleeps[index], (), (at[1],), stream)
        elif name == "in":
            driver.copy_in(here, self.pinned.part(0, at[1]), stream)
        elif name == "out":
            driver.copy_out(self.pinned.part(0, at[1]), here, stream)
        elif name == "between":
            driver.copy(self.memory[1 - index], here, at[1], stream)
        elif name == "fill":
            driver.fill(here, 7, at[1], stream)
        elif name == "host":
            driver.host_call(lambda: None, stream)
        elif name == "graph":
            driver.graph_launch(self.graph, stream)
        elif name == "wait":
            self.wait(stream, self.streams[at[1]])
        elif name == "sync":
            driver.stream_sync(stream)
        else:
            driver.stream_query(stream)


@given(st.lists(STEPS, max_size=60), st.booleans(), st.sampled_from((3, 1024)))
def test_commands_start_when_and_in_the_order_that_the_rule_says(steps, peers, queue):
    program = Program(peers, queue)
    driver, starts = program.driver, {}
    driver.on_command = lambda record: starts.update({record.seq: record.start_ns})
    for step in steps:
        program.play(*step)
    for index in range(2):
        driver.device_sync(index)
    asked = program.requests.asked
    assert starts == Machine(asked).run()
    for first in asked:
        for second in asked:
            a, b = first.command, second.command
            if a.engine is None or b.engine is None or set(a.engine.parts).isdisjoint(b.engine.parts):
                continue
            passed_over = a.ready <= b.start < a.start
            assert not (
                passed_over and (a.stream.priority, a.ready, a.seq) < (b.stream.priority, b.ready, b.seq)
            )
    driver.close()
