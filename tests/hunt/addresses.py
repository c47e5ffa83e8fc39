"""`Addresses`: a virtual GPU's driver that keeps no host memory alive for its queue, as a real GPU's, which is given
addresses.
"""

from __future__ import annotations

from flambeau.driver.protocol import HostMemory
from flambeau.observe.driver_proxy import Forward


class Addresses(Forward):
    """See the module's docstring."""

    def copy_in(self, target: int, source: HostMemory, stream: int) -> None:
        self.inner.copy_in(target, _bare(source), stream)

    def copy_out(self, target: HostMemory, source: int, stream: int) -> None:
        self.inner.copy_out(_bare(target), source, stream)


def _bare(memory: HostMemory) -> HostMemory:
    if not memory.pinned:
        return memory
    bare = HostMemory(memory.ptr, memory.nbytes, None, True, memory.awaited)
    bare.watch = memory.watch
    return bare
