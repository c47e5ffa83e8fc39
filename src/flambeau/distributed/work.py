"""`Work`: the result of a collective with `async_op=True`, for which the caller can wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from flambeau.core.errors import RaceError
from flambeau.distributed.backends.communicator import PendingCollective
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.future import Future
from flambeau.runtime import current, system
from flambeau.runtime.streams.event import Event
from flambeau.runtime.streams.stream import Stream
from flambeau.runtime.streams.wait_reason import wait_reason

# seconds that a wait with a limit only polls, and that it sleeps between later polls
_SPIN_S, _PAUSE_S = 2e-3, 5e-5


class Work:
    """A collective operation. Instances of this base class have finished; backends subclass it.

    `results` are the tensors that it writes. A backend implements `_finish` (wait once) and `_test` (poll).
    """

    __module__ = "flambeau.distributed"

    def __init__(self, results: list[Any], source: int = -1) -> None:
        self._results = results
        self._source = source
        self._over = False
        self._error: Exception | None = None
        self._future: Future | None = None
        self.limit: timedelta | None = None  # the limit of a wait without a timeout; None: the group's

    def _finish(self, timeout: timedelta | None) -> None:
        """Wait until the operation has finished. Raises its error."""

    def _test(self) -> bool:
        """Poll the operation. Returns True if it has finished."""
        return True

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the operation has finished. On GPUs the current stream waits, or with `timeout` the host.

        An error of the operation is raised by every call.
        """
        if not self._over:
            try:
                self._finish(self.limit if timeout is None else timeout)
            except Exception as error:
                self._error = error
            self._conclude()
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Return True if the operation has finished, also with an error, which `wait` raises."""
        if not self._over:
            try:
                if self._test():
                    self.wait()
            except RaceError:
                raise
            except Exception as error:
                self._error = error
                self._conclude()
        return self._over

    def is_success(self) -> bool:
        """Return True if the operation has finished without an error."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """Return the error of the operation; None if there is none so far."""
        return self._error

    def source_rank(self) -> int:
        """Return the rank in the group that sent the message.

        Raises:
            RuntimeError: If the work is not a receive.
        """
        if self._source < 0:
            raise RuntimeError(
                "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call."
            )
        self.wait()
        return self._source

    def result(self) -> list[Any]:
        """Return the tensors that it writes."""
        return self._results

    def synchronize(self) -> None:
        """Call `wait`."""
        self.wait()

    def block_current_stream(self) -> None:
        """Make the current stream wait, not the host. On the CPU, the host waits."""
        self.wait()

    def get_future(self) -> Future:
        """Return a future of `result()`."""
        if self._future is None:
            self._future = Future(drive=self.wait)
            if self._over:
                self._settle(self._future)
        return self._future

    def _conclude(self) -> None:
        self._over = True
        if self._future is not None and not self._future.done():
            self._settle(self._future)

    def _settle(self, future: Future) -> None:
        if self._error is None:
            future.set_result(self._results)
        else:
            future.set_exception(self._error)


class Several(Work):
    """A work that combines several works and is finished when all of them are."""

    def __init__(self, works: Sequence[Work]) -> None:
        super().__init__([tensor for work in works for tensor in work.result()])
        self._works = works

    def _finish(self, timeout: timedelta | None) -> None:
        for work in self._works:
            work.wait(timeout)

    def _test(self) -> bool:
        return all(work.is_completed() for work in self._works)


def wait_on_host(work: Event | Stream, timeout: timedelta) -> None:
    """Block the host until a device has reached this point.

    Raises:
        DistBackendError: If a real one has not, in time.
    """
    if system.is_virtual():
        work.synchronize()
        return
    start, limit = time.monotonic(), timeout.total_seconds()
    while not work.query():
        spent = time.monotonic() - start
        if spent > limit:
            raise DistBackendError(f"a collective of GPUs timed out after {round(limit * 1000)}ms")
        time.sleep(0 if spent < _SPIN_S else _PAUSE_S)


class StreamWork(Work):
    """The work of a GPU. It has finished when `event`, recorded after it on `stream`, is done.

    Without an event the collective is in the current stream. `begun` is its entry of the watchdog on real GPUs.
    """

    def __init__(
        self,
        results: list[Any],
        stream: Stream,
        event: Event | None,
        source: int = -1,
        pending: PendingCollective | None = None,
    ) -> None:
        super().__init__(results, source)
        self._stream = stream
        self._event = event
        self._pending = pending

    def wait(self, timeout: timedelta | None = None) -> bool:
        if (error := self.exception()) is not None:
            raise error
        if self._event is not None:
            with wait_reason(str, "collective: the current stream comes after it (Work.wait)"):
                self._event.wait(current.stream_at(self._stream.device_index))
            if timeout is not None:
                wait_on_host(self._event, timeout)
        return True

    def is_completed(self) -> bool:
        return self._stream.query() if self._event is None else self._event.query()

    def exception(self) -> Exception | None:
        return None if self._pending is None else self._pending.error

    def get_future(self) -> Future:
        """Return a future that is done immediately: its tensors are there for streams that wait, as callbacks' do."""
        if self._future is None:
            self._future = Future(stream=self._stream)
            self._future.set_result(self._results)
        return self._future
