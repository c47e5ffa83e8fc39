"""`Channel`: messages between two processes, whose tensors and arrays are in shared memory.

# Note [How batches travel]
A message is pickled with its buffers out of band. A small one is sent through the socket. A large one is written once
to anonymous memory (memfd on Linux, a deleted file elsewhere), whose descriptor is sent; the receiver maps it and uses
it
in place. No process owns such memory or has to clean it up: the system frees it with its last mapping, even if
processes are killed. It needs no room in /dev/shm, which is small in containers, but counts as memory of the processes
that use it.

The receiver owns what it receives. All tensors of a message live as long as one of them, and those in shared memory
cannot be resized beyond their size, as in PyTorch.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
from contextlib import suppress
from multiprocessing import reduction
from socket import SHUT_RDWR, socket
from typing import Any

from flambeau.core.device import CPU
from flambeau.core.dtype import dtype, uint8
from flambeau.core.ipc.shared_memory import anonymous
from flambeau.core.meta import Meta
from flambeau.tensor.exchange.interop import numpy
from flambeau.tensor.exchange.pickling import row_of, storage_of
from flambeau.tensor.exchange.sharing import NON_LEAF
from flambeau.tensor.storage import Storage
from flambeau.tensor.storages import over_storage
from flambeau.tensor.tensor import Tensor, make

_INLINE = 32 << 10  # bytes that go through the socket
_ALIGNMENT = 64
_CHUNK = 1 << 30  # the largest number of bytes of one write call


class Channel:
    """One end of a `multiprocessing.Pipe`. One thread may send while another receives."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            OSError: If the other end is closed. Errors of pickling are raised before anything is sent.
        """
        data, buffers = _pickle(message)
        sizes = [len(data), *[b.nbytes for b in buffers]]
        if sum(sizes) <= _INLINE:
            self.connection.send_bytes(pickle.dumps((data, [b.tobytes() for b in buffers])))
            return
        fd = _write_anonymous([data, *buffers])
        try:
            self.connection.send_bytes(pickle.dumps(sizes))
            reduction.send_handle(self.connection, fd, 0)
        finally:
            os.close(fd)

    def receive(self) -> Any:
        """Return the next message.

        Raises:
            EOFError or OSError: If the other end is closed.
        """
        found = pickle.loads(self.connection.recv_bytes())
        if isinstance(found, tuple):
            data, buffers = found
            return pickle.loads(data, buffers=buffers)
        parts = _map_parts(reduction.recv_handle(self.connection), found)
        return pickle.loads(parts[0], buffers=parts[1:])

    def hang_up(self) -> None:
        """Shut down the connection at both ends, even if other processes hold copies of this end."""
        if not self.connection.closed:
            with suppress(OSError), socket(fileno=os.dup(self.connection.fileno())) as line:
                line.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Close this end. The call is idempotent."""
        self.connection.close()


def _pickle(message: Any) -> tuple[bytes, list[memoryview]]:
    """Return the pickle of a message, and separately the buffers of its tensors and arrays."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, 5, True, buffers.append).dump(message)
    return file.getvalue(), [b.raw() for b in buffers]


class _Pickler(reduction.ForkingPickler):
    """A pickler that sends the bytes of a tensor's elements instead of its whole storage."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Storage):
            return obj.__reduce_ex__(5)
        if not isinstance(obj, Tensor):
            return NotImplemented
        if obj.requires_grad and not obj.is_leaf:
            raise RuntimeError(NON_LEAF)
        if type(obj) is not Tensor or obj.__dict__ or obj.requires_grad or obj.meta.device is not CPU:
            return obj.__reduce_ex__(5)  # by way of its data
        shown = obj if obj.meta.span <= 2 * obj.meta.nbytes else obj.contiguous()
        meta = shown.meta
        span = make(Meta.contiguous_of((meta.span,), uint8, CPU), shown.memory, shown.ptr)
        array: Any = numpy(span)
        return tensor_of, (pickle.PickleBuffer(array), meta.dtype, meta.shape, meta.strides)


def tensor_of(data: Any, kind: dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    """Return a tensor over `data`, which holds the bytes from the tensor's first element to its last."""
    return over_storage(row_of(storage_of(data, "cpu")), kind, 0, shape, strides)


# -- shared memory ----------------------------------------------------------------------------------------


def _write_anonymous(parts: list[Any]) -> int:
    """Return a descriptor of anonymous memory that holds the parts. Raises OSError if there is no room."""
    fd = anonymous(0)
    try:
        for part, end in zip(parts, _ends([len(part) for part in parts]), strict=True):
            _write(fd, memoryview(part), end - len(part))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, data: memoryview, at: int) -> None:
    """Write all of it: with `write` a full memory is an error, where a mapping would be a signal."""
    while len(data):
        n = os.pwrite(fd, data[:_CHUNK], at)
        data, at = data[n:], at + n


def _map_parts(fd: int, sizes: list[int]) -> list[memoryview]:
    """Return the parts in the memory of a descriptor, which is closed. They keep the memory."""
    ends = _ends(sizes)
    try:
        memory = memoryview(mmap.mmap(fd, ends[-1]))
    finally:
        os.close(fd)
    return [memory[end - n : end] for end, n in zip(ends, sizes, strict=True)]


def _ends(sizes: list[int]) -> list[int]:
    """Return the positions at which parts of these sizes end. Each part begins at a multiple of the alignment."""
    ends, at = [], 0
    for n in sizes:
        at = -(-at // _ALIGNMENT) * _ALIGNMENT + n
        ends.append(at)
    return ends
