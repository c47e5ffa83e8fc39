"""Questions of host threads: those whose answer depends on timing are named with their line, the others are not."""

import concurrent.futures
import inspect
import multiprocessing
import queue
import select
import selectors
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from race_kit import machine, meta, run

import flambeau as torch
from flambeau.observe.handovers import watch

M = meta((16,))


class Gpu:
    """A still GPU with a detector, and what programs do with it."""

    def __init__(self):
        self.driver, _ = machine()
        self.memory = [self.driver.mem_alloc(0, 64) for _ in range(4)]
        for ptr in self.memory:
            self.driver.fill(ptr, 0, 64, 1)
        self.driver.stream_sync(1)
        self.streams = [1, *[self.driver.stream_create(0, 0) for _ in range(3)]]

    def use(self, cell=0, stream=0, wait=True):
        """A kernel reads and writes a piece of memory on a stream, and the host waits."""
        ptr = self.memory[cell]
        run(self.driver, "neg_", [(ptr, M)], [(ptr, M)], self.streams[stream], updates=True)
        if wait:
            self.driver.stream_sync(self.streams[stream])

    def certificate(self):
        return self.driver.detector.certificate()


@pytest.fixture
def gpu():
    found = Gpu()
    yield found
    found.certificate()
    found.driver.close()


def started(*bodies):
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    return threads


def joined(*bodies):
    for thread in started(*bodies):
        thread.join()


def line_of(program, text):
    """The place, as reports name it, of the one line of a program that contains a text."""
    lines, first = inspect.getsourcelines(program)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"{Path(inspect.getsourcefile(program)).name}:{number}"


# -- questions whose answer depends on timing: each names its line ----------------------------------------------------


def event_is_set(gpu):
    told = threading.Event()
    started(told.set)
    told.is_set()  # asked
    gpu.use()


def event_is_set_before_it_is(gpu):
    told = threading.Event()
    gate = threading.Semaphore(0)
    (thread,) = started(lambda: (gate.acquire(), told.set()))
    told.is_set()  # asked
    gate.release()
    thread.join()
    gpu.use()


def event_wait_with_a_limit(gpu):
    told = threading.Event()
    (thread,) = started(told.set)
    told.wait(5)  # asked
    thread.join()
    gpu.use()


def a_spinning_thread(gpu):
    told = threading.Event()
    (thread,) = started(lambda: (gpu.use(1, 1), told.set()))
    while not told.is_set():  # asked
        pass
    gpu.use(1)
    thread.join()


def queue_sizes(name):
    def program(gpu):
        work = queue.Queue(3)
        (thread,) = started(lambda: work.put(1))
        getattr(work, name)()
        thread.join()
        gpu.use()

    return program


def queue_get_nowait(gpu):
    work = queue.Queue()
    (thread,) = started(lambda: work.put(1))
    with suppress(queue.Empty):
        work.get_nowait()  # asked
    thread.join()


def queue_get_with_a_limit(gpu):
    work = queue.Queue()
    started(lambda: work.put(1))
    work.get(timeout=5)  # asked
    gpu.use()


def queue_put_with_a_limit(gpu):
    work = queue.Queue(1)
    work.put(1)
    (thread,) = started(work.get)
    work.put(2, True, 5)  # asked
    thread.join()
    work.get()


def lifo(gpu):
    work, both = queue.LifoQueue(), threading.Event()
    work.put(1)
    (thread,) = started(lambda: (work.put(2), both.set()))
    work.get()  # asked
    thread.join()


def priority(gpu):
    work = queue.PriorityQueue()
    (thread,) = started(lambda: [work.put(i) for i in (2, 1)])
    for _ in range(2):
        work.get()  # asked
    thread.join()


def simple_queue(gpu):
    work = queue.SimpleQueue()
    (thread,) = started(lambda: work.put(1))
    work.empty()  # asked
    thread.join()


def thread_is_alive(gpu):
    (thread,) = started(lambda: gpu.use(1, 1))
    thread.is_alive()  # asked
    thread.join()


def thread_that_still_runs_is_alive(gpu):
    (thread,) = started(threading.Event().wait)
    thread.is_alive()  # asked


def thread_join_with_a_limit(gpu):
    (thread,) = started(lambda: gpu.use(1, 1))
    thread.join(5)  # asked


def timer(gpu):
    fires = threading.Timer(0, lambda: gpu.use(1, 1))
    fires.start()
    fires.cancel()  # asked
    fires.join()


def barrier_index(gpu):
    barrier = threading.Barrier(2)

    def body():
        if barrier.wait() == 0:  # asked
            gpu.use()

    joined(body, body)


def barrier_waiting(gpu):
    barrier = threading.Barrier(2)
    (thread,) = started(lambda: barrier.wait() and None)
    barrier.n_waiting  # noqa: B018  # asked
    barrier.wait()
    thread.join()


def barrier_with_a_limit(gpu):
    barrier = threading.Barrier(2)

    def body():
        barrier.wait(5)  # asked

    joined(body, body)


def semaphore(gpu):
    free = threading.Semaphore(1)
    (thread,) = started(lambda: (free.acquire(), free.release()))
    free.acquire(blocking=False)  # asked
    thread.join()


def lock_without_a_wait(gpu):
    lock = threading.Lock()
    (thread,) = started(lambda: (lock.acquire(), lock.release()))
    if lock.acquire(blocking=False):  # asked
        lock.release()
    thread.join()


def lock_is_locked(gpu):
    lock = threading.Lock()

    def body():
        with lock:
            gpu.use(1, 1)

    (thread,) = started(body)
    lock.locked()  # asked
    thread.join()


def condition_with_a_limit(gpu):
    condition, ready = threading.Condition(), []

    def body():
        with condition:
            ready.append(1)
            condition.notify()

    (thread,) = started(body)
    with condition:
        condition.wait_for(lambda: ready, 5)  # asked
    thread.join()


def condition_of_two_notices(gpu):
    condition, ready = threading.Condition(), []

    def body():
        for i in range(2):
            with condition:
                ready.append(i)
                condition.notify()

    (thread,) = started(body)
    with condition:
        condition.wait_for(lambda: ready)  # asked
        for _ in range(len(ready)):
            gpu.use()
    thread.join()


def future_done(gpu):
    with ThreadPoolExecutor() as pool:
        future = pool.submit(gpu.use, 1, 1)
        future.done()  # asked


def future_cancel(gpu):
    with ThreadPoolExecutor() as pool:
        pool.submit(gpu.use, 1, 1).cancel()  # asked


def future_with_a_limit(gpu):
    with ThreadPoolExecutor() as pool:
        pool.submit(gpu.use, 1, 1).result(5)  # asked


def future_callback(gpu):
    with ThreadPoolExecutor() as pool:
        pool.submit(gpu.use, 1, 1).add_done_callback(lambda future: gpu.use(2, 2))  # asked


def futures_as_completed(gpu):
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(gpu.use, i, i) for i in (1, 2)]
        for _ in as_completed(futures):  # asked
            gpu.use()


def futures_first(gpu):
    with ThreadPoolExecutor() as pool:
        futures = [pool.submit(gpu.use, i, i) for i in (1, 2)]
        concurrent.futures.wait(futures, return_when="FIRST_COMPLETED")  # asked


def futures_with_a_limit(gpu):
    with ThreadPoolExecutor() as pool:
        concurrent.futures.wait([pool.submit(gpu.use, 1, 1)], 5)  # asked


def popen(gpu):
    child = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child.poll()  # asked
    child.wait()


def process_is_alive(gpu):
    child = multiprocessing.get_context("fork").Process(target=int)
    child.start()
    child.is_alive()  # asked
    child.join()


def connection_poll(gpu):
    here, there = multiprocessing.Pipe()
    there.send(1)
    here.poll()  # asked


def selecting(gpu):
    here, there = socket.socketpair()
    with here, there:
        select.select([here], [], [], 0)  # asked


def selecting_by_a_selector(gpu):
    here, there = socket.socketpair()
    with here, there, selectors.DefaultSelector() as chosen:
        chosen.register(here, selectors.EVENT_READ)
        chosen.select(0)  # asked


ASKED = [
    event_is_set, event_is_set_before_it_is, event_wait_with_a_limit, a_spinning_thread, queue_get_nowait,
    queue_get_with_a_limit, queue_put_with_a_limit, lifo, priority, simple_queue, thread_is_alive,
    thread_that_still_runs_is_alive, thread_join_with_a_limit, timer, barrier_index, barrier_waiting,
    barrier_with_a_limit, semaphore, lock_without_a_wait, lock_is_locked, condition_with_a_limit,
    condition_of_two_notices, future_done, future_cancel, future_with_a_limit, future_callback, futures_as_completed,
    futures_first, futures_with_a_limit, popen, process_is_alive, connection_poll, selecting, selecting_by_a_selector,
]  # fmt: skip


@pytest.mark.parametrize("program", ASKED, ids=lambda program: program.__name__)
def test_an_answer_that_depends_on_timing_withholds_the_certificate(gpu, program):
    program(gpu)
    gpu.use()
    certificate = gpu.certificate()
    assert not certificate.race_free
    assert line_of(program, "# asked") in str(certificate.violated), str(certificate)


@pytest.mark.parametrize("name", ["qsize", "empty", "full"])
def test_the_size_of_a_queue_that_another_thread_fills_depends_on_timing(gpu, name):
    queue_sizes(name)(gpu)
    assert f"Queue.{name}()" in str(gpu.certificate().violated)


# -- what is the same in every run is certified -----------------------------------------------------------------------


def questions_of_one_thread(gpu):
    told, work, lock = threading.Event(), queue.Queue(2), threading.Lock()
    told.set()
    assert told.is_set() and told.wait(0) and work.empty() and not work.full() and not lock.locked()
    work.put_nowait(1)
    assert work.qsize() == 1 and work.get_nowait() == 1 and lock.acquire(blocking=False)
    assert threading.Semaphore().acquire(timeout=5)


def questions_after_a_join(gpu):
    told, work = threading.Event(), queue.Queue()
    (thread,) = started(lambda: (gpu.use(1, 1), told.set(), work.put(1)))
    thread.join()
    assert told.is_set() and not thread.is_alive() and work.qsize() == 1 and work.get(timeout=5) == 1
    gpu.use(1)


def questions_before_a_start(gpu):
    told, work = threading.Event(), queue.Queue()
    assert not told.is_set() and work.empty()
    joined(lambda: (told.set(), work.put(1)))


def events_that_nobody_sets(gpu):
    stop = threading.Event()
    while not stop.is_set():
        gpu.use()
        if stop.wait(0) is False:
            break


def a_barrier(gpu):
    barrier = threading.Barrier(2)

    def body(mine):
        for step in range(3):
            gpu.use((mine + step) % 2, 1 + mine)
            barrier.wait()

    joined(lambda: body(0), lambda: body(1))
    gpu.use(0), gpu.use(1)


def a_barrier_of_threads_in_turn(gpu):
    barrier = threading.Barrier(2)

    def first():
        gpu.use(1, 1)
        barrier.wait()

    def second():
        barrier.wait()
        gpu.use(1, 2)

    for _ in range(2):
        joined(first, second)


def a_condition(gpu):
    condition, ready = threading.Condition(), []

    def body():
        gpu.use(1, 1)
        with condition:
            ready.append(1)
            condition.notify_all()

    (thread,) = started(body)
    with condition:
        condition.wait_for(lambda: ready)
    gpu.use(1)
    thread.join()


def a_condition_back_and_forth(gpu):
    condition, turn = threading.Condition(), [0]

    def body(mine):
        for _ in range(3):
            with condition:
                condition.wait_for(lambda: turn[0] == mine)
            gpu.use(1, mine)
            with condition:
                turn[0] = 1 - mine
                condition.notify()

    joined(lambda: body(0), lambda: body(1))


def results_of_a_pool(gpu):
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(gpu.use, i, i) for i in (1, 2)]
        for future in futures:
            future.result()
        assert all(future.done() for future in futures)
        gpu.use(1), gpu.use(2)
        pool.submit(gpu.use, 1, 2).result()


def a_map_over_a_pool(gpu):
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda i: gpu.use(i, i), (1, 2, 3)))
    gpu.use(1), gpu.use(2), gpu.use(3)


def a_pool_that_is_shut_down(gpu):
    with ThreadPoolExecutor(2) as pool:
        pool.submit(gpu.use, 1, 1)
        pool.submit(gpu.use, 2, 2)
    gpu.use(1), gpu.use(2)


def a_pool_of_one_thread(gpu):
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            pool.submit(gpu.use, 1, 1, False)


def a_wait_for_all(gpu):
    with ThreadPoolExecutor(2) as pool:
        concurrent.futures.wait([pool.submit(gpu.use, i, i) for i in (1, 2)])
        gpu.use(1), gpu.use(2)


def a_simple_queue(gpu):
    work = queue.SimpleQueue()
    (thread,) = started(lambda: (gpu.use(1, 1), work.put(1)))
    work.get()
    gpu.use(1)
    thread.join()


def a_lifo_of_one_item(gpu):
    work = queue.LifoQueue()
    (thread,) = started(lambda: (gpu.use(1, 1), work.put(1)))
    work.get()
    gpu.use(1)
    thread.join()


def a_queue_that_is_joined(gpu):
    work = queue.Queue()

    def body():
        for _ in range(3):
            work.get()
            gpu.use(1, 1)
            work.task_done()

    (thread,) = started(body)
    for i in range(3):
        work.put(i)
    work.join()
    gpu.use(1)
    thread.join()


def a_bounded_queue(gpu):
    """The second put is over when the first item was taken, which the other thread does after its own work."""
    work = queue.Queue(1)

    def body():
        gpu.use(1, 1)
        work.get(), work.get()

    (thread,) = started(body)
    work.put(1), work.put(2)
    gpu.use(1)
    thread.join()


CERTAIN = [
    questions_of_one_thread, questions_after_a_join, questions_before_a_start, events_that_nobody_sets, a_barrier,
    a_barrier_of_threads_in_turn, a_condition, a_condition_back_and_forth, results_of_a_pool, a_map_over_a_pool,
    a_pool_that_is_shut_down, a_pool_of_one_thread, a_wait_for_all, a_simple_queue, a_lifo_of_one_item,
    a_queue_that_is_joined, a_bounded_queue,
]  # fmt: skip


@pytest.mark.parametrize("program", CERTAIN, ids=lambda program: program.__name__)
def test_what_is_the_same_in_every_run_is_certified(gpu, program):
    gpu.use()
    program(gpu)
    certificate = gpu.certificate()
    assert certificate.race_free, str(certificate)


# -- orders that are not there ---------------------------------------------------------------------------------------


def tasks_of_one_thread_of_a_pool(gpu):
    """They ran one after the other here; two threads might have run them."""
    with ThreadPoolExecutor(2) as pool:
        pool.submit(gpu.use, 1, 1)
        pool.submit(gpu.use, 2, 2).result()
        pool.submit(gpu.use, 1, 2)


def a_barrier_of_more_threads_than_parties(gpu):
    barrier = threading.Barrier(2)

    def body(i):
        gpu.use(i, i)
        barrier.wait()

    joined(*[lambda i=i: body(i) for i in range(4)])


def a_task_that_its_submitter_did_not_wait_for(gpu):
    with ThreadPoolExecutor(2) as pool:
        future = pool.submit(gpu.use, 1, 1)
        while future.running():
            pass
        gpu.use(1)


def a_queue_that_is_joined_too_early(gpu):
    work = queue.Queue()
    (thread,) = started(lambda: (work.get(), work.task_done(), gpu.use(1, 1)))
    work.put(1)
    work.join()
    gpu.use(1)
    thread.join()


def a_condition_that_is_notified_too_early(gpu):
    condition, ready = threading.Condition(), []

    def body():
        with condition:
            ready.append(1)
            condition.notify()
        gpu.use(1, 1)

    (thread,) = started(body)
    with condition:
        condition.wait_for(lambda: ready)
    gpu.use(1)
    thread.join()


UNORDERED = [
    tasks_of_one_thread_of_a_pool, a_barrier_of_more_threads_than_parties, a_task_that_its_submitter_did_not_wait_for,
    a_queue_that_is_joined_too_early, a_condition_that_is_notified_too_early,
]  # fmt: skip


@pytest.mark.parametrize("program", UNORDERED, ids=lambda program: program.__name__)
def test_what_may_come_in_another_order_is_not_certified(gpu, program):
    gpu.use()
    program(gpu)
    assert not gpu.certificate().race_free


def test_the_condition_that_orders_is_an_assumption_with_its_lines(gpu):
    a_condition(gpu)
    (text,) = [text for text in gpu.certificate().assumptions if "Condition" in text and "waits for" in text]
    assert line_of(a_condition, "condition.wait_for") in text and line_of(a_condition, "notify_all") in text


def test_threads_that_call_no_driver_are_in_the_assumptions(gpu):
    joined(lambda: None)
    gpu.use()
    assert any("other host threads" in text for text in gpu.certificate().assumptions)


def test_workers_without_a_gpu_that_fill_one_queue_withhold_the_certificate(gpu):
    work = queue.Queue()
    threads = started(*[lambda i=i: work.put(i) for i in range(2)])
    for _ in range(2):
        gpu.use(work.get())
    for thread in threads:
        thread.join()
    assert "queue.Queue is filled" in str(gpu.certificate().violated)


# -- polls of threads that use no tensor and send nothing -------------------------------------------------------------


def a_monitor_that_is_stopped(gpu):
    """Let a thread wait with a limit until the program ends, as that of a progress bar does."""
    stop, seen = threading.Event(), []
    (thread,) = started(lambda: [seen.append(0) for _ in iter(lambda: stop.wait(0.001), True)])
    gpu.use()
    stop.set()
    return thread


def a_writer_of_logs(gpu):
    lines, log = queue.Queue(), []

    def body():
        with suppress(queue.Empty):
            while True:
                log.append(lines.get(timeout=0.01))

    (thread,) = started(body)
    for i in range(3):
        gpu.use()
        lines.put(i)
    return thread


def a_thread_that_asks_for_another(gpu):
    done = threading.Event()
    (worker,) = started(lambda: (done.wait(), gpu.use(1, 1)))
    started(lambda: worker.is_alive())
    done.set()
    worker.join()


def a_thread_with_a_queue_of_its_own(gpu):
    stop, received = threading.Event(), threading.Semaphore(0)  # the semaphore orders nothing

    def body():
        own = queue.Queue()
        stop.wait(0)
        own.put(0)
        own.get()
        received.release()

    (thread,) = started(body)
    received.acquire()
    stop.set()
    return thread


@pytest.mark.parametrize(
    "program",
    [a_monitor_that_is_stopped, a_writer_of_logs, a_thread_that_asks_for_another, a_thread_with_a_queue_of_its_own],
)  # fmt: skip
def test_polls_of_a_thread_that_only_receives_are_certified(gpu, program):
    kept = program(gpu)
    gpu.use()
    certificate = gpu.certificate()
    assert certificate.race_free, (str(certificate), kept)
    assert any("share" in text for text in certificate.assumptions)


def joins_it(gpu, body):
    joined(body)


def receives_an_event(gpu, body):
    ready = threading.Event()
    started(lambda: (body(), ready.set()))
    ready.wait()


def receives_through_a_third_thread(gpu, body):
    first, second = queue.Queue(), queue.Queue()
    started(lambda: (body(), first.put(1)), lambda: second.put(first.get()))
    second.get()


def lets_a_pool_run_it(gpu, body):
    with ThreadPoolExecutor(1) as pool:  # of which the end waits for the pool's thread
        pool.submit(body)


def lets_it_use_a_stream(gpu, body):
    used = threading.Semaphore(0)  # orders nothing
    started(lambda: (body(), gpu.use(1, 1), used.release()))
    used.acquire()


def lets_it_break_a_barrier(gpu, body):
    barrier = threading.Barrier(2)
    started(lambda: (body(), barrier.abort()))
    with suppress(threading.BrokenBarrierError):
        barrier.wait()


def lets_it_arrive_at_a_barrier(gpu, body):
    barrier = threading.Barrier(2)

    def arrive():
        body()
        with suppress(threading.BrokenBarrierError):
            barrier.wait()

    started(arrive)
    while not barrier.n_waiting:
        pass
    barrier.abort()


def lets_it_cancel_a_timer(gpu, body):
    cancelled, timer = threading.Semaphore(0), threading.Timer(3600, print)
    timer.start()
    started(lambda: (body(), timer.cancel(), cancelled.release()))
    cancelled.acquire()
    timer.join()


def lets_it_cancel(gpu, body):
    cancelled = threading.Semaphore(0)
    future = concurrent.futures.Future()
    started(lambda: (body(), future.cancel(), cancelled.release()))
    cancelled.acquire()
    with suppress(concurrent.futures.CancelledError):
        future.result()


ACTING = [
    joins_it, receives_an_event, receives_through_a_third_thread, lets_a_pool_run_it, lets_it_use_a_stream,
    lets_it_break_a_barrier, lets_it_arrive_at_a_barrier, lets_it_cancel_a_timer, lets_it_cancel,
]  # fmt: skip


@pytest.mark.parametrize("program", ACTING, ids=lambda program: program.__name__)
def test_polls_of_a_thread_that_affects_another_withhold_the_certificate(gpu, program):
    stop = threading.Event()
    started(stop.set)
    program(gpu, lambda: stop.wait(0))
    gpu.use()
    assert "Event.wait(timeout)" in str(gpu.certificate().violated)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("body", [lambda: torch.rand(2), lambda: torch.ones(2) + 1, lambda: None])
def test_polls_of_a_thread_that_uses_cpu_tensors_withhold_the_certificate(body, early):
    stop, used = threading.Event(), threading.Semaphore(0)
    gate = threading.Semaphore(0)
    with watch() if early else nullcontext():
        thread = threading.Thread(target=lambda: (stop.wait(0), gate.acquire(), body(), used.release()))
        if early:
            thread.start()
        with torch.virtual(races="warn") as machine:
            if not early:
                thread.start()
            torch.ones(2, device="cuda")
            gate.release()
            used.acquire()
            stop.set()
            assert machine.certificate().race_free == (body() is None)
    thread.join()
