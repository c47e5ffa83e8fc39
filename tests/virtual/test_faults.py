"""What goes wrong: kernels that raise, deadlocks, calls from host functions, threads, foreign handles."""

import gc
import inspect
import threading
from functools import partial

import numpy as np
import pytest
from virtual_kit import NOTHING, adder, download, failing, upload

import flambeau
from flambeau.core.errors import DriverError
from flambeau.driver.protocol import HostMemory, Kernel
from flambeau.driver.virtual import VirtualDriver
from flambeau.driver.virtual.scheduling import scheduler as core
from flambeau.driver.virtual.scheduling.schedule_policy import Earliest


def test_a_kernels_error_says_the_line_that_launched_it():
    with flambeau.virtual(devices=1):
        x, bad = flambeau.ones(3, device="cuda"), flambeau.tensor([7], device="cuda")
        for i in range(3):
            x[bad - 7 + i]
        x[bad]  # this line
        x + 1
        with pytest.raises(
            DriverError, match=r"launched at .*test_faults.py:\d+ \(x\[bad\]  # this line\)\. The error"
        ):
            flambeau.cuda.synchronize()


def test_a_kernels_error_comes_late_names_it_and_stays():
    driver = VirtualDriver(2)
    ptr, stream = upload(driver, np.ones(1024, np.float32)), driver.stream_default(0)
    event = driver.event_create(0, False)
    driver.launch(adder(driver, kernel=failing()), (ptr, ptr, ptr), (), stream)
    driver.launch(adder(driver), (ptr, ptr, ptr), (), stream)  # queued behind: never touches memory
    driver.event_record(event, stream)
    text = (
        "CUDA error: device-side assert triggered.*'gather' on cuda:0.*IndexError: index 7 is out of bounds"
    )
    out = np.zeros(1024, np.float32)
    for call in (
        lambda: driver.stream_sync(stream),
        lambda: driver.device_sync(0),
        lambda: driver.event_sync(event),
        lambda: driver.event_query(event),
        lambda: driver.stream_query(stream),
        lambda: driver.launch(adder(driver), (ptr, ptr, ptr), (), stream),
        lambda: driver.fill(ptr, 0, 4, stream),
        lambda: download(driver, ptr, 1024),
    ):
        with pytest.raises(DriverError, match=text) as caught:
            call()
        assert isinstance(caught.value.__cause__, IndexError)
    assert not out.any()
    driver.device_sync(1)  # the other device lives
    driver.close()


def test_closing_with_a_failed_kernel_is_quiet():
    driver = VirtualDriver(1)
    ptr = driver.mem_alloc(0, 4096)
    driver.launch(adder(driver, kernel=failing()), (ptr, ptr, ptr), (), driver.stream_default(0))
    driver.close()
    driver.close()


def test_an_interrupt_in_a_kernel_passes_and_leaves_a_working_machine():
    def body(outputs, inputs):
        raise KeyboardInterrupt

    driver = VirtualDriver(1)
    ptr, stream = driver.mem_alloc(0, 4096), driver.stream_default(0)
    driver.launch(adder(driver, kernel=Kernel("long", lambda launch: body)), (ptr, ptr, ptr), (), stream)
    with pytest.raises(KeyboardInterrupt):
        driver.stream_sync(stream)
    driver.fill(ptr, 1, 4096, stream)
    assert (download(driver, ptr, 4096, np.uint8) == 1).all()


def test_a_host_function_that_waits_fails_and_is_named():
    driver = VirtualDriver(1)
    stream = driver.stream_default(0)

    def waits():
        driver.device_sync(0)

    driver.host_call(waits, stream)
    with pytest.raises(DriverError, match=r"operation not permitted.*waits"):
        driver.stream_sync(stream)


def test_a_destructor_that_runs_amid_a_kernel_may_record_and_query():
    """Garbage is collected anywhere: an allocator's events and frees must not break a running step."""
    driver, seen = VirtualDriver(1), []
    spare = driver.mem_alloc(0, 4096)
    stream, event = driver.stream_default(0), driver.event_create(0, False)

    class Cycle:
        def __init__(self):
            self.itself = self

        def __del__(self):
            driver.event_record(event, stream)
            seen.append(driver.event_query(event))
            driver.mem_free(spare)

    def body(outputs, inputs):
        Cycle()
        gc.collect()

    ptr = driver.mem_alloc(0, 4096)
    driver.launch(adder(driver, kernel=Kernel("k", lambda launch: body)), (ptr, ptr, ptr), (), stream)
    driver.stream_sync(stream)
    assert seen == [False]
    with pytest.raises(DriverError, match="not the start"):
        driver.mem_free(spare)
    driver.event_sync(event)
    assert driver.event_query(event)


def stuck_streams(count):
    """A scheduler and `count` streams of one device."""
    scheduler, device = core.Scheduler(Earliest(), 1024), core.DeviceState(0)
    device.streams = {handle: core.SimulatedStream(handle, device, 0) for handle in range(1, count + 1)}
    return scheduler, device, list(device.streams.values())


def a_kernel(name, stream, waits=()):
    return core.Command(
        core.KERNEL, name, stream, 0, core.UNLIMITED, 1, 0, 0, lambda: None, (), 0, tuple(waits)
    )


def test_a_deadlock_is_reported_at_once_with_who_waits_for_whom():
    scheduler, device, (first, second) = stuck_streams(2)
    outside = a_kernel("collective", second)  # of another process: never enqueued here
    scheduler.enqueue(a_kernel("a", first, [outside]))
    last = a_kernel("b", second, [first.tail])
    scheduler.enqueue(last)
    for wait, what in (
        (lambda: scheduler.wait(second), r"stream 2 of cuda:0"),
        (lambda: scheduler.wait(device), "device cuda:0"),
        (lambda: scheduler.wait(last), "command #1 'b' of stream 2"),
    ):
        with pytest.raises(DriverError, match=f"deadlock: the host waits for {what}") as caught:
            wait()
        assert "'a' of stream 1 of cuda:0 waits for command not enqueued yet, 'collective'" in str(
            caught.value
        )
        assert "test_faults.py:" in str(caught.value).splitlines()[0]


def test_a_deadlock_of_waits_names_their_lines():
    """A rank that never comes: what the streams of this one wait for, from the program's own calls."""
    driver = VirtualDriver(1)
    first, second = driver.stream_create(0, 0), driver.stream_create(0, 0)
    missing = a_kernel("all_reduce", driver._queues.streams[second])
    driver._core.enqueue(a_kernel("all_reduce", driver._queues.streams[first], [missing]))
    event = driver.event_create(0, False)
    driver.event_record(event, first)
    line = inspect.currentframe().f_lineno + 1
    driver.stream_wait(second, event)
    with pytest.raises(DriverError) as caught:
        driver.stream_sync(second)
    head, wait, cause, *more = str(caught.value).splitlines()
    assert head.startswith("deadlock: the host waits for side stream 2 of cuda:0 at ") and not more
    assert f"'wait' of side stream 2 of cuda:0 at tests/virtual/test_faults.py:{line} waits for" in wait
    assert f"'record' of side stream 1 of cuda:0 at tests/virtual/test_faults.py:{line - 2}" in wait
    assert "'all_reduce' of side stream 1 of cuda:0 waits for command not enqueued yet" in cause


def test_streams_that_wait_in_a_circle_are_told_as_one():
    scheduler, device, streams = stuck_streams(3)
    heads = [a_kernel(name, stream) for name, stream in zip("abc", streams, strict=True)]
    for head, awaited in zip(heads, heads[1:] + heads[:1], strict=True):
        head.waits = (awaited,)
        scheduler.enqueue(head)
    with pytest.raises(DriverError, match="they wait for each other in a circle") as caught:
        scheduler.wait(device)
    assert str(caught.value).count("waits for command #") == 3


def test_thousands_of_stuck_streams_are_counted_not_listed():
    scheduler, device, streams = stuck_streams(5000)
    outside = a_kernel("all_reduce", streams[0])
    for stream in streams:
        scheduler.enqueue(a_kernel("step", stream, [outside]))
        scheduler.enqueue(a_kernel("behind", stream))
    with pytest.raises(DriverError, match=r"and 4,988 streams more") as caught:
        scheduler.wait(device)
    assert len(str(caught.value).splitlines()) == 14 and "'behind'" not in str(caught.value)


def test_two_threads_share_a_machine():
    driver, failures = VirtualDriver(2, schedule="random:0"), []

    def work(index):
        try:
            stream, exe = driver.stream_create(index, 0), adder(driver, 1024, index)
            ptr = upload(driver, np.ones(1024, np.float32), index)
            for _ in range(200):
                driver.launch(exe, (ptr, ptr, ptr), (), stream)
                driver.copy(ptr, ptr, 4096, stream)
                driver.stream_query(stream)
                driver.fill(ptr, 0, 4096, stream)
            driver.stream_sync(stream)
            assert not download(driver, ptr, 1024, index=index).any()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    driver.close()


def test_foreign_handles_and_devices_are_refused():
    driver = VirtualDriver(2)
    exe, ptr = adder(driver, 1024, 1, NOTHING), driver.mem_alloc(0, 4096)
    with pytest.raises(DriverError, match="was loaded for cuda:1"):
        driver.launch(exe, (ptr, ptr, ptr), (), driver.stream_default(0))
    for call in (
        driver.stream_sync,
        driver.stream_query,
        driver.stream_destroy,
        driver.event_query,
        driver.event_sync,
    ):
        with pytest.raises(DriverError, match="invalid resource handle: 12345"):
            call(12345)
    with pytest.raises(DriverError, match="default stream"):
        driver.stream_destroy(driver.stream_default(1))


def test_long_chains_need_no_stack():
    driver = VirtualDriver(1)
    streams, event = [driver.stream_create(0, 0) for _ in range(2)], driver.event_create(0, False)
    sleepers = []
    driver.host_call(lambda: sleepers.append(1), streams[0])
    for i in range(1000):  # markers alone, each waiting for the other stream
        driver.event_record(event, streams[i % 2])
        driver.stream_wait(streams[(i + 1) % 2], event)
    driver.device_sync(0)
    assert sleepers == [1]


def test_what_a_finished_command_kept_goes_where_the_lock_is_free() -> None:
    """Its destructor may want locks whose holders wait for the driver's."""
    driver = VirtualDriver(devices=1)
    stream, ptr = driver.stream_default(0), driver.mem_alloc(0, 512)
    free: list[bool] = []

    class Ends:
        def __del__(self) -> None:
            asks = threading.Thread(target=driver.stream_query, args=(stream,), daemon=True)
            asks.start()
            asks.join(timeout=300)
            free.append(not asks.is_alive())

    memory = driver.host_alloc(512)
    for _ in range(2):
        source = HostMemory(memory.ptr, 512, (memory.owner, Ends()), pinned=True)
        driver.copy_in(ptr, source, stream)
        driver.copy_out(source, ptr, stream)
        del source
    driver.host_call(partial(lambda kept: None, Ends()), stream)
    driver.stream_sync(stream)
    assert free == [True] * 3
