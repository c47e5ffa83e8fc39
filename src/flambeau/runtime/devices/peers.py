"""`direct`: whether two devices' memories may be copied between directly. Owner of the table of pairs.

# Note [The canary of peer copies]
Some machines (virtualized ones, PCIe switches with access control) let GPUs enable peer access and then deliver wrong
bytes. So the first time that a pair of devices copies, a pattern goes there and back and is compared. Where it
arrives changed, the pair's copies go through pinned host memory from then on, with a warning. The pattern has separate
streams and memory, so the program's work is neither waited for nor counted. FLAMBEAU_PEER_CANARY=1 or 0 says whether
to look; by default on real GPUs. A virtual GPU delivers what it was given, unless a test puts a fault in.
"""

from __future__ import annotations

import threading
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from flambeau.core.callsite import warn_program
from flambeau.core.errors import OutOfMemoryError
from flambeau.core.host_arrays import array_at
from flambeau.driver.protocol import Driver, HostMemory
from flambeau.runtime import system
from flambeau.runtime.device_context import Context
from flambeau.runtime.devices import configuration

NBYTES = 1 << 16  # bytes of the pattern
UNKNOWN, DIRECT, HOST, CORRUPT = "not used yet", "direct", "through the host", "corrupt, so through the host"

_pairs: dict[tuple[Context, Context], str] = {}
_buffers: dict[
    Context, int
] = {}  # device -> address of its pattern, never freed, because a free would wait for the device
_pinned: WeakKeyDictionary[Driver, HostMemory] = WeakKeyDictionary()  # driver -> pinned host buffer
_lock = threading.Lock()


def direct(giver: Context, taker: Context, look: bool = False) -> bool:
    """Return True if the driver may copy from one device to another. The first use of a pair enables peer access.

    Returns False only if the driver's copies arrived changed. `look` forces the check whatever the settings are.
    See Note [The canary of peer copies].
    """
    found = None if look else _pairs.get((giver, taker))
    return (found if found is not None else _meet(giver, taker, look)) is not CORRUPT


def state(giver: Context, taker: Context) -> str:
    """Return the known state of a pair, as text."""
    return _pairs.get((giver, taker), UNKNOWN)


def _meet(giver: Context, taker: Context, look: bool) -> str:
    with _lock:
        found = _pairs.get((giver, taker))
        if found is CORRUPT or (found is not None and not look):
            return found
        if not _enable(giver, taker):
            found = HOST
        elif not (look or configuration.peer_canary(giver.driver.name)):
            found = DIRECT
        else:
            try:
                wrong = _wrong_bytes(giver, taker) + _wrong_bytes(taker, giver)
            except OutOfMemoryError:
                return CORRUPT  # the result is unknown: copy through the host now, and check again later
            found = CORRUPT if wrong else DIRECT
        _pairs[giver, taker] = _pairs[taker, giver] = found
    if found is CORRUPT:
        _warn(giver, taker, wrong)
    return found


def _enable(giver: Context, taker: Context) -> bool:
    """Let each device access the other's memory. Returns False if there is no access."""
    pairs = [(giver, taker), (taker, giver)]
    able = [pair for pair in pairs if pair[0].driver.peer_can(pair[0].driver_index, pair[1].driver_index)]
    for one, other in able:
        one.driver.peer_enable(one.driver_index, other.driver_index)
    return bool(able)


def _wrong_bytes(giver: Context, taker: Context) -> int:
    """Copy the pattern from one device to the other. Returns the number of bytes that differ at the target."""
    driver = giver.driver
    near, far = _buffer(giver), _buffer(taker)
    memory = _pinned.get(driver)
    if memory is None:
        memory = _pinned[driver] = driver.host_alloc(2 * NBYTES)
    sent, received = memory.part(0, NBYTES), memory.part(NBYTES, NBYTES)
    streams = [context.driver.stream_create(context.driver_index, 0) for context in (giver, taker)]
    try:
        _window(sent)[...] = np.arange(NBYTES, dtype=np.uint32) * np.uint32(2654435761) >> np.uint32(24)
        driver.host_touch(memory.ptr, memory.nbytes, True)
        driver.copy_in(near, sent, streams[0])
        driver.copy(far, near, NBYTES, streams[0])
        driver.stream_sync(streams[0])
        driver.copy_out(received, far, streams[1])
        driver.stream_sync(streams[1])
        driver.host_touch(memory.ptr, memory.nbytes, False)
        return int(np.count_nonzero(_window(sent) != _window(received)))
    finally:
        for stream in streams:
            driver.stream_destroy(stream)


def _window(memory: HostMemory) -> np.ndarray[Any, Any]:
    return array_at(memory.ptr, (memory.nbytes,), np.dtype(np.uint8))


def _buffer(context: Context) -> int:
    found = _buffers.get(context)
    if found is None:
        found = _buffers[context] = context.driver.mem_alloc(context.driver_index, NBYTES)
    return found


def _warn(giver: Context, taker: Context, wrong: int) -> None:
    warn_program(
        f"{giver.device} and {taker.device} can reach each other's memory, but {wrong} of {2 * NBYTES} bytes of a test "
        "pattern arrived changed: copies between them go through host memory in this process, which is slower. On "
        "virtualized machines and behind PCIe switches with access control (ACS) peer copies are known to fail so; "
        "`flambeau doctor` shows which pairs do.",
        RuntimeWarning,
    )


def _forget_closed() -> None:
    """Remove the pairs of closed machines; a suspended machine keeps its pairs."""
    for pair in [pair for pair in _pairs if pair[0].closed]:
        del _pairs[pair]
    for context in [c for c in _buffers if c.closed]:
        del _buffers[context]


system.on_close(_forget_closed)
