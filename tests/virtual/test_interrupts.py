"""Ctrl-C while the host waits: it comes between two commands, and no command is lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from flambeau.driver.protocol import HostMemory
from flambeau.driver.virtual import VirtualDriver


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def driver() -> Iterator[VirtualDriver]:
    driver = VirtualDriver(devices=1)
    yield driver
    driver.close()


def queue(driver: VirtualDriver, stream: int, seen: list[str]) -> None:
    """Three commands; Ctrl-C is pressed in the middle of the second."""

    def second() -> None:
        interrupt()
        seen.append("second")

    driver.host_call(lambda: seen.append("first"), stream)
    driver.host_call(second, stream)
    driver.host_call(lambda: seen.append("third"), stream)


def event_after(driver: VirtualDriver, stream: int) -> int:
    event = driver.event_create(0, False)
    driver.event_record(event, stream)
    return event


def copy_out(driver: VirtualDriver, stream: int) -> None:
    array = np.zeros(4, np.uint8)
    driver.copy_out(HostMemory(array.ctypes.data, 4, array, False), driver.mem_alloc(0, 4), stream)


WAITS: dict[str, Callable[[VirtualDriver, int], object]] = {
    "device_sync": lambda driver, stream: driver.device_sync(0),
    "stream_sync": lambda driver, stream: driver.stream_sync(stream),
    "event_sync": lambda driver, stream: driver.event_sync(event_after(driver, stream)),
    "copy_out": copy_out,
    "mem_free": lambda driver, stream: driver.mem_free(driver.mem_alloc(0, 512)),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_the_command_that_runs_ends_and_the_rest_stays_queued(
    driver: VirtualDriver, wait: Callable[[VirtualDriver, int], object]
) -> None:
    stream = driver.stream_create(0, 0)
    seen: list[str] = []
    queue(driver, stream, seen)
    with pytest.raises(KeyboardInterrupt):
        wait(driver, stream)
    assert seen == ["first", "second"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    driver.device_sync(0)
    assert seen == ["first", "second", "third"]
    assert driver.stream_query(stream)


def test_a_poll_is_interrupted_between_commands_too(driver: VirtualDriver) -> None:
    stream = driver.stream_default(0)
    seen: list[str] = []
    queue(driver, stream, seen)
    with pytest.raises(KeyboardInterrupt):
        while not driver.stream_query(stream):
            pass
    assert seen[-1] == "second"
    driver.device_sync(0)
    assert seen == ["first", "second", "third"]


def test_a_full_queue_is_a_wait(driver: VirtualDriver) -> None:
    stream = driver.stream_default(0)
    seen: list[int] = []
    driver.host_call(interrupt, stream)
    with pytest.raises(KeyboardInterrupt):
        for i in range(5_000):
            driver.host_call(lambda i=i: seen.append(i), stream)
    assert i < 5_000 - 1
    driver.device_sync(0)
    assert seen == list(range(i + 1))  # the one whose call was interrupted is queued


def test_a_handler_that_only_takes_note_does_not_end_the_wait(driver: VirtualDriver) -> None:
    noted: list[int] = []
    outer = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    try:
        seen: list[str] = []
        queue(driver, driver.stream_default(0), seen)
        driver.device_sync(0)
        assert seen == ["first", "second", "third"] and noted == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, outer)


def test_an_ignored_signal_stays_ignored(driver: VirtualDriver) -> None:
    outer = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        seen: list[str] = []
        queue(driver, driver.stream_default(0), seen)
        driver.device_sync(0)
        assert seen == ["first", "second", "third"]
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, outer)


def test_other_threads_wait_as_ever(driver: VirtualDriver) -> None:
    """They are never interrupted, and may not touch signal handlers: `signal.signal` would raise."""
    seen: list[str] = []
    driver.host_call(lambda: seen.append("ran"), driver.stream_default(0))
    thread = threading.Thread(target=lambda: driver.device_sync(0))
    thread.start()
    thread.join()
    assert seen == ["ran"]
