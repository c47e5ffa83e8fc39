"""Random programs of two and three threads beside brute force: every order that their calls can come in."""

import _queue
import queue
import threading
from concurrent.futures import Future

import pytest
from fake_drivers import StillDriver
from hypothesis import given
from hypothesis import strategies as st
from race_kit import machine

STREAMS, CELLS = 3, 2
stream, cell = st.integers(0, STREAMS - 1), st.integers(0, CELLS - 1)
GPU = st.one_of(
    st.tuples(st.just("use"), stream, cell),
    st.tuples(st.just("use"), stream, cell),
    st.tuples(st.just("read"), stream, cell),
    st.tuples(st.just("record"), stream),
    st.tuples(st.just("wait"), stream),
    st.tuples(st.just("sync"), stream),
    st.tuples(st.just("event_sync")),
)
HOST = st.sampled_from(
    [
        ("put",), ("get",), ("simple_put",), ("simple_get",), ("set",), ("set_wait",), ("is_set",), ("clear",), ("qsize",),
        ("resolve",), ("result",), ("done",), ("notify",), ("notified",), ("barrier",), ("barrier",),
    ]
)  # fmt: skip
STEPS = st.one_of(GPU, HOST)
TWO = st.lists(st.lists(STEPS, min_size=1, max_size=5), min_size=2, max_size=2)
THREE = st.lists(st.lists(STEPS, min_size=1, max_size=3), min_size=3, max_size=3)


class Objects:
    """What the threads share on the host, as a state that each order of the calls goes through."""

    def __init__(self, other=None):
        self.__dict__.update(
            other.__dict__
            if other
            else {"queue": 0, "simple": 0, "set": False, "result": False, "notified": False}
        )

    def can(self, what):
        waits = {"get": self.queue, "simple_get": self.simple, "set_wait": self.set, "result": self.result,
                 "notified": self.notified, "resolve": not self.result}  # fmt: skip
        return bool(waits.get(what, True))

    def after(self, what):
        """Return the state after a call, and what the call returns."""
        new = Objects(self)
        if what in ("put", "get"):
            new.queue += 1 if what == "put" else -1
        elif what in ("simple_put", "simple_get"):
            new.simple += 1 if what == "simple_put" else -1
        elif what in ("set", "clear"):
            new.set = what == "set"
        elif what == "resolve":
            new.result = True
        elif what == "notify":
            new.notified = True
        answers = {"is_set": self.set, "qsize": self.queue, "done": self.result}
        return new, answers.get(what)


def interleavings(programs, state=None, places=None):
    """Every order of the steps of the threads that comes to its end, as (thread, number, step, answer)."""
    state, places = state or Objects(), places or (0,) * len(programs)
    if all(at == len(program) for at, program in zip(places, programs, strict=True)):
        yield []
        return
    heads = [program[at] if at < len(program) else None for at, program in zip(places, programs, strict=True)]
    if all(head == ("barrier",) for head in heads):
        step = [(thread, places[thread], ("barrier",), None) for thread in range(len(programs))]
        yield from ([*step, *rest] for rest in interleavings(programs, state, tuple(at + 1 for at in places)))
        return
    for thread, head in enumerate(heads):
        if head is None or head == ("barrier",) or not state.can(head[0]):
            continue
        new, answer = state.after(head[0])
        after = tuple(at + (i == thread) for i, at in enumerate(places))
        yield from (
            [(thread, places[thread], head, answer), *rest] for rest in interleavings(programs, new, after)
        )


def outcome(order):
    """Pairs of conflicting uses, each as (which, which, whether anything orders them), and what questions answer."""
    last, marked, host, uses, found = {}, None, set(), [], []
    for thread, at, (what, *operands), answer in order:
        me = (thread, at)
        if answer is not None:
            found.append((me, answer, True))
        if what in ("use", "read", "record", "wait"):
            known = {*host, *last.get(operands[0], ())}
            if what == "wait" and marked is not None:
                known |= marked
            last[operands[0]] = known | {me}
            if what == "record":
                marked = known | {me}
            elif what != "wait":
                for other, kind, cell in uses:
                    if cell == operands[1] and "use" in (kind, what):
                        found.append((other, me, other in known))
                uses.append((me, what, operands[1]))
        elif what == "sync":
            host |= last.get(operands[0], set())
        elif what == "event_sync" and marked is not None:
            host |= marked
    return found


def deterministic(orders):
    """Whether every order of the calls leaves the same pairs in the same order, and the same answers."""
    kinds = {frozenset(outcome(order)) for order in orders}
    return len(kinds) == 1 and all(ordered for _, _, ordered in next(iter(kinds)))


class Play:
    """Runs one order of the calls, each in its thread."""

    def __init__(self, gpu, order, threads):
        self.gpu, self.order = gpu, order
        self.ptrs = [gpu.mem_alloc(0, 64) for _ in range(CELLS)]
        self.streams = [1] + [gpu.stream_create(0, 0) for _ in range(STREAMS - 1)]
        self.event, self.pinned = gpu.event_create(0, False), [gpu.host_alloc(64) for _ in range(STREAMS)]
        for ptr in self.ptrs:
            gpu.fill(ptr, 0, 64, 1)
        gpu.stream_sync(1)
        self.queue, self.simple, self.told = queue.Queue(), queue.SimpleQueue(), threading.Event()
        self.future, self.barrier = Future(), threading.Barrier(threads)
        self.condition, self.flag = threading.Condition(), []
        self.gates = [_queue.SimpleQueue() for _ in range(threads)]  # unseen
        self.over = _queue.SimpleQueue()
        bodies = [threading.Thread(target=self.body, args=(thread,)) for thread in range(threads)]
        for thread in bodies:
            thread.start()
        at = 0
        while at < len(order):
            together = threads if order[at][2] == ("barrier",) else 1
            for thread, *_ in order[at : at + together]:
                self.gates[thread].put(None)
            for _ in range(together):
                self.over.get()
            at += together
        for thread in bodies:
            thread.join()

    def body(self, mine):
        for thread, _, (what, *operands), _ in self.order:
            if thread == mine:
                self.gates[mine].get()
                getattr(self, f"call_{what}")(*operands)
                self.over.put(None)

    def call_use(self, stream, cell):
        self.gpu.fill(self.ptrs[cell], 0, 64, self.streams[stream])

    def call_read(self, stream, cell):
        self.gpu.copy_out(self.pinned[stream], self.ptrs[cell], self.streams[stream])

    def call_record(self, stream):
        self.gpu.event_record(self.event, self.streams[stream])

    def call_wait(self, stream):
        self.gpu.stream_wait(self.streams[stream], self.event)

    def call_sync(self, stream):
        self.gpu.stream_sync(self.streams[stream])

    def call_event_sync(self):
        self.gpu.event_sync(self.event)

    def call_put(self):
        self.queue.put(None)

    def call_get(self):
        self.queue.get()

    def call_qsize(self):
        self.queue.qsize()

    def call_simple_put(self):
        self.simple.put(None)

    def call_simple_get(self):
        self.simple.get()

    def call_set(self):
        self.told.set()

    def call_set_wait(self):
        self.told.wait()

    def call_is_set(self):
        self.told.is_set()

    def call_clear(self):
        self.told.clear()

    def call_resolve(self):
        self.future.set_result(None)

    def call_result(self):
        self.future.result()

    def call_done(self):
        self.future.done()

    def call_notify(self):
        with self.condition:
            self.flag.append(None)
            self.condition.notify_all()

    def call_notified(self):
        with self.condition:
            self.condition.wait_for(lambda: self.flag)

    def call_barrier(self):
        self.barrier.wait()


def play(order, threads):
    """Return the certificate of one order of the calls."""
    gpu, _ = machine("warn", StillDriver())
    try:
        Play(gpu, order, threads)
        return gpu.detector.certificate()
    finally:
        gpu.close()


def check(programs, chance):
    """Play one order of the programs' calls, and compare the certificate with all orders; what it was."""
    orders = list(interleavings(programs))
    if not orders:
        return None
    order, other = chance.choice(orders), chance.choice(orders)
    certificate, second = play(order, len(programs)), play(other, len(programs))
    if not any("Condition" in text for each in (certificate, second) for text in each.assumptions):
        assert certificate.race_free == second.race_free, (order, str(certificate), other, str(second))
    assert bool(certificate.races) == any(not ordered for _, _, ordered in outcome(order))
    same = deterministic(orders)
    assert same or not certificate.race_free, (order, str(certificate))
    return same, certificate.race_free


@given(TWO, st.randoms(use_true_random=False))
def test_a_certificate_of_two_threads_means_that_no_order_changes_anything(programs, chance):
    check(programs, chance)


@given(THREE, st.randoms(use_true_random=False))
def test_a_certificate_of_three_threads_means_that_no_order_changes_anything(programs, chance):
    check(programs, chance)


RERECORDED = [
    [("use", 0, 0), ("record", 0), ("put",), ("record", 2)],
    [("get",), ("wait", 1), ("use", 1, 0)],
]


def test_an_event_that_is_recorded_anew_while_another_thread_may_wait_for_it():
    for order in interleavings(RERECORDED):
        gpu, _ = machine("warn", StillDriver())
        Play(gpu, order, 2)
        assert not gpu.detector.certificate().race_free
        gpu.close()


HANDED_OVER = {  # a use, handed over by each means, and a use: the same in every run
    "queue": ("put", "get"),
    "simple queue": ("simple_put", "simple_get"),
    "event": ("set", "set_wait"),
    "future": ("resolve", "result"),
    "condition": ("notify", "notified"),
    "barrier": ("barrier", "barrier"),
}


@pytest.mark.parametrize("means", HANDED_OVER)
def test_each_means_orders_in_every_order_of_the_calls(means):
    give, take = HANDED_OVER[means]
    programs = [[("use", 1, 0), ("sync", 1), (give,), ("use", 0, 1)], [(take,), ("use", 2, 0)]]
    for order in interleavings(programs):
        gpu, _ = machine("warn", StillDriver())
        Play(gpu, order, 2)
        certificate = gpu.detector.certificate()
        gpu.close()
        assert certificate.race_free, str(certificate)
