"""`Future`: a value that is set later. For GPUs it is valid on the stream that waits for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from typing import Any, Generic, TypeVar

from flambeau.core.errors import RaceError
from flambeau.core.host.turn_scheduler import seat
from flambeau.runtime import current
from flambeau.runtime.streams.event import Event
from flambeau.runtime.streams.stream import Stream

T = TypeVar("T")


class Future(Generic[T]):
    """The result of an asynchronous operation, PyTorch's `torch.futures.Future`.

    Callbacks run with `stream` as the current stream. `wait` makes the caller's current stream wait for it, not the
    host.

    Args:
        stream: The stream on which the value's tensors are written.
        drive: Function that completes the future for a caller that waits.
    """

    __module__ = "flambeau.futures"

    def __init__(
        self, *, devices: Any = None, stream: Stream | None = None, drive: Callable[[], None] | None = None
    ) -> None:
        self._stream = stream
        self._drive = drive
        self._event: Event | None = None
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future[T]], None]] = []
        self._changed = threading.Condition()

    def done(self) -> bool:
        """Return True if it has a value, or an error. Its tensors may still be computed."""
        return self._done

    def wait(self) -> T:
        """Return the value once it is set, or raise its error. The current stream waits for the value's tensors."""
        self._settle()
        return self.value()

    def value(self) -> T:
        """Return the value.

        Raises:
            RuntimeError: If it is not there yet; or the error that took its place.
        """
        if not self._done:
            raise RuntimeError(
                "Waiting is required before value() can be called on a Future that is not done"
            )
        if self._error is not None:
            raise self._error
        if self._event is not None and self._stream is not None:
            self._event.wait(current.stream_at(self._stream.device_index))
        return self._value

    def then(self, callback: Callable[[Future[T]], Any]) -> Future[Any]:
        """Return a future of the result of `callback(self)`, which is called once this future is done."""
        child: Future[Any] = Future(stream=self._stream, drive=self._settle)
        self.add_done_callback(lambda parent: child._run(callback, parent))
        return child

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Call `callback(self)` once the future is done, in the order of additions; immediately if it is done.

        An exception of the callback is printed, as in PyTorch, so that the other callbacks run.
        """
        with self._changed:
            if not self._done:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def set_result(self, result: Any) -> None:
        """Set the value.

        Raises:
            RuntimeError: If it has one.
        """
        self._finish(result, None)

    def set_exception(self, result: BaseException) -> None:
        """Set an error instead of a value."""
        if not isinstance(result, Exception):
            raise AssertionError(f"{result} is of type {type(result)}, not an Exception.")
        self._finish(None, result)

    def _finish(self, value: Any, error: BaseException | None) -> None:
        with self._changed:
            if self._done:
                raise RuntimeError(
                    "Attempting to mark a completed Future as complete again. Note that a Future can only be marked "
                    "completed once."
                )
            if self._stream is not None:
                self._event = self._stream.record_event()
            self._value, self._error, self._done = value, error, True
            callbacks, self._callbacks = self._callbacks, []
            self._changed.notify_all()
        for callback in callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[Future[T]], None]) -> None:
        try:
            callback(self)
        except RaceError:
            raise
        except Exception as error:
            print(_text(error), file=sys.stderr)

    def _run(self, callback: Callable[[Future[Any]], Any], parent: Future[Any]) -> None:
        """Set the result of a callback of the parent future, run on its stream."""
        with self._stream if self._stream is not None else nullcontext():
            try:
                result = callback(parent)
            except Exception as error:  # the error is the child future's
                self._finish(None, _wrap_error(error))
                if isinstance(error, RaceError):
                    raise
                return
        self._finish(result, None)

    def _settle(self) -> None:
        """Block until the future is done."""
        if not self._done and self._drive is not None:
            self._drive()
        if self._done:
            return
        mine = seat()
        if mine is not None:
            mine.wait(self.done, lambda: "waits for a Future that has not been completed")
            return
        with self._changed:
            self._changed.wait_for(self.done)


def _wrap_error(error: Exception) -> RuntimeError:
    """Return a callback's exception as PyTorch passes it on: as a RuntimeError."""
    if isinstance(error, RuntimeError):
        return error
    wrapper = RuntimeError(_text(error))
    wrapper.__cause__ = error
    return wrapper


def _text(error: Exception) -> str:
    return f"Got the following error when running the callback: {type(error).__name__}: {error}"


def collect_all(futures: list[Future[Any]]) -> Future[list[Future[Any]]]:
    """Return a future that completes when all `futures` have, with their list as value.

    If any of them failed, its error is the error of the first failed future in the list.
    """
    result: Future[list[Future[Any]]] = Future(drive=lambda: [f._settle() for f in futures] and None)
    numbers = count(1)  # unique numbers, because several threads may finish futures concurrently

    def over(_: Future[Any]) -> None:
        if next(numbers) == len(futures):
            result._finish(futures, next((f._error for f in futures if f._error is not None), None))

    if not futures:
        result.set_result([])
    for future in futures:
        future.add_done_callback(over)
    return result


def wait_all(futures: list[Future[Any]]) -> list[Any]:
    """Return the values of these futures, in their order. Blocks until all are done; raises the first error."""
    return [future.wait() for future in collect_all(futures).wait()]
