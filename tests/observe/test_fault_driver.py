"""Faults that are put into a driver on purpose."""

import pytest
from fake_drivers import StillDriver
from race_kit import meta, run

from flambeau.core.errors import DriverError, OutOfMemoryError
from flambeau.observe.faults import Fault, FaultDriver


def test_the_nth_allocation_fails_and_no_other():
    driver = FaultDriver(StillDriver(), [Fault("mem_alloc", nth=2)])
    first = driver.mem_alloc(0, 512)
    with pytest.raises(OutOfMemoryError, match="injected fault 1: mem_alloc"):
        driver.mem_alloc(0, 512)
    assert driver.mem_alloc(0, 512) > first
    assert driver.injected == ["mem_alloc"]


def test_a_failed_launch_is_not_queued():
    driver = FaultDriver(StillDriver(), [Fault("launch", nth=1, name="sum")])
    run(driver, "add", [(512, meta((4,)))], [], 1)
    with pytest.raises(DriverError, match="'sum'"):
        run(driver, "sum", [(512, meta((4,)))], [], 1)
    assert driver.inner.queued == ["add"]


@pytest.mark.parametrize("call", ["copy_in", "copy_out", "copy", "fill", "host_alloc", "range_map"])
def test_every_call_that_can_fail_does(call):
    driver = FaultDriver(StillDriver(), [Fault(call, nth=1)])
    args = {"copy_in": (1, None, 1), "copy_out": (None, 1, 1), "copy": (1, 2, 3, 1), "fill": (1, 0, 3, 1)}
    args["range_map"] = (512, 64)
    with pytest.raises((DriverError, OutOfMemoryError)):
        getattr(driver, call)(*args.get(call, (64,)))
    getattr(driver, call)(*args.get(call, (64,)))


def failures(seed):
    driver = FaultDriver(StillDriver(), [Fault("fill", probability=0.3)], seed)
    failed = []
    for i in range(50):
        try:
            driver.fill(512, 0, 4, 1)
        except DriverError:
            failed.append(i)
    return failed


def test_a_seed_repeats_its_failures():
    assert failures(1) == failures(1) != failures(2)
    assert 3 < len(failures(1)) < 30


@pytest.mark.parametrize(
    "wrong",
    [{"call": "stream_sync", "nth": 1}, {"call": "fill"}, {"call": "fill", "nth": 1, "probability": 0.5}],
)
def test_rules_without_meaning_are_refused(wrong):
    with pytest.raises(ValueError, match="fault"):
        Fault(**wrong)
