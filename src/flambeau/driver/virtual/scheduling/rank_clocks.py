"""`RankClocks`: the simulated times of ranks that are threads and take turns: each has a host of its own."""

from __future__ import annotations

from flambeau.driver.virtual.scheduling.scheduler import Scheduler


class RankClocks:
    """Times by rank. The scheduler has that of the rank whose turn it is."""

    def __init__(self, core: Scheduler) -> None:
        self._core = core
        self._times: dict[int, int] = {}
        self._at_start = 0

    def switch(self, before: int, after: int) -> None:
        """Another rank goes on."""
        core = self._core
        if not self._times:
            self._at_start = core.now
        self._times[before] = core.now
        core.now = self._times.get(after, self._at_start)
        if core.request_log is not None:
            core.request_log.switch_host(before, after)

    def join(self) -> None:
        """The ranks have ended: whoever started them has waited for the last."""
        core = self._core
        core.now = max([core.now, *self._times.values()])
        self._times = {}
        if core.request_log is not None:
            core.request_log.join_hosts()
