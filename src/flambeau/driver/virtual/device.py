"""`VirtualDevice`: what a virtual driver keeps of each device."""

from __future__ import annotations

from flambeau.driver.virtual.memory.arena import Arena
from flambeau.driver.virtual.memory.virtual_ipc import SharedPages
from flambeau.driver.virtual.scheduling.scheduler import (
    DeviceState,
    Processors,
    SimulatedStream,
    TransferLane,
)


class VirtualDevice:
    """One simulated device: its memory, its engines, its default stream."""

    __slots__ = (
        "arena", "default", "index", "inward", "links", "outward", "peers", "processors", "shared_pages",
        "sides", "state",
    )  # fmt: skip

    def __init__(self, index: int, arena: Arena, default: int, sms: int) -> None:
        self.index = index
        self.arena = arena
        self.state = DeviceState(index)
        self.default = SimulatedStream(default, self.state, 0, "the default stream")
        self.sides = 0  # side streams of the program so far
        self.state.streams[default] = self.default
        self.processors = Processors(sms)
        self.inward = TransferLane()
        self.outward = TransferLane()
        self.links: dict[int, TransferLane] = {}  # to peers, made when first used
        self.peers: set[int] = set()  # whose memory this device may reach
        self.shared_pages: SharedPages | None = None  # with other processes, once anything is
