"""A driver of virtual GPUs without data: time passes and memory is counted, but no kernel computes.

Every call costs what it costs on a `VirtualDriver`, addresses are checked, and devices run out of memory.
No page is committed and no body runs. A step of a large model therefore takes only the time of issuing its
launches. A copy to the host raises NotSupportedError, as does everything that needs one (`item()`, `print`,
`nonzero`). Collectives move no data either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.driver.protocol import Collective, HostMemory
from flambeau.driver.virtual.collectives.collectives import CollectiveInstance, Outside
from flambeau.driver.virtual.collectives.simulated_peers import Mirrors
from flambeau.driver.virtual.command_effects import Contents
from flambeau.driver.virtual.driver import VirtualDriver
from flambeau.driver.virtual.executable import VirtualExecutable
from flambeau.driver.virtual.memory.arena import Arena


class NoContents(Contents):
    """Effects of commands on devices without data: nothing moves."""

    moves = False

    def launch(self, exe: VirtualExecutable, ptrs: Sequence[int], scalars: Sequence[Any]) -> None:
        pass

    def copy_in(self, arena: Arena, target: int, source: HostMemory) -> None:
        pass

    def copy(self, to: Arena, target: int, origin: Arena, source: int, nbytes: int) -> None:
        pass

    def fill(self, arena: Arena, target: int, byte: int, nbytes: int) -> None:
        pass

    def meet(self, meeting: CollectiveInstance) -> None:
        pass


class ShapeDriver(VirtualDriver):
    """A `VirtualDriver` without data; it takes the same arguments."""

    contents = NoContents
    runs_bodies = False
    _mirrors: Mirrors | None = None

    def mirror(self, size: int) -> None:
        """Make the one device rank 0 of `size` GPUs that all do the same; see `simulated_peers.py`.

        Raises:
            NotSupportedError: If the profile describes no cluster, or there are several devices.
        """
        if self.profile.cluster is None or len(self._machine.devices) != 1:
            raise NotSupportedError(
                f"a simulated cluster needs one virtual GPU of a profile with a cluster, as dgx-h200; these are "
                f"{len(self._machine.devices)} of {self.profile.name}"
            )
        if size > 1:
            self._mirrors = Mirrors(size)
            self._comms.numbers = lambda ptr, nbytes: b""  # there is no data to send

    def collective(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        if self._mirrors is not None:
            self._mirrors.check([call for _, call, _ in parts])
        super().collective(parts)

    def _outside(self) -> Outside | None:
        return self._mirrors or super()._outside()

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        if not target.nbytes:
            return
        raise NotSupportedError(
            f"{target.nbytes} bytes at {source:#x} cannot be read: these virtual GPUs keep shapes and times, no data "
            "(data=False, FLAMBEAU_VIRTUAL_DATA=0)"
        )

    def ipc_memory(self, ptr: int) -> bytes:
        raise NotSupportedError("memory of virtual GPUs without data cannot be shared with other processes")
