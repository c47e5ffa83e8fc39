"""Several host threads: what they tell each other orders their work, what merely happened in this run does not."""

import _thread
import gc
import queue
import threading

import pytest
from race_kit import machine, meta, run

import flambeau as torch
import flambeau.observe.threads
from flambeau.data.pin import Pinner
from flambeau.observe import handovers
from flambeau.runtime import system

M = meta((16,))


@pytest.fixture
def gpu():
    accelerator, _ = machine()
    yield accelerator
    accelerator.detector.certificate()
    accelerator.close()


def memory(gpu):
    ptr = gpu.mem_alloc(0, 64)
    gpu.fill(ptr, 0, 64, 1)
    gpu.stream_sync(1)
    return ptr


def use(gpu, ptr, stream):
    run(gpu, "neg_", [(ptr, M)], [(ptr, M)], stream, updates=True)


def in_threads(*bodies):
    """Run them at once; nobody hears what they did."""
    unseen = [_thread.allocate_lock() for _ in bodies]
    for lock, body in zip(unseen, bodies, strict=True):
        lock.acquire()
        threading.Thread(target=lambda lock=lock, body=body: (body(), lock.release())).start()
    for lock in unseen:
        lock.acquire()


def after(gate, body):
    """`body`, once the gate, which cannot be seen, is opened."""
    return lambda: (gate.acquire(), body())


def before(gate, body):
    return lambda: (body(), gate.release())


def gate():
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def begin(body):
    """Start a thread of which `threading` does not know."""
    _thread.start_new_thread(body, ())


class End:
    """Opens a gate when the thread ends whose local object holds it."""

    def __init__(self, gate):
        self.gate = gate

    def __del__(self):
        self.gate.release()


# -- what orders -------------------------------------------------------------------------------------------------


def test_a_thread_is_started_and_joined(gpu):
    a, side = memory(gpu), gpu.stream_create(0, 0)

    def body():
        use(gpu, a, side)
        gpu.stream_sync(side)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    use(gpu, a, 1)
    certificate = gpu.detector.certificate()
    assert certificate.race_free, str(certificate)
    assert any("2 host threads" in text for text in certificate.assumptions)


def test_what_a_thread_did_without_a_join_is_not_known(gpu):
    a, side, done = memory(gpu), gpu.stream_create(0, 0), gate()
    threading.Thread(target=before(done, lambda: (use(gpu, a, side), gpu.stream_sync(side)))).start()
    done.acquire()
    use(gpu, a, 1)
    certificate = gpu.detector.certificate()
    assert not certificate.races and not certificate.race_free
    assert "nothing orders the host threads" in certificate.violated[0]


def test_work_is_handed_over_in_a_queue(gpu):
    buffers, work = [memory(gpu) for _ in range(4)], queue.Queue()

    def consume():
        side = gpu.stream_create(0, 0)
        while (ptr := work.get()) is not None:
            use(gpu, ptr, side)

    thread = threading.Thread(target=consume)
    thread.start()
    for ptr in buffers:
        use(gpu, ptr, 1)
        gpu.stream_sync(1)
        work.put(ptr)
    work.put(None)
    thread.join()
    assert gpu.detector.certificate().race_free, str(gpu.detector.certificate())


def test_work_is_handed_over_too_early(gpu):
    a, work = memory(gpu), queue.Queue()
    side = gpu.stream_create(0, 0)
    thread = threading.Thread(target=lambda: use(gpu, work.get(), side))
    thread.start()
    use(gpu, a, 1)  # and nobody waits for it
    work.put(a)
    thread.join()
    races = gpu.detector.certificate().races
    assert {race.second.stream for race in races} == {"side stream 1 of cuda:0"}
    assert all(race.fix.verified for race in races)


def test_an_event_of_the_gpu_goes_with_the_work(gpu):
    a, work, side = memory(gpu), queue.Queue(), gpu.stream_create(0, 0)

    def consume():
        ptr, ready = work.get()
        gpu.stream_wait(side, ready)
        use(gpu, ptr, side)

    thread = threading.Thread(target=consume)
    thread.start()
    use(gpu, a, 1)
    ready = gpu.event_create(0, False)
    gpu.event_record(ready, 1)
    work.put((a, ready))
    thread.join()
    assert gpu.detector.certificate().race_free, str(gpu.detector.certificate())


def test_an_event_of_threading_tells(gpu):
    a, side, told = memory(gpu), gpu.stream_create(0, 0), threading.Event()
    thread = threading.Thread(target=lambda: (told.wait(), use(gpu, a, side)))
    thread.start()
    use(gpu, a, 1)
    gpu.stream_sync(1)
    told.set()
    thread.join()
    assert gpu.detector.certificate().race_free, str(gpu.detector.certificate())


def test_a_thread_that_calls_nothing_passes_on_what_it_heard(gpu):
    a, side, first, second = memory(gpu), gpu.stream_create(0, 0), queue.Queue(), queue.Queue()
    threads = [
        threading.Thread(target=lambda: second.put(first.get())),
        threading.Thread(target=lambda: use(gpu, second.get(), side)),
    ]
    for thread in threads:
        thread.start()
    use(gpu, a, 1)
    gpu.stream_sync(1)
    first.put(a)
    for thread in threads:
        thread.join()
    assert gpu.detector.certificate().race_free, str(gpu.detector.certificate())


def test_threads_with_streams_and_memory_of_their_own(gpu):
    mine = [(memory(gpu), gpu.stream_create(0, 0)) for _ in range(3)]

    def work(ptr, stream):
        for _ in range(5):
            use(gpu, ptr, stream)
            gpu.stream_sync(stream)

    threads = [threading.Thread(target=work, args=each) for each in mine]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ptr, _ in mine:
        use(gpu, ptr, 1)
    assert gpu.detector.certificate().race_free, str(gpu.detector.certificate())


# -- what does not --------------------------------------------------------------------------------------------------


def test_two_threads_give_work_to_one_stream(gpu):
    a, b, go = memory(gpu), memory(gpu), gate()
    in_threads(before(go, lambda: use(gpu, a, 1)), after(go, lambda: use(gpu, b, 1)))
    certificate = gpu.detector.certificate()
    assert not certificate.races
    assert "the default stream of cuda:0 is given work" in certificate.violated[0]


def test_a_lock_tells_nothing(gpu):
    a, side, lock, go = memory(gpu), gpu.stream_create(0, 0), threading.Lock(), gate()

    def locked(stream):
        with lock:
            use(gpu, a, stream)
            gpu.stream_sync(stream)

    other = gpu.stream_create(0, 0)
    in_threads(before(go, lambda: locked(side)), after(go, lambda: locked(other)))
    certificate = gpu.detector.certificate()
    assert not certificate.races and not certificate.race_free


def test_a_wait_for_an_event_that_another_thread_records_at_some_time(gpu):
    a, side, event, go = memory(gpu), gpu.stream_create(0, 0), gpu.event_create(0, False), gate()
    in_threads(
        before(go, lambda: (use(gpu, a, 1), gpu.event_record(event, 1))),
        after(go, lambda: (gpu.stream_wait(side, event), use(gpu, a, side))),
    )
    certificate = gpu.detector.certificate()
    assert not certificate.races and not certificate.race_free


def test_two_threads_fill_one_queue(gpu):
    work, go = queue.Queue(), gate()
    memory(gpu)
    in_threads(
        before(go, lambda: work.put(1)), after(go, lambda: work.put(2)), lambda: use(gpu, memory(gpu), 1)
    )
    assert any("queue.Queue is filled" in text for text in gpu.detector.certificate().violated)


def test_a_new_thread_with_the_number_of_an_ended_one_knows_nothing_of_it(gpu):
    a, side, idents = memory(gpu), gpu.stream_create(0, 0), []

    def body(stream):
        idents.append(threading.get_ident())
        use(gpu, a, stream)
        gpu.stream_sync(stream)

    for stream in (side, gpu.stream_create(0, 0)):
        in_threads(lambda stream=stream: body(stream))
    certificate = gpu.detector.certificate()
    assert not certificate.races and not certificate.race_free


@pytest.mark.parametrize(
    "start", [lambda body: threading.Thread(target=body).start(), begin], ids=["threading", "_thread"]
)
def test_a_thread_with_the_number_of_one_whose_start_was_not_seen(monkeypatch, start):
    own, number = threading.get_ident(), threading.get_ident
    for module in (threading, torch.observe.threads):
        monkeypatch.setattr(module, "get_ident", lambda: own if number() == own else 7)
    go, ended, local, held = gate(), gate(), _thread._local(), []

    def fill():
        held.append(memory(gpu))
        local.end = End(ended)  # goes last

    start(after(go, fill))
    gpu, _ = machine()
    side = gpu.stream_create(0, 0)
    go.release()
    ended.acquire()
    in_threads(lambda: use(gpu, held[0], side))
    certificate = gpu.detector.certificate()
    gpu.close()
    assert not certificate.races and not certificate.race_free


def test_threads_that_start_before_the_first_call_are_seen():
    for count in (1, 2):
        with torch.virtual(races="warn") as found:
            threads = [threading.Thread(target=lambda: torch.zeros(8, device="cuda")) for _ in range(2)]
            for begin in range(0, 2, count):
                for thread in threads[begin : begin + count]:
                    thread.start()
                for thread in threads[begin : begin + count]:
                    thread.join()
            assert found.certificate().race_free == (count == 1)


def test_two_threads_draw_random_numbers():
    with torch.virtual(devices=1, races="warn"):
        detector = system.accelerator().detector
        go, streams = gate(), [torch.cuda.Stream(), torch.cuda.Stream()]

        def draw(stream):
            with torch.cuda.stream(stream):
                torch.randn(16, device="cuda")

        in_threads(before(go, lambda: draw(streams[0])), after(go, lambda: draw(streams[1])))
        torch.cuda.synchronize()
        assert any("random numbers of cuda:0" in text for text in detector.certificate().violated)


def test_memory_that_threads_free_on_their_own_streams_wants_no_record_stream():
    """Let the second thread's stream take over what the first one's has freed and its host waited for.

    The allocator knows of that wait, or takes other memory.
    """
    with torch.virtual(devices=1, races="warn"):
        detector = system.accelerator().detector
        go = gate()

        streams = [torch.cuda.Stream(), torch.cuda.Stream()]

        def serve(stream, count):
            with torch.cuda.stream(stream):
                for _ in range(2):
                    x = torch.ones(count, device="cuda")
                    x.add_(1)
                    stream.synchronize()
                    del x

        in_threads(before(go, lambda: serve(streams[0], 1024)), after(go, lambda: serve(streams[1], 1000)))
        assert detector.certificate().race_free, str(detector.certificate())


def test_the_thread_that_pins_a_loaders_batches():
    """It is not used on virtual GPUs, where there is nothing to win; on real ones it is, and is seen like this."""
    with torch.virtual(devices=1, races="warn"):
        detector = system.accelerator().detector
        batches = iter([(i, torch.full((64,), float(i))) for i in range(8)])
        pinner = Pinner(lambda: next(batches), 0)
        seen = []
        for _ in range(8):
            _, batch = pinner.receive()
            assert batch.is_pinned()
            seen.append(batch.to("cuda", non_blocking=True) + 1)
            del batch
        with pytest.raises(StopIteration):
            pinner.receive()
        pinner.join()
        assert [x[0].item() for x in seen] == [i + 1.0 for i in range(8)]
        certificate = detector.certificate()
        assert certificate.race_free, str(certificate)
        assert any("2 host threads" in text for text in certificate.assumptions)


def test_the_standard_library_is_as_before_once_nobody_listens():
    gc.collect()  # of machines that other tests left open
    before = threading.Thread.start, threading.Event.set, queue.Queue._put, queue.Queue.get
    gpu, _ = machine()
    assert threading.Event.set is not before[1]
    assert threading.Event.set.__doc__ == before[1].__doc__
    gpu.close()
    gpu.close()
    assert (threading.Thread.start, threading.Event.set, queue.Queue._put, queue.Queue.get) == before
    assert gpu.detector not in handovers.listening()


def test_a_set_that_is_taken_back_tells_no_more_than_the_first(gpu):
    a, side, told, set_twice = memory(gpu), gpu.stream_create(0, 0), threading.Event(), gate()
    thread = threading.Thread(target=after(set_twice, lambda: (told.wait(), use(gpu, a, side))))
    thread.start()
    told.set()
    told.clear()
    use(gpu, a, 1)
    gpu.stream_sync(1)
    told.set()
    set_twice.release()  # under another schedule the thread goes on after the first set
    thread.join()
    certificate = gpu.detector.certificate()
    assert not certificate.races and not certificate.race_free


def test_a_set_that_the_waiting_thread_has_taken_back_itself(gpu):
    a, side, told, taken = memory(gpu), gpu.stream_create(0, 0), threading.Event(), threading.Event()

    def body():
        for _ in range(5):
            told.wait()
            told.clear()
            use(gpu, a, side)
            gpu.stream_sync(side)
            taken.set()

    thread = threading.Thread(target=body)
    thread.start()
    for _ in range(5):
        use(gpu, a, 1)
        gpu.stream_sync(1)
        told.set()
        taken.wait()
        taken.clear()
    thread.join()
    assert gpu.detector.certificate().race_free, str(gpu.detector.certificate())
