"""What the tests of the race detector run on: two small machines, and launches without arithmetic."""

from __future__ import annotations

from itertools import count

from flambeau.core.device import device
from flambeau.core.dtype import float32
from flambeau.core.meta import Meta
from flambeau.driver.host import HostDriver
from flambeau.driver.protocol import Executable, HostMemory, Kernel, Launch
from flambeau.observe import attach_detector
from flambeau.observe.driver_proxy import Forward


class StillDriver(Forward):
    """A driver of two devices that does nothing, so that only the detector is tested."""

    def __init__(self, devices=2):
        self.name = "still"
        self.observes_blocks = False
        self.runs_bodies = False
        self._devices = devices
        self._handles = count(100)
        self._addresses = count(0x10_0000_0000, 1 << 24)
        self.queued = []
        self.done = False

    def device_count(self):
        return self._devices

    def stream_default(self, index):
        return 1 + index

    def stream_create(self, index, priority):
        return next(self._handles)

    def event_create(self, index, timing, blocking=False, interprocess=False):
        return next(self._handles)

    def mem_alloc(self, index, nbytes):
        return next(self._addresses)

    def host_alloc(self, nbytes):
        return HostMemory(next(self._addresses), nbytes, None, pinned=True)

    def load(self, launch, index):
        return Executable(launch, index)

    def launch(self, exe, ptrs, scalars, stream):
        self.queued.append(exe.launch.kernel.name)

    def stream_query(self, stream):
        return self.done

    def event_query(self, event, internal=False):
        return self.done

    def event_elapsed_ns(self, start, end):
        return 0

    def _nothing(self, *args):
        pass

    device_sync = mem_free = host_free = host_touch = host_export = block_alloc = block_free = block_wait = (
        _nothing
    )
    copy_in = copy_out = copy = fill = stream_destroy = stream_sync = stream_wait = _nothing
    event_destroy = event_record = event_sync = unload = host_call = close = range_map = _nothing


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
