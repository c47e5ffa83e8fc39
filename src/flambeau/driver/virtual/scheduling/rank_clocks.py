"""The simulated host clocks of ranks that are threads."""

from __future__ import annotations

from flambeau.driver.virtual.scheduling.scheduler import Scheduler


class RankClocks:
    """The host time of each rank. The scheduler holds the time of the rank that runs."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self._times: dict[int, int] = {}
        self._at_start = 0
        self.is_used = False  # True once ranks took turns

    def switch(self, before: int, after: int) -> None:
        """Store the time of rank `before` and continue with that of rank `after`."""
        core = self._core
        if not self._times:
            self._at_start = core.now
            self.is_used = True
        self._times[before] = core.now
        core.now = self._times.get(after, self._at_start)
        if core.request_log is not None:
            core.request_log.switch_host(before, after)

    def join(self) -> None:
        """Continue at the latest time, after all ranks have ended."""
        core = self._core
        core.now = max([core.now, *self._times.values()])
        self._times = {}
        if core.request_log is not None:
            core.request_log.join_hosts()
