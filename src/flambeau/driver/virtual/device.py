"""`Device` and `Event`: what a virtual driver keeps of each device and event."""

from __future__ import annotations

from flambeau.driver.virtual.capture import Capture
from flambeau.driver.virtual.ipc import SharedPages
from flambeau.driver.virtual.memory import Arena
from flambeau.driver.virtual.scheduler import Command, DeviceState, Lane, Processors, Stream


class Device:
    """One simulated device: its memory, its engines, its default stream."""

    __slots__ = (
        "arena", "default", "index", "inward", "links", "outward", "peers", "processors", "shared", "state",
    )  # fmt: skip

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
        self.shared: SharedPages | None = None  # with other processes, once anything is


class Event:
    """An event of a device. `record` is the marker of its last record, in `capture` if it was recorded in one."""

    __slots__ = ("capture", "index", "interprocess", "record", "timing")

    def __init__(self, index: int, timing: bool, interprocess: bool = False) -> None:
        self.index = index
        self.timing = timing
        self.interprocess = interprocess
        self.record: Command | None = None
        self.capture: Capture | None = None
