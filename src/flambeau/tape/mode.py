"""Whether operations are recorded, per thread. Owner of that state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PackHooks = tuple[Callable[[Any], Any], Callable[[Any], Any]]


class Mode(threading.local):
    """One thread's mode.

    recording: operations on tensors that require gradients are put on the tape.
    inference: inside `inference_mode`.
    anomaly: nodes remember where they were made. checks_nan: and their gradients are looked at.
    walking: under anomaly detection, the nodes whose gradients are being computed, the innermost last.
    pack_hooks: a stack of (pack, unpack) applied to what nodes save.
    walk: the innermost walk under way.
    why_not: a message if saving tensors is forbidden here.
    """

    recording = True
    inference = False
    anomaly = False
    checks_nan = True
    walk: Any = None
    why_not: str | None = None

    def __init__(self) -> None:
        self.pack_hooks: list[PackHooks] = []
        self.walking: list[Any] = []


mode = Mode()


class Anywhere:
    """The mode of all threads together.

    Attributes:
        inferring: How many `inference_mode` blocks are open. While none is, no inference tensor is created.
        warns_of_streams: Whether the next gradient that crosses streams to reach its leaf raises a warning.
    """

    __slots__ = ("inferring", "lock", "warns_of_streams")

    def __init__(self) -> None:
        self.inferring = 0
        self.lock = threading.Lock()
        self.warns_of_streams = True

    def add(self, count: int) -> None:
        with self.lock:
            self.inferring += count


anywhere = Anywhere()


class recording:
    """Context manager: record operations in this thread, or do not."""

    __slots__ = ("on", "saved")

    def __init__(self, on: bool) -> None:
        self.on = on

    def __enter__(self) -> None:
        self.saved = mode.recording
        mode.recording = self.on

    def __exit__(self, *error: object) -> None:
        mode.recording = self.saved
