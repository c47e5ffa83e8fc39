"""The checks of an accelerator's commands, before they are enqueued."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

from flambeau.core.callsite import caller
from flambeau.core.errors import DriverError
from flambeau.driver.protocol import Driver, Executable, HostMemory, Launcher
from flambeau.observe.accesses import Footprint, Key
from flambeau.observe.capture_log import Tape
from flambeau.observe.detector import Check, Detector
from flambeau.observe.indexed.partial import PartialAccess, Probe
from flambeau.observe.indexed.reporting import reporting
from flambeau.observe.layout_overlap import Extent, extent_of
from flambeau.observe.pinned.pinned_accesses import PinnedUse

_SIZES = 1024  # number of different copies and fills whose checks are cached


class CommandChecks:
    """The checks of all commands of one driver. Commands of captured streams are recorded in their tapes instead.

    `check` requires the detector's lock; launchers acquire it.
    """

    __slots__ = ("_checks", "_detector", "_inner", "_on_failure", "_plain", "_shown", "_tapes")

    def __init__(
        self,
        inner: Driver,
        detector: Detector,
        tapes: Mapping[int, Tape],
        shown: Mapping[int, int],
        on_failure: Callable[[DriverError], None],
    ) -> None:
        self._inner, self._detector = inner, detector
        self._tapes = tapes  # captured stream -> its tape
        self._shown = shown  # device index of the driver -> device index of the program
        self._on_failure = on_failure  # called with the error of a launch
        self._checks: dict[Executable, Check] = {}
        # checks of commands that are not launches
        self._plain: dict[tuple[str, tuple[Extent, ...], int], Check] = {}

    # -- launches -------------------------------------------------------------------------------------
    def load(self, exe: Executable) -> None:
        """Create the check that each launch of a loaded kernel runs."""
        launch = exe.launch
        extents = tuple([extent_of(meta) for meta in launch.operands])
        outputs = len(launch.outputs)
        what = (launch.kernel.name, launch.operands, outputs)
        touches = launch.kernel.touches(launch)
        self._checks[exe] = self._detector.check_of(
            Footprint(what, extents, outputs, launch.updates, touches)
        )

    def unload(self, exe: Executable) -> None:
        """Drop the check of an unloaded kernel."""
        self._checks.pop(exe, None)

    def unload_all(self) -> None:
        """Drop the checks of all kernels, because the driver has been closed: executables keep its devices' memory."""
        self._checks.clear()

    def launcher(self, exe: Executable, depth: int) -> Launcher:
        """Return a launch function that checks each launch.

        It has everything bound that a launch needs, because it is the most frequent call.

        Args:
            exe: The loaded kernel.
            depth: The number of frames between the launcher and the program's line, at least.
        """
        if exe.launch.kernel.touches(exe.launch) is not None:
            return self._reporting(exe, depth)
        detector, inner, check = self._detector, self._inner.launcher(exe), self._checks[exe]
        acquire, release, tapes = self._detector.lock.acquire, self._detector.lock.release, self._tapes
        received = self._on_failure

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            acquire()  # `with` takes twice as long
            try:
                if get_ident() != detector.running:
                    detector.enter()
                if ptrs.__class__ is not tuple:
                    ptrs = tuple(ptrs)
                if tapes and stream in tapes:
                    tapes[stream].command(
                        stream, check, ptrs, caller(), detector.graphs.captured_blocks(ptrs)
                    )
                else:
                    check(stream, ptrs, None, depth)
                inner(ptrs, scalars, stream)
            except DriverError as error:
                received(error)
                raise
            finally:
                release()

        if exe.launch.kernel.draws:
            return self._drawing(launch, self._shown[exe.index])
        return launch

    def _reporting(self, exe: Executable, depth: int) -> Launcher:
        """Return the launch function of a kernel whose indices select elements. If it can, the kernel reports them as
        it runs.
        """
        detector, check, tapes, received = self._detector, self._checks[exe], self._tapes, self._on_failure
        acquire, release = self._detector.lock.acquire, self._detector.lock.release
        reported = reporting(exe.launch) if self._inner.runs_bodies else None
        inner = self._inner.launcher(exe if reported is None else self._inner.load(reported, exe.index))

        def launch(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            acquire()
            access: PartialAccess | Probe | None = None
            try:
                if get_ident() != detector.running:
                    detector.enter()
                ptrs = tuple(ptrs)
                if tapes and stream in tapes:
                    access = probe = Probe()
                    tapes[stream].command(
                        stream, check, ptrs, caller(), detector.graphs.captured_blocks(ptrs), probe=probe
                    )
                else:
                    access = check(stream, ptrs, None, depth)
                inner(ptrs, scalars if reported is None else (*scalars, access), stream)
            except DriverError as error:
                if access is not None:
                    access.cancel()
                received(error)
                raise
            finally:
                release()

        return launch

    def _drawing(self, launch: Launcher, device: int) -> Launcher:
        """Return the launch function of a kernel that draws random numbers: such launches on one device must be
        ordered.
        """

        def draw(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
            with self._detector.lock:
                if get_ident() != self._detector.running:
                    self._detector.enter()
                self._detector.drew(device)
                launch(ptrs, scalars, stream)

        return draw

    # -- other commands -------------------------------------------------------------------------------
    def check(
        self,
        stream: int,
        what: str,
        keys: list[Key],
        outputs: int,
        pinned: HostMemory | None = None,
        kind: str = "",
    ) -> None:
        """Check a copy, fill, host function or collective. Copies and fills of no bytes are not commands.

        Args:
            stream: The stream that the command is about to be enqueued on.
            what: The name of the command.
            keys: The memory that it accesses; the first `outputs` ranges are written, the others read.
            outputs: The number of ranges that it writes.
            pinned: The pinned memory that it uses.
            kind: The access to `pinned`: READ or WRITE.
        """
        if get_ident() != self._detector.running:
            self._detector.enter()
        if keys and not keys[0][1]:
            return
        check = self._plain_check(what, tuple([extent for _, extent in keys]), outputs)
        ptrs = tuple([ptr for ptr, _ in keys])
        use = None
        if pinned is not None:
            pinned.watch, use = self._detector.pinned, PinnedUse.of(pinned, kind)
        tape = self._tapes.get(stream)
        if tape is not None:
            tape.command(stream, check, ptrs, caller(), self._detector.graphs.captured_blocks(ptrs), use)
            return
        check(stream, ptrs)
        if use is not None:
            self._detector.host.add_command(use, stream)

    def _plain_check(self, what: str, extents: tuple[Extent, ...], outputs: int) -> Check:
        """Return the race check of a copy, a fill or a host function.

        Commands with the same name and the same sizes of memory share one.
        """
        key = (what, extents, outputs)
        found = self._plain.get(key)
        if found is None:
            if len(self._plain) >= _SIZES:
                self._plain.clear()
            footprint = Footprint((what, (), 0), extents, outputs)
            found = self._plain[key] = self._detector.check_of(footprint)
        return found
