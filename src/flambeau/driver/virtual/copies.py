"""Copies and fills on virtual GPUs."""

from __future__ import annotations

from flambeau.core.host_arrays import address_of, bytes_at
from flambeau.driver.protocol import HostMemory
from flambeau.driver.virtual import cost
from flambeau.driver.virtual.capture import Captures
from flambeau.driver.virtual.command_effects import Contents
from flambeau.driver.virtual.host_time import HostCosts
from flambeau.driver.virtual.scheduling import scheduler
from flambeau.driver.virtual.simulated_machine import SimulatedMachine, check_error
from flambeau.driver.virtual.streams import Queues
from flambeau.driver.virtual.topology import Routes


class Copies:
    """The copies and fills of a machine. Addresses are checked in the call; bytes move when the command runs."""

    def __init__(
        self,
        machine: SimulatedMachine,
        queues: Queues,
        captures: Captures,
        routes: Routes,
        contents: Contents,
        host: HostCosts,
    ) -> None:
        self._machine, self._queues, self._captures = machine, queues, captures
        self._routes, self._contents, self._host = routes, contents, host.calls
        self._core, self._profile = machine.core, machine.profile

    def to_device(self, target: int, source: HostMemory, stream: int) -> None:
        nbytes = source.nbytes
        queue = self._queues.ready(stream)
        if not nbytes:
            return
        device = self._machine.require_memory("copy_in", target, nbytes)
        profile = self._profile
        if not source.pinned:
            self._captures.refuse(queue)
            if self._machine.budget is not None:
                self._machine.budget.require("copy_in", device.index, nbytes)
            source = _stage(source)
        self._core.now += self._host["copy_in"]
        links = profile.links
        work = cost.bytes_ns(nbytes, links.pcie) if source.pinned else cost.staged_in_ns(nbytes, links)
        self._queues.put(
            scheduler.COPY_IN, "copy_in", queue, nbytes, device.inward, profile.links.copy_in_ns, work,
            self._contents.copy_in, (device.arena, target, source), target,
        )  # fmt: skip
        if not source.pinned:  # the host fills the staging buffer while the engine empties it
            self._core.now += work

    def to_host(self, target: HostMemory, source: int, stream: int) -> None:
        nbytes = target.nbytes
        queue = self._queues.ready(stream)
        if not target.pinned:
            self._captures.refuse(queue)
        if nbytes:
            device = self._machine.require_memory("copy_out", source, nbytes)
            links = self._profile.links
            self._core.now += self._host["copy_out"]
            self._queues.put(
                scheduler.COPY_OUT, "copy_out", queue, nbytes, device.outward, links.copy_out_ns,
                cost.bytes_ns(nbytes, links.pcie) if target.pinned else cost.staged_out_ns(nbytes, links),
                self._contents.copy_out, (target, device.arena, source), source,
            )  # fmt: skip
        if not target.pinned:
            self._core.now += self._profile.costs.sync_ns
            self._core.wait(queue)
            check_error(queue.device)

    def between(self, target: int, source: int, nbytes: int, stream: int) -> None:
        queue = self._queues.ready(stream)
        if not nbytes:
            return
        to, origin = (
            self._machine.require_memory("copy", target, nbytes),
            self._machine.require_memory("copy", source, nbytes),
        )
        engine, latency, work = self._routes.copy(origin, to, nbytes)
        self._core.now += self._host["copy"]
        self._queues.put(
            scheduler.COPY, "copy", queue, nbytes, engine, latency, work,
            self._contents.copy, (to.arena, target, origin.arena, source, nbytes), target,
        )  # fmt: skip

    def fill(self, target: int, byte: int, nbytes: int, stream: int) -> None:
        queue = self._queues.ready(stream)
        if not nbytes:
            return
        device, profile = self._machine.require_memory("fill", target, nbytes), self._profile
        self._machine.check_reach("fill", queue.index, device, target, nbytes)
        self._core.now += self._host["fill"]
        self._queues.put(
            scheduler.FILL, "fill", queue, nbytes, self._machine.devices[queue.index].processors,
            profile.costs.kernel_ns, cost.fill_ns(nbytes, profile),
            self._contents.fill, (device.arena, target, byte & 255, nbytes), target,
            max(profile.sms // 4, 1),
        )  # fmt: skip


def _stage(source: HostMemory) -> HostMemory:
    """Return a copy of the bytes, in new memory."""
    copy = bytes_at(source.ptr, source.nbytes).copy()
    return HostMemory(address_of(copy), source.nbytes, copy)
