"""torch.utils.benchmark: times of statements, with waits for CUDA devices. Times are wall-clock times."""

from __future__ import annotations

import timeit
from collections.abc import Sequence
from statistics import mean, median, quantiles
from time import perf_counter
from typing import Any

from flambeau.core.absent import absent_class
from flambeau.core.public_names import explain_absent_names
from flambeau.runtime import system

__all__ = ["CallgrindStats", "Compare", "Measurement", "Timer", "timer"]

_UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))


def timer() -> float:
    """Wait for all work of all CUDA devices, then return the wall-clock time in seconds."""
    for context in system.contexts() if system.is_initialized() else ():
        context.synchronize()
    return perf_counter()


class Measurement:
    """The times of one statement.

    Attributes:
        number_per_run: How often each run executed the statement.
        raw_times: Seconds of each run.
        times: Seconds of one execution, for each run.
        mean, median, iqr: Mean, median and interquartile range of `times`.
    """

    def __init__(self, number_per_run: int, raw_times: Sequence[float], title: str = "") -> None:
        self.number_per_run = number_per_run
        self.raw_times = list(raw_times)
        self.title = title

    @property
    def times(self) -> list[float]:
        return [time / self.number_per_run for time in self.raw_times]

    @property
    def mean(self) -> float:
        return mean(self.times)

    @property
    def median(self) -> float:
        return median(self.times)

    @property
    def iqr(self) -> float:
        if len(self.times) < 2:
            return 0.0
        first, _, third = quantiles(self.times, n=4, method="inclusive")
        return third - first

    def __repr__(self) -> str:
        unit, size = next((entry for entry in _UNITS if self.median >= entry[1]), _UNITS[-1])
        runs = f"{len(self.raw_times)} measurement{'s'[: len(self.raw_times) != 1]}"
        return (
            f"<{__name__.replace('flambeau', 'torch', 1)}.Measurement object at {id(self):#x}>\n{self.title}\n"
            f"  {self.median / size:.2f} {unit}\n  {runs}, {self.number_per_run} runs per measurement"
        )


class Timer:
    """A statement to time, like `timeit.Timer`. Its times include the work that the statement enqueues on CUDA devices.

    Args:
        stmt: The statement.
        setup: What runs once before each measurement.
        timer: Returns the time in seconds.
        globals: The names that the statement uses.
        label, sub_label, description, env: Text for reports.
        num_threads: As in PyTorch. Flambeau does not change the number of threads: only 1 is accepted.
        language: "python". Statements in C++ raise NotImplementedError.

    Example:
        >>> torch.utils.benchmark.Timer("x @ x", globals={"x": torch.ones(64, 64)}).timeit(10)
    """

    def __init__(
        self,
        stmt: str = "pass",
        setup: str = "pass",
        global_setup: str = "",
        timer: Any = timer,
        globals: dict[str, Any] | None = None,
        label: str | None = None,
        sub_label: str | None = None,
        description: str | None = None,
        env: str | None = None,
        num_threads: int = 1,
        language: Any = "python",
    ) -> None:
        if global_setup or getattr(language, "value", language) not in (0, "python", "Python", "py"):
            raise NotImplementedError("Timer: only Python statements are timed; Flambeau compiles no C++")
        if num_threads != 1:
            raise NotImplementedError(
                f"Timer(num_threads={num_threads}): Flambeau sets no number of threads; set OPENBLAS_NUM_THREADS"
            )
        self._timer = timeit.Timer(stmt, setup, timer, globals=globals)
        self._title = "\n".join(filter(None, (label or stmt, sub_label, description, f"setup: {setup}", env)))

    def timeit(self, number: int = 1_000_000) -> Measurement:
        """Run the statement `number` times, after some to warm up."""
        self._timer.timeit(max(number // 100, 2))
        return Measurement(number, [self._timer.timeit(number)], self._title)

    def repeat(self, repeat: int = -1, number: int = -1) -> None:
        raise NotImplementedError("See `Timer.blocked_autorange.`")

    def autorange(self, callback: Any = None) -> None:
        raise NotImplementedError("See `Timer.blocked_autorange.`")

    def blocked_autorange(self, callback: Any = None, min_run_time: float = 0.2) -> Measurement:
        """Run the statement in blocks until `min_run_time` seconds have passed.

        Args:
            callback: Called with the size of each block and its seconds.
            min_run_time: How many seconds to measure.
        """
        number = self._block_size(min_run_time)
        times: list[float] = []
        while not times or sum(times) < min_run_time:
            times.append(self._timer.timeit(number))
            if callback is not None:
                callback(number, times[-1])
        return Measurement(number, times, self._title)

    def adaptive_autorange(
        self,
        threshold: float = 0.1,
        *,
        min_run_time: float = 0.01,
        max_run_time: float = 10.0,
        callback: Any = None,
    ) -> Measurement:
        """Run the statement in blocks until the interquartile range is below `threshold` of the median."""
        number = self._block_size(0.05)
        times: list[float] = []
        while True:
            times.append(self._timer.timeit(number))
            if callback is not None:
                callback(number, times[-1])
            measured, spent = Measurement(number, times, self._title), sum(times)
            steady = len(times) > 3 and measured.iqr <= threshold * measured.median
            if spent >= max_run_time or (spent >= min_run_time and steady):
                return measured

    def collect_callgrind(self, *args: Any, **given: Any) -> None:
        raise NotImplementedError("Timer.collect_callgrind: Flambeau counts no instructions; use `timeit`")

    def _block_size(self, min_run_time: float) -> int:
        """Return how many executions take a thousandth of the time to measure, at least one."""
        number = 1
        while (spent := self._timer.timeit(number)) < min_run_time / 1000:
            number = number * 10 if spent <= 0 else max(number * 2, int(number * min_run_time / 1000 / spent))
        return number


class Compare:
    """A table of measurements."""

    def __init__(self, results: Sequence[Measurement]) -> None:
        self._results = list(results)

    def extend_results(self, results: Sequence[Measurement]) -> None:
        """Add measurements."""
        self._results.extend(results)

    def print(self) -> None:
        """Print the table."""
        print(self)

    def __str__(self) -> str:
        titles = [result.title.splitlines()[0] for result in self._results]
        width = max(map(len, titles), default=0)
        rows = [
            f"{title:<{width}}  {r.median * 1e6:12.1f}"
            for title, r in zip(titles, self._results, strict=True)
        ]
        return "\n".join([f"{'':<{width}}  {'median us':>12}", *rows])


CallgrindStats = absent_class("torch.utils.benchmark", "CallgrindStats", "Use Timer.timeit.")

explain_absent_names(globals(), "torch.utils.benchmark")
