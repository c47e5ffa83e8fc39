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
# thread does, when it takes a batch: arrival is up to the host's scheduler, and whatever calls the driver in an
# order of its own would make runs that do not repeat, and the race detector's certificate conditional. There is
# nothing to win either: host time costs nothing on virtual GPUs.


def pin_memory(data: Any) -> Any:
    """Return `data` with its tensors in pinned memory. What has a `pin_memory()` method is asked to do so itself."""
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
    """Return a worker's result in pinned memory; where that fails, the wrapped exception."""
    if isinstance(result, ExceptionWrapper):
        return result
    try:
        return pin_memory(result)
    except Exception:
        return ExceptionWrapper(where=where)


class Pinner:
    """A thread that takes results from `receive` and pins them. Its errors come out where results do.

    Args:
        receive: gives `(index, result)`; raises when there is no more to come.
        device: the index of the CUDA device that is current where the results are used.
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
        """Return the next result, pinned; None if there is none for `timeout` seconds (0: however long it takes).

        Raises what `receive` raised.
        """
        try:
            found = self._pinned.get(timeout=timeout or None)
        except Empty:
            return None
        if isinstance(found, BaseException):
            self._pinned.put(found)  # the thread is gone: whoever asks again hears the same
            raise found
        return found

    def join(self) -> None:
        """Wait until the thread has done its work, once `receive` raises.

        Not for its end: a finalizer may call this amid `threading.enumerate`, whose lock a thread needs to end.
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
