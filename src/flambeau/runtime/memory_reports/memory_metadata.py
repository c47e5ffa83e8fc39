"""`Labels`: the ranges that a program named while its memory was recorded, as PyTorch's snapshots have them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import Any

from flambeau.runtime import current
from flambeau.runtime.context import Context
from flambeau.runtime.hooks.annotations import subscribe, unsubscribe
from flambeau.runtime.memory.history import Recording


class Labels:
    """Listens to ranges, and keeps the beginning and the end of each with the current device and its time.

    most: how many are kept. thread: whose ranges are heard; None: everybody's. before: what was kept so far.
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
        """Marks are no ranges: PyTorch has none here."""

    def end(self) -> None:
        """Hear no more."""
        unsubscribe(self)

    def _note(self, name: str, stage: str) -> None:
        context = self._contexts[min(current.local.device, len(self._contexts) - 1)]
        time_us = context.clock() // 1000
        self.entries.append({"name": name, "stage": stage, "device": context.index, "time_us": time_us})


def replace(
    recording: Recording | None, clear: bool, chosen: tuple[Sequence[Context], int, int | None] | None
) -> Labels | None:
    """Return those of the next recording, as `chosen`, in the place of the present one's, which hear no more."""
    before = None if recording is None else recording.labels
    if before is not None:
        before.end()
    if chosen is None:
        return None
    found = Labels(*chosen, () if before is None or clear else before.entries)
    subscribe(found)
    return found


def _key(number: int | None) -> tuple[int, int | None]:
    """A range of a stack ends in its own thread, one of a number in any."""
    return (get_ident(), None) if number is None else (0, number)
