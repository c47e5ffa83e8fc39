"""The current device and the current stream of each device, per thread. Owner of that state.

`local.streams[index]` is the current stream of CUDA device `index`; `local.streams[-1]`, the last, is the
CPU's, so that the launch path reads a stream the same way for every device.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flambeau.runtime.stream import Stream


class _Local(threading.local):
    """One thread's selection: device 0 and the default streams at first."""

    def __init__(self, defaults: Sequence[Stream]) -> None:
        self.device = 0
        self.streams = list(defaults)


local: _Local = _Local(())


def reset(defaults: Sequence[Stream]) -> None:
    """Start anew in every thread: called when devices are opened or closed."""
    global local
    local = _Local(tuple(defaults))
