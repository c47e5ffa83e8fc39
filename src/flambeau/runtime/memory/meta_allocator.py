"""The allocator of the meta device, which allocates nothing."""

from __future__ import annotations

from flambeau.runtime.streams.stream import Stream


class MetaBlock:
    """The only block of the meta device. Offsets count from its address."""

    __slots__ = ("ptr", "size", "stream")

    def __init__(self, stream: int) -> None:
        self.ptr = self.size = 0
        self.stream = stream


class MetaAllocator:
    """An allocator that returns one block for all requests.

    Attributes:
        block: The block.
    """

    __slots__ = ("block",)

    def __init__(self, stream: Stream) -> None:
        self.block = MetaBlock(stream.handle)

    def allocate(self, nbytes: int, stream: Stream) -> MetaBlock:
        return self.block

    allocate_output = allocate

    def free(self, block: MetaBlock) -> None:
        pass

    def share(self, block: MetaBlock) -> None:
        pass

    def stream_created(self) -> None:
        pass

    def stream_destroyed(self, handle: int) -> None:
        pass
