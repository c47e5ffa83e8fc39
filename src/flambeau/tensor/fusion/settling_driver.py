"""`SettlingDriver`: the driver of a context while a compiled function runs."""

from __future__ import annotations

from typing import Any

from flambeau.runtime import system
from flambeau.runtime.context import Context
from flambeau.runtime.hooks import launch_deferral

# Calls that neither enqueue nor await work, nor let anything outside enqueue any.
_UNORDERED = frozenset(
    {
        "name", "observes_blocks", "runs_bodies", "device_count", "device_properties", "mem_info", "mem_processes",
        "mem_alloc", "mem_free", "range_page", "range_reserve", "range_map", "range_unmap", "range_release",
        "host_pinned", "host_touch", "host_export", "block_alloc", "block_free", "stream_default", "event_create",
        "load", "generic", "launcher", "unload", "peer_can",
    }
)  # fmt: skip


class SettlingDriver:
    """A driver that issues the pending launches before every call but those that concern no order.

    A call that the driver protocol gains settles until it is named in `_UNORDERED`: the forwarder errs on the side of
    too many settlements. See Note [Deferred launches].
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name not in _UNORDERED:
            launch_deferral.settle(name)
        return getattr(self.inner, name)


def _contexts() -> list[Context]:
    return [*system.contexts(), system.host] if system.is_initialized() else [system.host]


def install() -> None:
    """Let the drivers of all open contexts settle. Those of one machine stay the same object."""
    contexts = _contexts()
    bare = [context for context in contexts if not isinstance(context.driver, SettlingDriver)]
    if bare:
        settling = {id(c.driver.inner): c.driver for c in contexts if isinstance(c.driver, SettlingDriver)}
        for context in bare:
            inner = context.driver
            context.driver = settling.setdefault(id(inner), SettlingDriver(inner))


def remove() -> None:
    """Give the contexts their own drivers back. A driver that another observer has wrapped since stays."""
    for context in _contexts():
        if isinstance(context.driver, SettlingDriver):
            context.driver = context.driver.inner
