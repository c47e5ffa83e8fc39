"""`Context`: the runtime's state for one device: its driver, allocator and default stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

from flambeau.core.device import device
from flambeau.driver.protocol import Driver
from flambeau.runtime.streams.stream_order import StreamClocks

if TYPE_CHECKING:
    from flambeau.runtime.streams.stream import Stream


class AllocatedBlock(Protocol):
    """A piece of memory that an allocator allocated."""

    ptr: int
    size: int
    stream: int  # the handle of the block's stream


class Allocator(Protocol):
    """The protocol by which a storage uses an allocator. Any thread may call `free` at any time, from a destructor."""

    def allocate(self, nbytes: int, stream: Stream, /) -> AllocatedBlock: ...
    def allocate_output(self, nbytes: int, stream: Stream, /) -> AllocatedBlock:
        """Allocate a block for the next launch, which overwrites all of it."""

    def free(self, block: Any, /) -> None:
        """Free a block that `allocate` returned."""

    def share(self, block: Any, /) -> None:
        """Record that a stream other than the block's own uses the block."""

    def stream_created(self) -> None:
        """Do nothing: as a subscriber of the streams, a context needs to act on their destruction only."""

    def stream_destroyed(self, handle: int, /) -> None:
        """Handle the destruction of a stream: later requests cannot name it."""


class Context:
    """An open device. `index` is the CUDA index, -1 for the CPU (see `runtime/current.py`).

    `driver_index` is the driver's own index of the device: CUDA_VISIBLE_DEVICES may leave out and reorder
    devices. While the machine is suspended, `driver` refuses every call (see Note [Machines] in system.py);
    destructors and allocators use `backing`. `closed` is True after the device closed.
    """

    __slots__ = (
        "__weakref__", "allocator", "backing", "clock", "closed", "dead_streams", "default_stream", "device", "driver",
        "driver_index", "index", "orders", "policy", "rounds_to_tf32",
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
        self.orders = StreamClocks() if orders is None else orders  # shared by all devices of a machine
        # time of recorded events; simulated on virtual GPUs
        self.clock: Callable[[], int] = time.monotonic_ns
        self.closed = False
        self.rounds_to_tf32 = False  # True once a product of float32 was planned that rounds its operands
        # the distribution of random numbers over threads on this device; None until a random kernel runs
        self.policy: Any = None
        self.dead_streams: list[int] = []  # handles to destroy, see Note [Dead streams]

    def synchronize(self) -> None:
        """Wait for all work of the device, and record that the host's next actions happen after it."""
        tick = self.orders.device_mark()
        self.driver.device_sync(self.driver_index)
        self.orders.device_wait(self.index, tick)

    def rest(self, why: str) -> None:
        """Suspend the context: each use raises RuntimeError with the message `why`; destructors still free memory."""
        self.driver = cast(Driver, _Refusing(why))

    def resume(self) -> None:
        """Resume the context of a suspended machine."""
        self.driver = self.backing

    def close(self, why: str) -> None:
        """Close the context: each later use raises RuntimeError with the message `why`. Destructors then free
        nothing.
        """
        self.closed = True
        self.driver = self.backing = cast(Driver, _Refusing(why))
        self.allocator = _ClosedAllocator(why)


class _Refusing:
    """The driver of a closed or suspended device, which refuses every call."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise RuntimeError(self._why)


class _ClosedAllocator:
    """The allocator of a closed device. It allocates and frees nothing."""

    def __init__(self, why: str) -> None:
        self._why = why

    def allocate(self, nbytes: int, stream: Stream) -> AllocatedBlock:
        raise RuntimeError(self._why)

    allocate_output = allocate

    def record_stream(self, block: AllocatedBlock, stream: Stream) -> None:
        raise RuntimeError(self._why)

    def share(self, block: AllocatedBlock) -> None:
        pass

    def stream_created(self) -> None:
        pass

    def stream_destroyed(self, handle: int) -> None:
        pass

    def free(self, block: AllocatedBlock) -> None:
        pass
