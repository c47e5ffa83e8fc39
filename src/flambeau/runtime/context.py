"""`Context`: one device as the runtime uses it: its driver, its allocator, its default stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from flambeau.core.device import device
from flambeau.driver.api import Driver
from flambeau.runtime.streams.stream_order import StreamClocks

if TYPE_CHECKING:
    from flambeau.runtime.streams.stream import Stream


class Block(Protocol):
    """A piece of memory that an allocator handed out."""

    ptr: int
    size: int
    stream: int  # the handle of the stream that it belongs to


class Allocator(Protocol):
    """What a storage needs of an allocator. `free` may run in any thread, at any time (a destructor)."""

    def allocate(self, nbytes: int, stream: Stream, /) -> Block: ...
    def allocate_output(self, nbytes: int, stream: Stream, /) -> Block:
        """The same, for the next launch, which writes it."""

    def free(self, block: Any, /) -> None:
        """Take back a block that `allocate` returned."""

    def share(self, block: Any, /) -> None:
        """Another stream than its own uses the block."""

    def stream_created(self) -> None:
        """A stream was made."""

    def stream_destroyed(self, handle: int, /) -> None:
        """A stream was destroyed: nothing will be allocated for it any more."""


class Context:
    """A device that is in use. `index` is the CUDA index, -1 for the CPU (see `runtime/current.py`).

    `driver_index` is the index that `driver` knows the device by: CUDA_VISIBLE_DEVICES may leave out and
    reorder devices. While its machine rests `driver` refuses every call (see Note [Machines] in system.py);
    `backing` is the driver that destructors and allocators go to meanwhile. `closed` is set when it closes.
    """

    __slots__ = (
        "__weakref__", "allocator", "backing", "clock", "closed", "dead_streams", "default_stream", "device", "driver",
        "driver_index", "index", "orders", "policy",
    )  # fmt: skip

    allocator: Allocator
    default_stream: Stream

    def __init__(
        self,
        device: device,
        index: int,
        driver: Driver,
        driver_index: int,
        orders: StreamClocks | None = None,
    ) -> None:
        self.device = device
        self.index = index
        self.driver = self.backing = driver
        self.driver_index = driver_index
        self.orders = StreamClocks() if orders is None else orders  # one for all devices of a machine
        self.clock: Callable[[], int] = time.monotonic_ns  # for what is recorded; simulated on virtual GPUs
        self.closed = False
        self.policy: Any = None  # how random kernels deal draws on this device, once one asks
        self.dead_streams: list[int] = []  # handles to destroy, see Note [Dead streams]

    def synchronize(self) -> None:
        """Wait for all work of the device. What the host does next comes after it."""
        tick = self.orders.device_mark()
        self.driver.device_sync(self.driver_index)
        self.orders.device_wait(self.index, tick)

    def rest(self, why: str) -> None:
        """Another machine is in use: each use raises RuntimeError with `why`; what dies is freed as ever."""
        self.driver = cast(Driver, _Refusing(why))

    def resume(self) -> None:
        """Its machine is in use again."""
        self.driver = self.backing

    def close(self, why: str) -> None:
        """Mark it closed: each use raises RuntimeError with `why`; what outlives it is freed quietly."""
        self.closed = True
        self.driver = self.backing = cast(Driver, _Refusing(why))
        self.allocator = _ClosedAllocator(why)


class _Refusing:
    """The driver of a device that is not in use."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(self._why)


class _ClosedAllocator:
    """The allocator of a closed device: there is nothing to give back, and nothing to be had."""

    def __init__(self, why: str) -> None:
        self._why = why

    def allocate(self, nbytes: int, stream: Stream) -> Block:
        raise RuntimeError(self._why)

    allocate_output = allocate

    def record_stream(self, block: Block, stream: Stream) -> None:
        raise RuntimeError(self._why)

    def share(self, block: Block) -> None:
        pass

    def stream_created(self) -> None:
        pass

    def stream_destroyed(self, handle: int) -> None:
        pass

    def free(self, block: Block) -> None:
        pass
