"""`Device` and `Event`: what a virtual driver keeps of each device and event."""

from __future__ import annotations

from flambeau.driver.virtual.capture import Capture
from flambeau.driver.virtual.memory import Arena
from flambeau.driver.virtual.scheduler import Command, DeviceState, Lane, Processors, Stream


class Device:
    """One simulated device: its memory, its engines, its default stream."""

    __slots__ = ("arena", "default", "index", "inward", "links", "outward", "peers", "processors", "state")

    def __init__(self, index: int, arena: Arena, default: int, sms: int) -> None:
        self.index = index
        self.arena = arena
        self.state = DeviceState(index)
        self.default = Stream(default, self.state, 0)
        self.state.streams[default] = self.default
        self.processors = Processors(sms)
        self.inward = Lane()
        self.outward = Lane()
        self.links: dict[int, Lane] = {}  # to peers, made when first used
        self.peers: set[int] = set()  # whose memory this device may reach


class Event:
    """An event of a device. `record` is the marker of its last record, in `capture` if it was recorded in one."""

    __slots__ = ("capture", "index", "record", "timing")

    def __init__(self, index: int, timing: bool) -> None:
        self.index = index
        self.timing = timing
        self.record: Command | None = None
        self.capture: Capture | None = None
