"""The simulated cost of commands, as pure functions of sizes and a profile.

A kernel takes the longer of its memory time and its arithmetic time (the roofline model of Williams,
Waterman and Patterson, 2009). Peaks are reduced to the share that the profile states. The kernel fills the
multiprocessors (SMs) that its largest output needs with one thread an element. A quarter of the SMs
saturates the memory, so small kernels that run concurrently share the bandwidth fairly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flambeau.driver.api import Launch
from flambeau.driver.virtual.profile import Profile

_SATURATING_SHARE = 4  # one SM uses at most this many times its share of the bandwidth


def kernel_sms(launch: Launch, profile: Profile) -> int:
    """Return the number of multiprocessors that a launch fills."""
    threads = max([meta.numel for meta in launch.outputs], default=1)
    if not launch.outputs and launch.operands:
        threads = max(meta.numel for meta in launch.operands)
    return min(max(-(-threads // profile.threads_per_sm), 1), profile.sms)


def kernel_ns(launch: Launch, profile: Profile, sms: int) -> int:
    """Return the nanoseconds of a launch on `sms` multiprocessors, without the launch latency."""
    share = min(1.0, sms * _SATURATING_SHARE / profile.sms)
    memory = launch.nbytes / (profile.bandwidth * profile.efficiency.bandwidth * share)
    flops = launch.kernel.flops(launch)
    arithmetic = flops / (peak(launch.kernel.rate(launch), profile) * sms / profile.sms) if flops else 0.0
    return round(max(memory, arithmetic) * 1e9)


def peak(rate: str, profile: Profile) -> float:
    """Return the operations a second of the whole device. Kinds that it lacks run at float32's rate."""
    for kind in (_KINDS.get(rate, rate), "float32"):
        value = getattr(profile.rates, kind, None)
        if value is not None:
            return float(value * getattr(profile.efficiency, kind))
    raise AssertionError("a profile has a float32 rate")


_KINDS = {"float8_e4m3fn": "float8", "float8_e5m2": "float8"}


def cycles_ns(cycles: int, profile: Profile) -> int:
    """Return the nanoseconds of a number of clock cycles."""
    return max(cycles, 0) * 1_000_000 // profile.clock_khz


def bytes_ns(nbytes: int, rate: float) -> int:
    """Return the nanoseconds of moving bytes at a rate in bytes a second."""
    return round(nbytes * 1e9 / rate)


def local_copy_ns(nbytes: int, profile: Profile) -> int:
    """Return the nanoseconds of a copy within a device, which reads and writes its memory."""
    return bytes_ns(2 * nbytes, profile.bandwidth * profile.efficiency.bandwidth)


def fill_ns(nbytes: int, profile: Profile) -> int:
    return bytes_ns(nbytes, profile.bandwidth * profile.efficiency.bandwidth)


class Protocol(NamedTuple):
    """One of NCCL's protocols: latency before the first step, latency of a step, and share of a ring's
    bandwidth.
    """

    base_ns: int
    step_ns: int
    share: float


class Wire(NamedTuple):
    """The links between the members of a node: a ring's bytes a second, NCCL's protocols on it, ns of a
    message.
    """

    rate: float
    protocols: tuple[Protocol, ...]
    message_ns: int


def wire(profile: Profile, direct: bool) -> Wire:
    """Return the direct links between devices, or the connection through the host.

    The figures are those of nccl/src/graph/tuning.cc (2.28) for rings. They include the start of a kernel.
    """
    links, start = profile.links, profile.costs.kernel_ns
    if direct:
        ll = Protocol(6_600, 600, min(0.5, links.ring_ll / links.ring))
        ll128, simple = Protocol(14_000, 1_900, 0.92), Protocol(8_400, 3_400, 1.0)
        return Wire(links.ring, (ll, ll128, simple), start + links.peer_latency_ns)
    ll = Protocol(6_600, 1_000, min(0.5, links.ring_ll / links.pcie))
    return Wire(links.pcie, (ll, Protocol(8_400, 5_700, 1.0)), start + 2 * links.copy_latency_ns)


def collective_ns(kind: str, nbytes: int, size: int, wire: Wire) -> tuple[int, int]:
    """Return (latency, transfer time) in ns of a collective of `size` members of one node.

    A ring (Patarasuk and Yuan, 2009) moves 1/size of the bytes in each of the 2 (size - 1) steps of an
    all_reduce. A reduce_scatter or all_gather moves all bytes in size - 1 steps. A broadcast or reduce is a
    pipeline around the ring. The protocol is the fastest one, as NCCL chooses. Inside a node NCCL's trees
    are chains of as many steps, and slower. Sums by the switch (NVLS) are not modelled.

    Args:
        kind: Kind of the collective.
        nbytes: Size in bytes of one member's count.
        size: Number of members.
        wire: The links between the members.
    """
    if kind == "send/recv":
        return wire.message_ns, bytes_ns(nbytes, wire.rate)
    around = size - 1
    if kind == "all_reduce":
        steps, moved = 2 * around, 2 * around * nbytes // size
    elif kind in ("all_gather", "reduce_scatter"):
        steps, moved = around, around * nbytes
    else:
        steps, moved = around, nbytes
    ways = [(p.base_ns + steps * p.step_ns, bytes_ns(moved, wire.rate * p.share)) for p in wire.protocols]
    return min(ways, key=sum)


def ring_of(indices: Sequence[int], rule: str) -> list[int]:
    """Return the devices in an order in which neighbours are linked, and the last with the first, if there is
    one.
    """
    found = [indices[0]]
    left = [i for i in indices if i != indices[0]]
    return found + left if rule != "cube-mesh" else (_closed_ring(found, left, rule) or [*found, *left])


def _closed_ring(found: list[int], left: list[int], rule: str) -> list[int] | None:
    """Return a ring that begins with `found` and contains `left`; None if there is none."""
    if not left:
        return found if are_linked(found[-1], found[0], rule) else None
    for index in left:
        if are_linked(found[-1], index, rule):
            ring = _closed_ring([*found, index], [i for i in left if i != index], rule)
            if ring is not None:
                return ring
    return None


def are_linked(index: int, peer: int, rule: str) -> bool:
    """Return True if two devices access each other's memory directly under the profile's rule.

    The rule "all" stands for a switch. "cube-mesh" stands for DGX-1: two squares of four devices in which
    each corner is linked to its counterpart.
    """
    if index == peer or rule == "none":
        return False
    return rule == "all" or index // 4 == peer // 4 or (index // 8 == peer // 8 and index % 4 == peer % 4)
