"""What the tests of the race detector run on: two small machines, and launches without arithmetic."""

from __future__ import annotations

from fake_drivers import StillDriver

from flambeau.core.device import device
from flambeau.core.dtype import float32
from flambeau.core.meta import Meta
from flambeau.driver.host import HostDriver
from flambeau.driver.protocol import Kernel, Launch
from flambeau.observe import attach_detector


def machine(races="warn", accelerator=None):
    """(accelerator's driver, host's driver), both watched."""
    return attach_detector(accelerator or StillDriver(), HostDriver(), races)


def meta(shape, strides=None, device_index=0):
    where = device("cuda", device_index)
    return (
        Meta.contiguous_of(shape, float32, where)
        if strides is None
        else Meta.of(shape, strides, float32, where)
    )


def _idle(launch):
    return lambda outputs, inputs: None


def kernel(name, body=None):
    return Kernel(name, _idle if body is None else lambda launch: body)


def run(driver, name, outputs, inputs, stream, *, updates=False, body=None):
    """Launch a kernel: outputs and inputs are (ptr, meta) pairs."""
    launch = Launch(
        kernel(name, body), tuple(m for _, m in outputs), tuple(m for _, m in inputs), (), updates
    )
    exe = driver.load(launch, 0)
    driver.launch(exe, [ptr for ptr, _ in (*outputs, *inputs)], [], stream)


def wait(driver, later, earlier):
    """`later.wait_stream(earlier)`, as the runtime does it."""
    event = driver.event_create(0, False)
    driver.event_record(event, earlier)
    driver.stream_wait(later, event)
    driver.event_destroy(event)
