"""The capture that a compiled function runs in. Owner of that state.

Code that a capture cannot contain calls `leave`. Then what was captured is launched, and the function goes on eagerly.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Capture(Protocol):
    """A capture that can be left."""

    def leave(self, why: str, /) -> None:
        """End the capture and launch what it contains."""


class _CaptureOfThread(threading.local):
    """One thread's capture of a compiled function; None outside of one."""

    capture: Capture | None = None


local = _CaptureOfThread()


def leave(why: str) -> None:
    """Leave the capture of this thread's compiled function, if there is one.

    Args:
        why: What a capture cannot contain, for logs.
    """
    if local.capture is not None:
        local.capture.leave(why)
