"""What commands cost in simulated time: pure functions of sizes and a profile.

A kernel takes the longer of its memory time and its arithmetic time (the roofline model of Williams,
Waterman and Patterson, 2009), at the share of the peaks that the profile states, on the multiprocessors
that its largest output fills with one thread an element. A quarter of the multiprocessors saturates the
memory, so that small kernels that run side by side do not share its bandwidth unfairly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flambeau.driver.api import Launch
from flambeau.driver.virtual.profile import Profile

_SATURATING_SHARE = 4  # one SM draws at most this many times its share of the bandwidth


def kernel_sms(launch: Launch, profile: Profile) -> int:
    """Multiprocessors that a launch fills."""
    threads = max([meta.numel for meta in launch.outputs], default=1)
    if not launch.outputs and launch.operands:
        threads = max(meta.numel for meta in launch.operands)
    return min(max(-(-threads // profile.threads_per_sm), 1), profile.sms)


def kernel_ns(launch: Launch, profile: Profile, sms: int) -> int:
    """Nanoseconds of a launch on `sms` multiprocessors, its start aside."""
    share = min(1.0, sms * _SATURATING_SHARE / profile.sms)
    memory = launch.nbytes / (profile.bandwidth * profile.efficiency.bandwidth * share)
    flops = launch.kernel.flops(launch)
    arithmetic = flops / (peak(launch.kernel.rate(launch), profile) * sms / profile.sms) if flops else 0.0
    return round(max(memory, arithmetic) * 1e9)


def peak(rate: str, profile: Profile) -> float:
    """Operations a second that the whole device reaches; kinds that it lacks run as float32."""
    for kind in (_KINDS.get(rate, rate), "float32"):
        value = getattr(profile.rates, kind, None)
        if value is not None:
            return float(value * getattr(profile.efficiency, kind))
    raise AssertionError("a profile has a float32 rate")


_KINDS = {"float8_e4m3fn": "float8", "float8_e5m2": "float8"}


def cycles_ns(cycles: int, profile: Profile) -> int:
    """Nanoseconds of clock cycles."""
    return max(cycles, 0) * 1_000_000 // profile.clock_khz


def bytes_ns(nbytes: int, rate: float) -> int:
    """Nanoseconds of moving bytes at a rate in bytes a second."""
    return round(nbytes * 1e9 / rate)


def local_copy_ns(nbytes: int, profile: Profile) -> int:
    """A copy within a device reads and writes its memory."""
    return bytes_ns(2 * nbytes, profile.bandwidth * profile.efficiency.bandwidth)


def fill_ns(nbytes: int, profile: Profile) -> int:
    return bytes_ns(nbytes, profile.bandwidth * profile.efficiency.bandwidth)


class Protocol(NamedTuple):
    """How NCCL moves what it moves: ns before the first step, ns of a step, and what it reaches of a ring's rate."""

    base_ns: int
    step_ns: int
    share: float


class Wire(NamedTuple):
    """What members of a node are linked by: a ring's bytes a second, NCCL's protocols over it, ns of a message."""

    rate: float
    protocols: tuple[Protocol, ...]
    message_ns: int


def wire(profile: Profile, direct: bool) -> Wire:
    """Links between devices, or the way through the host. Figures of nccl/src/graph/tuning.cc (2.28), for rings: the
    start of a kernel is in them."""
    links, start = profile.links, profile.costs.kernel_ns
    if direct:
        ll = Protocol(6_600, 600, min(0.5, links.ring_ll / links.ring))
        ll128, simple = Protocol(14_000, 1_900, 0.92), Protocol(8_400, 3_400, 1.0)
        return Wire(links.ring, (ll, ll128, simple), start + links.peer_latency_ns)
    ll = Protocol(6_600, 1_000, min(0.5, links.ring_ll / links.pcie))
    return Wire(links.pcie, (ll, Protocol(8_400, 5_700, 1.0)), start + 2 * links.copy_latency_ns)


def collective_ns(kind: str, nbytes: int, size: int, wire: Wire) -> tuple[int, int]:
    """(latency, time of the bytes) of a collective of `size` members of one node.

    nbytes: of one member's count. A ring (Patarasuk and Yuan, 2009) moves 1/size of the bytes in each of its
    2 (size - 1) steps of an all_reduce, or all of them in size - 1 of a reduce_scatter or all_gather; a broadcast or
    reduce is a pipeline around it. The protocol is the fastest, as NCCL chooses. Inside a node its trees are chains of
    as many steps, and slower; sums by the switch (NVLS) are not modelled.
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
    """The devices in an order in which each is linked to the next, and the last to the first, where there is one."""
    found = [indices[0]]
    left = [i for i in indices if i != indices[0]]
    return found + left if rule != "cube-mesh" else (_closed_ring(found, left, rule) or [*found, *left])


def _closed_ring(found: list[int], left: list[int], rule: str) -> list[int] | None:
    """A ring that begins with `found` and takes up `left`; None: there is none."""
    if not left:
        return found if are_linked(found[-1], found[0], rule) else None
    for index in left:
        if are_linked(found[-1], index, rule):
            ring = _closed_ring([*found, index], [i for i in left if i != index], rule)
            if ring is not None:
                return ring
    return None


def are_linked(index: int, peer: int, rule: str) -> bool:
    """Whether two devices reach each other's memory directly, by the profile's rule.

    all: through a switch. cube-mesh: DGX-1's two squares of four, each corner linked to its counterpart.
    """
    if index == peer or rule == "none":
        return False
    return rule == "all" or index // 4 == peer // 4 or (index // 8 == peer // 8 and index % 4 == peer % 4)
