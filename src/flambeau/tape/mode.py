"""Grad mode, inference mode and anomaly detection of each thread. This module owns that state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

PackHooks = tuple[Callable[[Any], Any], Callable[[Any], Any]]


class Mode(threading.local):
    """The autograd mode of one thread.

    Attributes:
        recording: True if operations on tensors that require gradients are recorded.
        inference: True inside of `inference_mode`.
        anomaly: True under anomaly detection: nodes store the stack of the call that created them.
        check_nan: True if anomaly detection also checks gradients for NaN.
        anomaly_nodes: Nodes whose gradients are being computed under anomaly detection, innermost last.
        pack_hooks: Stack of (pack, unpack) functions that nodes apply to the tensors that they save.
        engine: The innermost running `BackwardEngine` of this thread; None outside of backward.
        keeps_layout: True if a leaf's gradient must have the leaf's layout (`enforce_grad_layout_policy`).
        saving_forbidden: The error message if saving tensors is disabled; None if it is allowed.
    """

    recording = True
    inference = False
    anomaly = False
    check_nan = True
    engine: Any = None
    keeps_layout = True
    saving_forbidden: str | None = None

    def __init__(self) -> None:
        self.pack_hooks: list[PackHooks] = []
        self.anomaly_nodes: list[Any] = []


mode = Mode()


class SharedMode:
    """The mode of all threads together.

    Attributes:
        inference_blocks: The number of open `inference_mode` blocks; with 0, no inference tensor is created.
        warns_of_streams: True if the next gradient that crosses streams to reach its leaf raises a warning.
    """

    __slots__ = ("inference_blocks", "lock", "warns_of_streams")

    def __init__(self) -> None:
        self.inference_blocks = 0
        self.lock = threading.Lock()
        self.warns_of_streams = True

    def add(self, count: int) -> None:
        with self.lock:
            self.inference_blocks += count


shared_mode = SharedMode()


class recording:
    """A context manager that switches the recording of operations in this thread on or off."""

    __slots__ = ("enabled", "outer")

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def __enter__(self) -> None:
        self.outer = mode.recording
        mode.recording = self.enabled

    def __exit__(self, *error: object) -> None:
        mode.recording = self.outer
