"""The streams of real GPUs, by their handles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cuda.bindings import driver as cu

from flambeau.core.errors import DriverError
from flambeau.driver.cuda.device.calls import check
from flambeau.driver.cuda.device.capture import UNSUPPORTED
from flambeau.driver.cuda.device.contexts import Contexts
from flambeau.driver.cuda.device.device import CudaDevice

_NON_BLOCKING = int(cu.CUstream_flags.CU_STREAM_NON_BLOCKING)


class CudaStream:
    """A stream: its native object and address, its device, and whether it is the default stream or belongs to another
    library.
    """

    __slots__ = ("borrowed", "default", "device", "handle", "native", "native_address")

    def __init__(
        self, handle: int, native: Any, device: CudaDevice, default: bool = False, borrowed: bool = False
    ) -> None:
        self.handle = handle
        self.borrowed = borrowed
        self.native, self.native_address = native, int(native)
        self.device = device
        self.default = default


class CudaStreams:
    """The streams of one driver.

    Attributes:
        queues: Handle -> stream. The dictionary object never changes; launchers keep it.
        stopped: Handle -> stream whose device had a failed assertion and runs nothing more.
    """

    def __init__(self, contexts: Contexts, handles: Iterator[int], raised: list[BaseException]) -> None:
        self.queues = {
            1 + d.index: CudaStream(1 + d.index, cu.CUstream(0), d, default=True) for d in contexts.devices
        }
        self.stopped: dict[int, CudaStream] = {}
        self._contexts, self._handles = contexts, handles
        # bound here because most calls read them
        self._several, self._thread = contexts.several, contexts.thread
        self._raised = raised  # errors of host functions, which the next wait raises

    def find(self, stream: int) -> CudaStream:
        """Return the stream of a handle, and make its device's context current.

        Raises:
            DriverError: If the stream does not exist, or its device stopped at a failed assertion.
        """
        found = self.queues.get(stream)
        if found is None:
            self._contexts.check_open()
            if stream in self.stopped:
                device = self.stopped[stream].device
                raise device.assertions.error(device.index)
            raise DriverError(f"{stream} is not a stream of the cuda driver, or was destroyed")
        if self._several or not self._thread.entered:
            self._contexts.enter(found.device)
        return found

    def of(self, device: CudaDevice) -> list[CudaStream]:
        """Return the streams of a device, including those that stopped after a failed assertion."""
        return [queue for queue in (*self.queues.values(), *self.stopped.values()) if queue.device is device]

    def create(self, device: CudaDevice, priority: int) -> int:
        """Create a stream. Returns its handle."""
        self._contexts.enter(device)
        native = check(cu.cuStreamCreateWithPriority(_NON_BLOCKING, priority))
        handle = next(self._handles)
        self.queues[handle] = CudaStream(handle, native, device)
        return handle

    def adopt(self, device: CudaDevice, native: int) -> int:
        """Return the handle of a stream that another library may have created."""
        for queue in list(self.queues.values()):
            if queue.device is device and int(queue.native) == native:
                return queue.handle
        handle = next(self._handles)
        self.queues[handle] = CudaStream(handle, cu.CUstream(native), device, borrowed=True)
        return handle

    def destroy(self, stream: int) -> None:
        """Destroy a stream that `create` returned.

        Raises:
            DriverError: If it is another stream, or a capture uses it.
        """
        queue = self.find(stream)
        if queue.default:
            raise DriverError("stream_destroy: the default stream stays")
        if queue.borrowed:
            raise DriverError("stream_destroy: the stream is another library's")
        if stream in queue.device.captures:
            raise DriverError(UNSUPPORTED)
        queue.device.drop_scratch(stream, queue.native)
        check(cu.cuStreamDestroy(queue.native))
        del self.queues[stream]

    def native_of(self, stream: int) -> int:
        """Return the CUstream of a handle."""
        return int(self.queues[stream].native) if stream in self.queues else int(self.find(stream).native)

    def raise_late(self, device: CudaDevice) -> None:
        """Raise the errors of assertions in kernels and of host functions, after the device's work is done."""
        if device.assertions.words[0]:
            for queue in [queue for queue in list(self.queues.values()) if queue.device is device]:
                self.stopped[queue.handle] = queue
                self.queues.pop(queue.handle, None)  # without an error if another thread has removed it
            raise device.assertions.error(device.index)
        if self._raised:
            raise self._raised.pop(0)
