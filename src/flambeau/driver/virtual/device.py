"""One simulated device."""

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
    """One simulated device: its memory, its copy engines and links, and its default stream."""

    __slots__ = (
        "arena", "default", "index", "inward", "links", "outward", "peers", "processors", "shared_pages",
        "sides", "state",
    )  # fmt: skip

    def __init__(self, index: int, arena: Arena, default: int, sms: int) -> None:
        self.index = index
        self.arena = arena
        self.state = DeviceState(index)
        self.default = SimulatedStream(default, self.state, 0, "the default stream")
        self.sides = 0  # number of side streams that the program has created
        self.state.streams[default] = self.default
        self.processors = Processors(sms)
        self.inward = TransferLane()
        self.outward = TransferLane()
        self.links: dict[int, TransferLane] = {}  # peer -> link, created at its first use
        self.peers: set[int] = set()  # devices whose memory this device may access
        # memory shared with other processes; None if there is none
        self.shared_pages: SharedPages | None = None
