"""The process root: opened drivers, the context of each device, lazy initialization. (Skeleton.)"""

from __future__ import annotations

from collections.abc import Callable

from flambeau.core.device import CPU, device
from flambeau.driver.registry import open_driver
from flambeau.runtime import current
from flambeau.runtime.allocator import PlainAllocator
from flambeau.runtime.context import Context
from flambeau.runtime.stream import Stream


def _open_host() -> Context:
    driver = open_driver("host")
    context = Context(CPU, -1, driver, 0)
    context.allocator = PlainAllocator(context)
    context.default_stream = Stream(context, driver.stream_default(0))
    return context


host: Context = _open_host()
_closed_subscribers: list[Callable[[], None]] = []
current.reset([host.default_stream])


def context_of(where: device) -> Context:
    """The context of a device, opened on first use. "cuda" without an index is the current device.

    Raises RuntimeError: no CUDA device, or an index past the last.
    """
    if where is CPU:
        return host
    raise RuntimeError("No CUDA GPUs are available")


def resolve(where: device) -> device:
    """`where` with an index: "cuda" becomes the current CUDA device."""
    if where.type == "cuda" and where.index is None:
        return device("cuda", current.local.device)
    return where


def on_close(closed: Callable[[], None]) -> None:
    """Call `closed()` whenever devices are closed: whoever keeps executables or addresses drops them."""
    _closed_subscribers.append(closed)
