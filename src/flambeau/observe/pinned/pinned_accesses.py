"""Accesses of the host to pinned memory through views, while commands use the memory.

# Note [Unseen accesses] Problem: NumPy, ctypes and other libraries read and write pinned memory without a
driver call. If they do so while an asynchronous copy is pending, the copy or the library may see the wrong
data. Rule: The detector compares what it can see. Each copy that uses memory of which a view was ever taken
opens a `Window`, which ends when the host has waited for the copy. The bytes are saved when it opens. They
are compared before a command uses them, after each wait that ends a window, and with each new window; in
between, only the host can have changed them. A difference is a race with the copies whose windows were
open. Virtual GPUs notify the detector of changes by commands. On real GPUs the time of such changes is
unknown, so targets of copies are not compared there. A read, or a write of the old value, cannot be seen.
It is an assumption if a view was alive, and its call sites are named. A view that is taken while a copy
into the memory is pending is meant for reading it. If it is gone before the host has waited, it was used
too early, which is a race. If it lives on, it may have been used, and the certificate is withheld.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np

from flambeau.core.callsite import Site, caller, is_within, place
from flambeau.core.host_arrays import bytes_at
from flambeau.driver.protocol import HostMemory
from flambeau.observe.accesses import NOWHERE, Command, ShadowBlock
from flambeau.observe.layout_overlap import Extent, span_of
from flambeau.observe.pinned.coverage import Coverage
from flambeau.observe.race_builder import READ, WRITE

if TYPE_CHECKING:
    from flambeau.observe.detector import Detector

_UNTIL_END = "the end of the program"
_ADOPTING = ("from_numpy()", "from_dlpack()")
_LARGEST = 1 << 26  # bytes of the largest copy on a real GPU whose memory is compared: some 10 ms


class PinnedUse(NamedTuple):
    """A command's use of pinned memory. It holds an address, and does not keep the memory alive.

    Attributes:
        kind: READ or WRITE.
        is_awaited: True if the host waits for the command before the program continues.
    """

    ptr: int
    nbytes: int
    kind: str
    is_awaited: bool

    @classmethod
    def of(cls, memory: HostMemory, kind: str) -> PinnedUse:
        return cls(memory.ptr, memory.nbytes, kind, memory.awaited)


class Export:
    """A view of host memory that another object has.

    Attributes:
        what: The call that returned it: "numpy()", "__dlpack__()", "data_ptr()".
        site: The call site; None for memory that another library pinned.
        start, end: The bytes that it exposes.
        is_adopted: True if a tensor was created over these bytes while it lived, which may have been its
            only purpose.
    """

    __slots__ = ("_view", "end", "is_adopted", "site", "start", "what")

    def __init__(self, what: str, site: Site | None, start: int, end: int, view: object) -> None:
        self.what = what
        self.site = site
        self.start, self.end = start, end
        self.is_adopted = False
        self._view = None if view is None else ref(view)

    @property
    def key(self) -> tuple[object, ...]:
        """Return the key that views of one call site and of equal bytes share."""
        return self.what, self.site, self.start, self.end

    @property
    def is_address(self) -> bool:
        """Return True if the view is a plain address, which the program may keep forever."""
        return self._view is None

    @property
    def is_alive(self) -> bool:
        """Return True if the program may still use the view."""
        return self._view is None or self._view() is not None


class PinnedLifetime:
    """One lifetime of a block of pinned memory.

    Attributes:
        coverage: The bytes that were written.
        exports: The views of it that may live.
        exported: The first view of it, alive or not.
        expected: The expected contents of the block where windows are open.
        is_kept: True if the memory exists as long as the driver has it; another library's may go at any
            time.
        stale: Ranges that the host was seen to write since; `expected` must be read again there.
    """

    __slots__ = ("block", "born", "coverage", "expected", "exported", "exports", "is_kept", "stale")

    def __init__(self, block: ShadowBlock) -> None:
        self.block = block
        self.born = block.born
        self.coverage = Coverage(block.end - block.start)
        self.exports: list[Export] = []
        self.exported: Export | None = None
        self.expected: np.ndarray[Any, Any] | None = None
        self.is_kept = True
        self.stale: list[tuple[int, int]] = []

    def views(self, start: int, end: int) -> list[Export]:
        """Return the views of these bytes that may be used."""
        return [view for view in self.exports if view.start < end and start < view.end and view.is_alive]

    def expect(self, start: int, end: int) -> None:
        """Save the present contents of these bytes for a later comparison."""
        if self.expected is None:
            self.expected = np.empty(self.block.end - self.block.start, np.uint8)
        at = start - self.block.start
        self.expected[at : at + end - start] = bytes_at(start, end - start)

    def difference(self, start: int, end: int) -> tuple[int, int] | None:
        """Return the range of these bytes that changed without notice since `expect`; None if there is none."""
        if self.expected is None:
            return None
        for begin, stop in self.stale:
            self.expect(begin, stop)
        self.stale.clear()
        at = start - self.block.start
        changed = self.expected[at : at + end - start] != bytes_at(start, end - start)
        if not changed.any():
            return None
        places = changed.nonzero()[0]
        return start + int(places[0]), start + int(places[-1]) + 1


class Window:
    """The time from a copy that uses pinned memory to the host's wait for it.

    Attributes:
        kind: The copy's access: READ or WRITE.
        command: The copy, or the latest one of equal stream, call site and bytes.
        views: The views that lived meanwhile, the latest of each call site, and whether they were taken
            meanwhile.
        is_compared: True if the bytes may be compared.
    """

    __slots__ = ("command", "end", "is_compared", "kind", "life", "start", "views")

    def __init__(self, life: PinnedLifetime, start: int, end: int, kind: str, command: Command) -> None:
        self.life = life
        self.start, self.end = start, end
        self.kind = kind
        self.command = command
        self.views: dict[tuple[object, ...], tuple[Export, bool]] = {}
        self.is_compared = True

    @property
    def site(self) -> Site:
        return self.command[3], self.command[4]

    def is_looked_through(self, view: Export, taken_meanwhile: bool) -> bool:
        """Return True if a view was created and dropped while the copy that writes the memory was pending."""
        return self.kind is WRITE and taken_meanwhile and not view.is_alive and not view.is_adopted

    def overlaps(self, life: PinnedLifetime, start: int, end: int) -> bool:
        return self.life is life and self.start < end and start < self.end


Change = tuple[int, int, list[Window]]
"""The range of bytes that the host has changed unseen, and the windows that were open then."""


class PinnedMemory:
    """All pinned memory of one machine.

    Callers hold the detector's lock, except those of `driver.protocol.PinnedMemoryObserver`. `simulated` is True
    if virtual GPUs notify of changes by commands.
    """

    def __init__(self, detector: Detector) -> None:
        self.simulated = False
        self._detector = detector
        self._first = self._end = 0  # addresses between which all pinned memory lies
        self._lives: dict[int, PinnedLifetime] = {}  # address of a block -> its lifetime
        self._windows: dict[tuple[object, ...], Window] = {}
        self._changes: list[Change] = []  # changes that were not reported yet

    # -- memory ------------------------------------------------------------------------------------------
    def on_pin(self, start: int, nbytes: int) -> None:
        """Record that memory was pinned."""
        self._first = min(self._first or start, start)
        self._end = max(self._end, start + nbytes)

    def on_unpin(self, start: int, nbytes: int) -> None:
        """Record that memory is no longer pinned."""
        self._drop([key for key, w in self._windows.items() if start <= w.start < start + nbytes])
        for at in [at for at in self._lives if start <= at < start + nbytes]:
            del self._lives[at]

    def contains(self, ptr: int) -> bool:
        """Return False if no pinned memory can be at an address."""
        return self._first <= ptr < self._end

    def on_host_write(self, ptr: int, extent: Extent) -> None:
        """Record a write of the host that the detector has checked."""
        if self.contains(ptr) and (life := self._life_at(ptr)) is not None:
            life.coverage.mark(ptr - life.block.start, extent)
            if life.expected is not None:
                end = min(ptr + span_of(extent), life.block.end)
                life.stale.append((ptr, end))

    def on_export(self, ptr: int, nbytes: int, what: str, view: object) -> None:
        """Record that another object exposes host memory while `view` lives, or forever if `view` is None."""
        if not nbytes or not self.contains(ptr) or (life := self._life_at(ptr)) is None:
            return
        if what in _ADOPTING:
            for other in life.views(ptr, ptr + nbytes):
                other.is_adopted = True
            return
        export = Export(what, caller(2), ptr, ptr + nbytes, view)
        # an address that the program took on this line before is replaced
        same = export.key if view is None else None
        life.exports = [other for other in life.exports if other.is_alive and other.key != same]
        life.exports.append(export)
        life.exported = life.exported or export
        for cell, kind, command in self._detector.host.pending(ptr, nbytes):
            self._open(life, cell.start, cell.end, kind, command)
        for window in self._open_windows(life, ptr, ptr + nbytes):
            former = window.views.get(export.key)
            window.views[export.key] = export, True
            if former is not None and window.is_looked_through(*former):
                self._detector.host.report_look(window, former[0])

    # -- commands ----------------------------------------------------------------------------------------
    def on_command(self, use: PinnedUse, command: Command) -> None:
        """Record a command that reads or writes pinned memory and is about to be enqueued."""
        self._report_changes((command[3], command[4]))
        life = self._life_at(use.ptr)
        if life is None:
            life = self._adopt(use, (command[3], command[4]))
        start, end, kind = use.ptr, use.ptr + use.nbytes, use.kind
        at = start - life.block.start
        if kind is WRITE:
            life.coverage.mark(at, use.nbytes)
            self._distrust(life, start, end)
        elif not life.coverage.covers(at, at + use.nbytes):
            self._report_unwritten(life, command)
        if life.exported is None or (use.is_awaited and threading.active_count() == 1):
            return
        window = self._open(life, start, end, kind, command)
        for view in life.views(start, end):
            window.views.setdefault(view.key, (view, False))
        self._report_changes((command[3], command[4]))

    def guard_call(self, call: Callable[[], None]) -> Callable[[], None]:
        """Wrap a host function, which may use any memory when its stream reaches it."""

        @wraps(call)
        def guard() -> None:
            for window in list(self._windows.values()):
                self._look(window.life, window.start, window.end)
            call()
            for window in list(self._windows.values()):
                if window.is_compared:
                    window.life.expect(window.start, window.end)

        return guard

    def host_waited(self) -> None:
        """End the windows of the commands that the host has now waited for."""
        known = self._detector.known
        over = [key for key, w in self._windows.items() if known.get(w.command[0], 0) >= w.command[1]]
        if not over and not self._changes:
            return
        site = None if is_within("cli") else caller(3)
        until = _UNTIL_END if site is None else f"the wait at {place(site)}"
        for key in over:
            window = self._windows[key]
            self._look(window.life, window.start, window.end)
        closing = [self._windows.pop(key) for key in over]
        for life in {window.life for window in closing} - {w.life for w in self._windows.values()}:
            life.expected = None
        self._report_changes(site)
        for window in closing:
            self._report_views(window, until)

    def end(self) -> None:
        """Report pending findings, because a certificate is about to be created."""
        for window in self._windows.values():
            self._look(window.life, window.start, window.end)
        self._report_changes(None)
        for window in self._windows.values():
            self._report_views(window, _UNTIL_END)

    # -- of `driver.protocol.Watch`: inside of the driver's lock, without the detector's -------------------------
    def about_to_use(self, memory: HostMemory) -> None:
        for life in self._watched_lifetimes():
            self._look(life, memory.ptr, memory.ptr + memory.nbytes)

    def on_change(self, memory: HostMemory) -> None:
        for life in self._watched_lifetimes():
            start = max(memory.ptr, life.block.start)
            end = min(memory.ptr + memory.nbytes, life.block.end)
            if start < end and life.expected is not None:
                life.expect(start, end)

    def _watched_lifetimes(self) -> set[PinnedLifetime]:
        return {window.life for window in list(self._windows.values())}

    # -- lives and windows ---------------------------------------------------------------------------------
    def _life_at(self, ptr: int) -> PinnedLifetime | None:
        """Return the present lifetime of the block at an address; None if no allocation is known."""
        block = self._detector.shadow.owner(ptr)
        if block is NOWHERE or not block.host:
            return None
        life = self._lives.get(block.start)
        if life is None or life.block is not block or life.born != block.born:
            self._drop([key for key, w in self._windows.items() if w.life is life])
            life = self._lives[block.start] = PinnedLifetime(block)
        return life

    def _drop(self, keys: Sequence[tuple[object, ...]]) -> None:
        """End the windows of memory that the program has freed. The runtime waits for the copies."""
        for key in keys:
            self._report_views(self._windows.pop(key), "the end of the memory")

    def _adopt(self, use: PinnedUse, site: Site) -> PinnedLifetime:
        """Begin a lifetime of memory that another library has pinned and owns."""
        self._detector.own(use.ptr, use.nbytes, None, site, host=True)
        self.on_pin(use.ptr, use.nbytes)
        life = self._life_at(use.ptr)
        assert life is not None
        life.is_kept = False
        life.coverage.mark(0, use.nbytes)
        life.exported = Export("", None, use.ptr, use.ptr + use.nbytes, None)
        life.exports = [life.exported]
        return life

    def _open(self, life: PinnedLifetime, start: int, end: int, kind: str, command: Command) -> Window:
        key = start, end, kind, command[0], command[3], command[4]
        self._look(life, start, end)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = Window(life, start, end, kind, command)
        window.command = command
        if not life.is_kept or not (self.simulated or self._is_comparable(window)):
            window.is_compared = False
        if window.is_compared:
            life.expect(start, end)
        return window

    def _is_comparable(self, window: Window) -> bool:
        """Return True if, on a real GPU, only the host could change the bytes of a window, and they are few enough to
        compare them before and after it.
        """
        start, end = window.start, window.end
        written = any(other.kind is WRITE for other in self._open_windows(window.life, start, end))
        return not written and end - start <= _LARGEST

    def _distrust(self, life: PinnedLifetime, start: int, end: int) -> None:
        """Compare these bytes for the last time, because a real GPU will write them at an unknown time."""
        if not self.simulated:
            self._look(life, start, end)
            for window in self._open_windows(life, start, end):
                window.is_compared = False

    def _open_windows(self, life: PinnedLifetime, start: int, end: int) -> Iterator[Window]:
        return (window for window in list(self._windows.values()) if window.overlaps(life, start, end))

    def _look(self, life: PinnedLifetime, start: int, end: int) -> None:
        """Compare these bytes, where windows are open, with their expected contents."""
        changed = [
            found
            for window in self._open_windows(life, start, end)
            if window.is_compared
            and (found := life.difference(max(start, window.start), min(end, window.end))) is not None
        ]
        if changed:
            low, high = min(begin for begin, _ in changed), max(stop for _, stop in changed)
            self._changes.append((low, high, list(self._open_windows(life, low, high))))
            life.expect(low, high)

    # -- reports -------------------------------------------------------------------------------------------
    def _report_changes(self, site: Site | None) -> None:
        changes, self._changes = self._changes, []
        for low, high, windows in changes:
            for window in windows:
                self._detector.host.report_change(low, high, window, site)

    def _report_views(self, window: Window, until: str) -> None:
        uses = self._detector.findings.unseen
        for view, taken_meanwhile in window.views.values():
            if window.kind is READ:
                uses.view(view.what, view.site, "writes", window.site, until)
            elif window.is_looked_through(view, taken_meanwhile):
                self._detector.host.report_look(window, view)
            elif taken_meanwhile and not view.is_address:
                uses.early_view(view.what, view.site, window.site, until)
            else:
                uses.view(view.what, view.site, "reads or writes", window.site, until)

    def _report_unwritten(self, life: PinnedLifetime, command: Command) -> None:
        site, view, findings = (command[3], command[4]), life.exported, self._detector.findings
        if view is not None:
            findings.unseen.write(view.what, view.site, command[2][0], site)
            return
        allocated = f", allocated at {place(life.block.site)}," if life.block.site else ""
        findings.unwritten(
            site,
            f"{command[2][0]} at {place(site)} reads pinned memory{allocated} that nothing has written: its result is "
            "not determined",
        )
