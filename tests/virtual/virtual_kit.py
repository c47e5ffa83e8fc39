"""What tests of the virtual driver share: small kernels, transfers, a program that is worth reordering."""

from __future__ import annotations

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import float32
from flambeau.core.host_arrays import address_of
from flambeau.core.meta import Meta
from flambeau.driver.protocol import HostMemory, Kernel, Launch


def _add_body(launch):
    def body(outputs, inputs):
        with np.errstate(all="ignore"):
            np.add(inputs[0], inputs[1], out=outputs[0])

    return body


ADD = Kernel("add", _add_body)
NOTHING = Kernel("nothing", lambda launch: lambda outputs, inputs: None)
SLEEP = Kernel("sleep", lambda launch: lambda outputs, inputs: None, cycles=lambda scalars: scalars[0])


def host(array):
    return HostMemory(address_of(array), array.nbytes, array)


def adder(driver, count=1024, index=0, kernel=ADD):
    meta = Meta.contiguous_of((count,), float32, CPU)
    return driver.load(Launch(kernel, (meta,), (meta, meta)), index)


def upload(driver, array, index=0):
    stream, ptr = driver.stream_default(index), driver.mem_alloc(index, array.nbytes)
    driver.copy_in(ptr, host(array), stream)
    driver.stream_sync(stream)
    return ptr


def download(driver, ptr, count, dtype=np.float32, index=0):
    out = np.empty(count, dtype)
    driver.copy_out(host(out), ptr, driver.stream_default(index))
    return out


def failing(message="index 7 is out of bounds"):
    def body(outputs, inputs):
        raise IndexError(message)

    return Kernel("gather", lambda launch: body)


def busy_program(driver, seen=None):
    """Work on four streams of two devices with some waits between them; calls and sizes vary."""
    seen = [] if seen is None else seen
    streams = [driver.stream_create(i % 2, -(i // 2)) for i in range(4)]
    buffers = [driver.mem_alloc(i, 1 << 20) for i in range(2)]
    adders = [adder(driver, 1 << (8 + 4 * i), i) for i in range(2)]
    pinned = driver.host_alloc(1 << 16)
    for step in range(6):
        for i, stream in enumerate(streams):
            at, ptr = i % 2, buffers[i % 2]
            driver.copy_in(ptr + (step << 16), pinned.part(0, 1 << (10 + i)), stream)
            driver.launch(adders[at], (ptr, ptr, ptr), (), stream)
            driver.host_call(lambda name=(step, i): seen.append(name), stream)
            if (step + i) % 3 == 0:
                event = driver.event_create(at, True)
                driver.event_record(event, stream)
                driver.stream_wait(streams[(i + 1) % 4], event)
        driver.copy(buffers[1], buffers[0], 4096 * (step + 1), streams[step % 4])
        driver.stream_query(streams[0])
    for index in range(2):
        driver.device_sync(index)
    return seen
