"""Batches in pinned memory: `pin_memory`, and the thread that pins while the program computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, Queue
from typing import Any

from flambeau.core.ipc.exception_wrapper import ExceptionWrapper
from flambeau.data.collate import is_named_tuple, like_mapping, like_sequence
from flambeau.runtime import current
from flambeau.tensor.tensor import Tensor

# Note [Who pins]
# On real GPUs a thread pins the batches of worker processes as they arrive. On virtual GPUs the program's own
# thread does, when it takes a batch: the host's scheduler decides when they arrive, and driver calls in an order that
# differs between runs would make runs that do not repeat, and the race detector's certificate conditional. There is
# nothing to win either: host time costs nothing on virtual GPUs.


def pin_memory(data: Any) -> Any:
    """Return `data` with its tensors in pinned memory. An object with a method `pin_memory()` pins itself."""
    if isinstance(data, Tensor) or hasattr(data, "pin_memory"):
        return data.pin_memory()
    if isinstance(data, (str, bytes)):
        return data
    if isinstance(data, Mapping):
        return like_mapping(data, {key: pin_memory(value) for key, value in data.items()})
    if is_named_tuple(data):
        return type(data)(*map(pin_memory, data))
    if isinstance(data, tuple):
        return [pin_memory(value) for value in data]
    if isinstance(data, Sequence):
        return like_sequence(data, [pin_memory(value) for value in data])
    return data


def pin_result(result: Any, where: str) -> Any:
    """Return a worker's result in pinned memory. If pinning fails, return the wrapped exception."""
    if isinstance(result, ExceptionWrapper):
        return result
    try:
        return pin_memory(result)
    except Exception:
        return ExceptionWrapper(where=where)


class Pinner:
    """A thread that calls `receive` and pins the results. Its errors are raised by `Pinner.receive`.

    Args:
        receive: Returns `(index, result)`; raises at the end.
        device: Index of the CUDA device that is current for the user of the results.
    """

    def __init__(self, receive: Callable[[], tuple[int, Any]], device: int) -> None:
        self._receive = receive
        self._device = device
        self._pinned: Queue[tuple[int, Any] | BaseException] = (
            Queue()
        )  # whose hand-overs a race detector sees
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="flambeau-pin-memory").start()

    def receive(self, timeout: float = 0) -> tuple[int, Any] | None:
        """Return the next result, pinned; None after `timeout` seconds (0 for no limit). Raises the exception of
        `receive`.
        """
        try:
            found = self._pinned.get(timeout=timeout or None)
        except Empty:
            return None
        if isinstance(found, BaseException):
            self._pinned.put(found)  # the thread has ended: the next call must raise the same error
            raise found
        return found

    def join(self) -> None:
        """Wait until the thread has done its work, after `receive` has raised.

        This does not wait for the thread's end: a finalizer may call this during `threading.enumerate`, whose lock a
        thread needs in order to end.
        """
        self._ended.wait()

    def _run(self) -> None:
        current.local.device = self._device
        where = f"in pin memory thread for device {self._device}"
        try:
            while True:
                index, result = self._receive()
                self._pinned.put((index, pin_result(result, where)))
        except BaseException as error:
            self._pinned.put(error)
        finally:
            self._ended.set()
