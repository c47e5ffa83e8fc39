"""Certificates do not depend on which of two host threads is first where nothing orders them.

Each case runs in both orders, which locks that no detector sees enforce.
"""

import queue
import threading

import pytest
from test_host_threads import gate

import flambeau as torch
from flambeau.runtime import system


def ones():
    return torch.ones(1024, device="cuda")


class Gate:
    """An event that no detector sees."""

    def __init__(self):
        self.lock = gate()
        self.set, self.wait = self.lock.release, self.lock.acquire


class Shared:
    """The streams, the tensor and the host objects that both threads of a case use."""

    def __init__(self):
        self.a, self.b, self.side = [torch.cuda.Stream() for _ in range(3)]
        self.event, self.told, self.work = torch.cuda.Event(), threading.Event(), queue.Queue()
        self.held = [ones()]
        self.kept = []
        self.weight, self.other = [
            torch.full((8, 8), 0.5, device="cuda", requires_grad=True) for _ in range(2)
        ]

    def use(self, stream):
        """Use the tensor on another stream, in order."""
        stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(stream):
            self.kept.append(self.held[0] + 1)

    def cast(self, weight, stream, times=1):
        """Use a weight several times on a stream."""
        on, weight = getattr(self, stream), getattr(self, weight)
        on.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(on):
            self.kept.extend(weight @ weight.detach() for _ in range(times))

    def allocate(self):
        self.kept.append(ones())


def works(stream):
    """Return a step that enqueues work on a stream, over memory of that stream."""

    def step(shared):
        with torch.cuda.stream(getattr(shared, stream)):
            shared.kept.append(ones())

    return step


def frees(shared):
    shared.held.clear()


def waits_and_frees(shared):
    shared.side.synchronize()
    shared.held.clear()


def empties(shared):
    shared.held.clear()
    torch.cuda.empty_cache()


def allocates(shared):
    shared.allocate()


def only_allocates(shared):
    shared.kept.append(torch.empty(1024, device="cuda"))


def writes_elsewhere(shared):
    """Allocate on the default stream and write first on another one, which does not wait for it."""
    y = torch.empty(1024, device="cuda")
    with torch.cuda.stream(shared.b):
        shared.kept.append(y.fill_(1))


def works_and_frees(shared):
    x = ones()
    x.add_(1)


def records(shared):
    shared.event.record(shared.a)


def change_on_b(shared):
    """Change the tensor that stream `a` has used."""
    with torch.cuda.stream(shared.b):
        shared.held[0].add_(1)


def waits_for_stream(shared):
    shared.b.wait_stream(shared.a)
    change_on_b(shared)


def records_and_waits(shared):
    records(shared)
    waits_for_event(shared)
    change_on_b(shared)


def synchronizes(shared):
    shared.a.synchronize()
    change_on_b(shared)


def waits_for_event(shared):
    shared.b.wait_event(shared.event)


def draws(shared):
    with torch.cuda.stream(shared.b):
        shared.kept.append(torch.randn(16, device="cuda"))


def draws_too(shared):
    with torch.cuda.stream(shared.a):
        shared.kept.append(torch.randn(16, device="cuda"))


def draws_on_the_cpu(shared):
    torch.randn(16)


def asks_and_puts(shared):
    shared.work.empty()
    shared.work.put(1)


def gets(shared):
    shared.work.get()


def asks_and_sets(shared):
    shared.told.is_set()
    shared.told.set()


def clears(shared):
    shared.told.clear()


def casts(weight, times=1, stream="a", **options):
    """Return a step that uses a weight several times in an autocast block."""

    def step(shared):
        with torch.autocast("cuda", **options):
            shared.cast(weight, stream, times)

    return step


def casts_in_two_blocks(shared):
    casts("weight")(shared)
    casts("weight")(shared)


def casts_again_in_the_second_block(shared):
    casts("weight")(shared)
    casts("weight", 2)(shared)


def enters_autocast(shared):
    """Enter a block that the thread leaves while the other one runs."""
    shared.block = torch.autocast("cuda")
    shared.block.__enter__()
    shared.cast("weight", "a")


def leaves_and_casts(shared):
    shared.block.__exit__(None, None, None)
    casts("weight")(shared)


def casts_and_leaves(shared):
    shared.cast("weight", "a")
    shared.block.__exit__(None, None, None)


def changes_a_weight(shared):
    with torch.autocast("cuda"), torch.no_grad():
        shared.cast("weight", "a")
        with torch.cuda.stream(shared.a):
            shared.weight.add_(1)
        shared.cast("weight", "a")


def autocasts(shared):
    with torch.autocast("cuda"):
        pass


def clears_casts(shared):
    torch.clear_autocast_cache()


def nothing(shared):
    pass


def use_on_side(shared):
    shared.use(shared.side)


def use_on_a(shared):
    shared.use(shared.a)


def fill_queue(shared):
    shared.work.put(0)


def record_first(shared):
    works("a")(shared)
    records(shared)


CLEARED, SHARED = "autocast's cache of casts is cleared", "autocast's cast of a weight is used"
CASES = {  # before the start, in the starting thread, in the new thread: is it certified, or why not?
    "a free beside an allocation": (use_on_side, frees, allocates, False),
    "a free beside an allocation, in the other threads": (use_on_side, allocates, frees, False),
    "a free beside an allocation that nothing writes": (use_on_side, frees, only_allocates, False),
    "a free after a wait": (use_on_side, waits_and_frees, allocates, True),
    "a free beside work on other streams": (use_on_side, frees, works("a"), True),
    "a free, and the thread's cache is emptied": (use_on_side, empties, allocates, False),
    "a free without record_stream, and no allocation": (use_on_side, frees, nothing, True),
    "memory that is written on another stream": (nothing, works_and_frees, writes_elsewhere, False),
    "one stream is given work": (nothing, works("a"), works("a"), False),
    "two streams are given work": (nothing, works("a"), works("b"), True),
    "a record on a stream that is given work": (nothing, records, works("a"), True),
    "a record before a stream is given more work": (use_on_a, records_and_waits, works("a"), True),
    "a wait for a stream that is given more work": (use_on_a, waits_for_stream, works("a"), True),
    "a host wait for a stream that is given more work": (use_on_a, synchronizes, works("a"), True),
    "a first record and a wait, on which nothing depends": (works("a"), records, waits_for_event, True),
    "a second record and a wait": (record_first, records, waits_for_event, False),
    "random numbers": (nothing, draws, draws_too, False),
    "random numbers of the CPU": (nothing, draws_on_the_cpu, draws_on_the_cpu, False),
    "a queue that is asked and filled": (fill_queue, asks_and_puts, gets, False),
    "an event that is asked and set": (nothing, asks_and_sets, clears, False),
    "a cast that is used again, and an empty block": (nothing, casts("weight", 2), autocasts, CLEARED),
    "a cast that is used again, and a clear": (nothing, casts("weight", 2), clears_casts, CLEARED),
    "a cast of each thread, used again": (nothing, casts("weight", 2), casts("other", 2, "b"), CLEARED),
    "a cast of each thread": (nothing, casts("weight"), casts("other", 1, "b"), True),
    "a cast of both threads": (nothing, casts("weight"), casts("weight", 1, "b"), SHARED),
    "casts without a cache": (nothing, casts("weight", 2, cache_enabled=False), autocasts, True),
    "a cast in each of two blocks": (nothing, casts_in_two_blocks, autocasts, True),
    "a cast used again in the second block": (nothing, casts_again_in_the_second_block, autocasts, CLEARED),
    "a cast before the threads, and one later": (casts("weight"), casts("weight"), autocasts, True),
    "two casts of a weight that changes": (nothing, changes_a_weight, autocasts, True),
    "a block around the start, and a cast in the next": (enters_autocast, leaves_and_casts, autocasts, True),
    "a block around the start, and a cast in it": (enters_autocast, casts_and_leaves, autocasts, CLEARED),
    "casts before the threads": (casts("weight", 2), autocasts, autocasts, True),
}


def play(prepare, mine, others, mine_first):
    """Run `mine` in this thread and `others` in a new one, in one order, and return the certificate."""
    begin, done = gate(), gate()

    def body():
        begin.acquire()
        others(shared)
        done.release()

    with torch.virtual(devices=1, races="warn") as machine:
        shared = Shared()
        prepare(shared)
        thread = threading.Thread(target=body)
        thread.start()
        if mine_first:
            mine(shared)
        begin.release()
        done.acquire()
        if not mine_first:
            mine(shared)
        thread.join()
        torch.cuda.synchronize()
        return machine.certificate()


@pytest.mark.parametrize("case", CASES)
def test_both_orders_of_two_threads_have_one_verdict(case):
    prepare, mine, others, certified = CASES[case]
    for mine_first in (True, False):
        certificate = play(prepare, mine, others, mine_first)
        assert certificate.race_free is (certified is True), f"{mine_first}: {certificate}"
        assert not isinstance(certified, str) or certified in "".join(certificate.violated), certificate


@pytest.mark.parametrize("clear_first", [False, True])
@pytest.mark.parametrize("there", [Gate, threading.Event])
@pytest.mark.parametrize("back", [Gate, threading.Event])
def test_a_clear_before_the_second_use_of_a_cast(there, back, clear_first):
    """Expect a certificate if the clear is ordered both after the first use and before the second one."""
    used, cleared, runs = there(), back(), Gate()

    def body():
        if not clear_first:
            used.wait()
        torch.clear_autocast_cache()
        cleared.set()
        runs.set()

    with torch.virtual(devices=1, races="warn") as machine:
        shared = Shared()
        thread = threading.Thread(target=body)
        thread.start()
        with torch.autocast("cuda"), torch.no_grad():
            if clear_first:
                runs.wait()
            shared.cast("weight", "a")
            used.set()
            cleared.wait()
            shared.cast("weight", "b")
        thread.join()
        certificate = machine.certificate()
        certified = there is back is threading.Event and not clear_first
        assert certificate.race_free is certified, certificate
        assert certified or CLEARED in "".join(certificate.violated), certificate


def test_a_free_between_an_allocation_and_its_first_write():
    allocated, freed, done = gate(), gate(), gate()

    def body():
        y = torch.empty(1024, device="cuda")
        allocated.release()
        freed.acquire()
        with torch.cuda.stream(shared.b):
            shared.kept.append(y.fill_(1))
        done.release()

    with torch.virtual(devices=1, races="warn") as machine:
        shared = Shared()
        thread = threading.Thread(target=body)
        thread.start()
        allocated.acquire()
        works_and_frees(shared)
        freed.release()
        done.acquire()
        thread.join()
        assert not machine.certificate().race_free


class LateThread(threading.Thread):
    """A thread that has been started and does nothing, not even what `threading` does first, before a gate opens."""

    def __init__(self, body, opens):
        super().__init__()
        self.run, self.opens = body, opens

    @property
    def run(self):
        body = self.body
        return lambda: (self.opens.acquire(), self.opens.release(), body())

    @run.setter
    def run(self, body):
        self.body = body


@pytest.mark.parametrize("late", [False, True])
def test_a_thread_that_has_not_begun_knows_no_later_wait(late):
    """Allocate in it what was freed before its start, where the use of that memory ends after the start."""
    opens, begun, go, done = gate(), gate(), gate(), gate()

    def body():
        begun.release()
        go.acquire()
        allocates(shared)
        done.release()

    with torch.virtual(devices=1, races="warn") as machine:
        shared = Shared()
        use_on_side(shared)
        frees(shared)
        thread = LateThread(body, opens)
        thread.start()
        if not late:
            opens.release()
            begun.acquire()
        shared.side.synchronize()
        works("a")(shared)
        if late:
            opens.release()
        go.release()
        done.acquire()
        thread.join()
        assert not machine.certificate().race_free


def test_threads_that_have_ended_are_forgotten():
    with torch.virtual(devices=1, races="warn") as machine:
        shared, reuses = Shared(), system.accelerator().detector._reuses
        for _ in range(300):
            thread = threading.Thread(target=lambda: shared.use(shared.side))
            thread.start()
            thread.join()
        assert max(len(reuse.allocations) for reuse in reuses.values()) <= 64
        assert machine.certificate().race_free
