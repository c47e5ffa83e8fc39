"""`PlanCache`: loaded library plans of a device, the least recently used of which give way (`cufft_plan_cache`)."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable

from flambeau.driver.protocol import Launch
from flambeau.runtime import system
from flambeau.runtime.device_context import Context

CAPACITY = 4096  # plans per device, PyTorch's default


class LibraryPlan:
    """A loaded launch. It stays loaded while the cache, or a call that is about to launch it, refers to it."""

    __slots__ = ("_context", "exe")

    def __init__(self, context: Context, launch: Launch) -> None:
        self._context = context
        self.exe = context.driver.load(launch, context.driver_index)

    def __del__(self) -> None:
        if hasattr(self, "exe") and not self._context.closed:
            self._context.backing.unload(self.exe)


class PlanCache:
    """A cache of at most `max_size` plans. An evicted plan stays loaded while a caller holds it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._plans: OrderedDict[Hashable, LibraryPlan] = OrderedDict()
        self._max_size = CAPACITY

    def get(self, key: Hashable, launch: Launch) -> LibraryPlan:
        """Return the plan of `key`, loading it if it is not cached. If loading fails, the cache is unchanged."""
        with self._lock:
            found = self._plans.get(key)
            if found is not None:
                self._plans.move_to_end(key)
                return found
        plan = LibraryPlan(self._context, launch)
        with self._lock:
            plan = self._plans.setdefault(key, plan)
            out = self._overflow()
        del out  # unloads the plan after the lock was released
        return plan

    @property
    def size(self) -> int:
        """Return the number of cached plans."""
        return len(self._plans)

    @property
    def max_size(self) -> int:
        """Return the largest number of cached plans. Setting a lower one evicts the least recently used; RuntimeError
        if negative.
        """
        return self._max_size

    @max_size.setter
    def max_size(self, value: int) -> None:
        if value < 0:
            raise RuntimeError(f"cuFFT plan cache size must be non-negative, but got {value}")
        with self._lock:
            self._max_size = value
            out = self._overflow()
        del out

    def clear(self) -> None:
        """Evict all plans."""
        with self._lock:
            plans, self._plans = self._plans, OrderedDict()
        plans.clear()

    def _overflow(self) -> list[LibraryPlan]:
        """Remove the least recently used plans while there are more than `max_size`.

        Returns:
            The plans, which the caller drops after it released the lock: a destructor must not run under it.
        """
        return [self._plans.popitem(last=False)[1] for _ in range(len(self._plans) - self._max_size)]


_caches: dict[Context, PlanCache] = {}


def cache_of(context: Context) -> PlanCache:
    """Return the plan cache of a device."""
    found = _caches.get(context)
    return found if found is not None else _caches.setdefault(context, PlanCache(context))


def _forget_closed() -> None:
    """Remove the caches of closed machines; a suspended machine keeps its caches."""
    for context in [c for c in _caches if c.closed]:
        del _caches[context]


system.on_close(_forget_closed)
