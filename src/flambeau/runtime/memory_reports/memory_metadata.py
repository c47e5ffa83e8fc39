"""`Labels`: the ranges that a program named while its memory was recorded, as PyTorch's snapshots have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import Any

from flambeau.runtime import current
from flambeau.runtime.device_context import Context
from flambeau.runtime.hooks.annotations import subscribe, unsubscribe
from flambeau.runtime.memory.history import Recording


class Labels:
    """A subscriber that records the beginning and end of ranges, with the current device and its time.

    Args:
        most: The limit of recorded ranges.
        thread: The thread whose ranges are recorded; None for all threads.
        before: The ranges of an earlier recording.
    """

    def __init__(
        self,
        contexts: Sequence[Context],
        most: int,
        thread: int | None,
        before: Iterable[dict[str, Any]] = (),
    ) -> None:
        self.entries: deque[dict[str, Any]] = deque(before, most)
        self._contexts = contexts
        self._thread = thread
        self._open: dict[tuple[int, int | None], list[str]] = {}

    def on_range_begin(self, text: str, number: int | None) -> None:
        if self._thread in (None, get_ident()):
            self._open.setdefault(_key(number), []).append(text)
            self._note(text, "START")

    def on_range_end(self, number: int | None) -> None:
        if texts := self._open.get(_key(number)):
            self._note(texts.pop(), "END")

    def on_mark(self, text: str) -> None:
        """Ignore marks, as PyTorch does."""

    def end(self) -> None:
        """Stop recording ranges."""
        unsubscribe(self)

    def _note(self, name: str, stage: str) -> None:
        context = self._contexts[min(current.local.device, len(self._contexts) - 1)]
        time_us = context.clock() // 1000
        self.entries.append({"name": name, "stage": stage, "device": context.index, "time_us": time_us})


def replace(
    recording: Recording | None, clear: bool, chosen: tuple[Sequence[Context], int, int | None] | None
) -> Labels | None:
    """End the present recording of ranges and return that of the next one: a `Labels` if `chosen`, else None."""
    before = None if recording is None else recording.labels
    if before is not None:
        before.end()
    if chosen is None:
        return None
    found = Labels(*chosen, () if before is None or clear else before.entries)
    subscribe(found)
    return found


def _key(number: int | None) -> tuple[int, int | None]:
    """Return the key of an open range: for a range of a stack it includes the thread."""
    return (get_ident(), None) if number is None else (0, number)
