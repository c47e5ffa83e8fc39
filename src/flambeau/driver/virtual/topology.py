"""Routes between virtual devices: the engines and links that bytes take, and their durations."""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.core.errors import NotSupportedError
from flambeau.driver.virtual import cost
from flambeau.driver.virtual.cluster_cost import cluster_ns
from flambeau.driver.virtual.device import VirtualDevice
from flambeau.driver.virtual.scheduling.scheduler import Engine, Path, TransferLane
from flambeau.driver.virtual.simulated_machine import SimulatedMachine

Route = tuple[Engine, int, int]
"""Engine, latency in ns and transfer time in ns."""


class Routes:
    """The routes between the devices of a machine, and the peer access that is enabled."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine

    def copy(self, origin: VirtualDevice, to: VirtualDevice, nbytes: int) -> Route:
        """Return the route of a copy between device memories."""
        profile = self._machine.profile
        links = profile.links
        if origin is to:
            return origin.processors, profile.costs.kernel_ns, cost.local_copy_ns(nbytes, profile)
        if to.index in origin.peers or origin.index in to.peers:
            lane = origin.links.setdefault(to.index, TransferLane())
            return lane, links.peer_latency_ns, cost.bytes_ns(nbytes, links.peer)
        return (
            Path(origin.outward, to.inward),
            links.copy_out_ns + links.copy_in_ns,
            cost.bytes_ns(nbytes, links.pcie),
        )

    def ring(self, kind: str, nbytes: int, indices: Sequence[int]) -> Route:
        """Return the route that a collective of these devices takes."""
        profile, all_devices = self._machine.profile, self._machine.devices
        if profile.cluster is not None and len(indices) > 1:
            latency, work = cluster_ns(kind, nbytes, indices, profile)
            here = [all_devices[i] for i in indices if i < len(all_devices)]
            return Path(*[d.links.setdefault(-1, TransferLane()) for d in here]), latency, work
        rule = profile.links.rule
        devices = [all_devices[i] for i in cost.ring_of(indices, rule)]
        if len({*indices}) == 1:
            return devices[0].processors, profile.costs.kernel_ns, cost.local_copy_ns(nbytes, profile)
        hops = list(zip(devices, [*devices[1:], devices[0]], strict=True))
        if kind == "send/recv":
            hops = [(all_devices[indices[0]], all_devices[indices[1]])]
        direct = all(cost.are_linked(a.index, b.index, rule) for a, b in hops)
        lanes: dict[TransferLane, None] = {}
        for origin, to in hops:
            lanes |= dict.fromkeys(
                [origin.links.setdefault(to.index, TransferLane())] if direct else [origin.outward, to.inward]
            )
        latency, work = cost.collective_ns(kind, nbytes, len(indices), cost.wire(profile, direct))
        return Path(*lanes), latency, work

    # -- peers ------------------------------------------------------------------------------------------
    def can(self, index: int, peer: int) -> bool:
        """Return True if a device can access a peer's memory."""
        machine = self._machine
        machine.device(index), machine.device(peer)
        cluster = machine.profile.cluster
        apart = cluster is not None and index // cluster.node != peer // cluster.node
        return not apart and cost.are_linked(index, peer, machine.profile.links.rule)

    def enable(self, index: int, peer: int) -> None:
        """Enable a device's access to a peer's memory."""
        machine = self._machine
        if not self.can(index, peer):
            raise NotSupportedError(f"cuda:{index} cannot reach cuda:{peer}'s memory: {machine.profile.name}")
        machine.core.now += machine.profile.costs.call_ns
        machine.devices[index].peers.add(peer)
