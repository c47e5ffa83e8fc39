"""The simulated cost of commands, as pure functions of sizes and a profile.

A kernel takes the longest of its memory time, its instructions' time, its products' time (a roofline model:
Williams, Waterman and Patterson, 2009) and its longest chain of loads, and the latency before and after them. What a
launch does is its record's `Kernel.work`. Peaks are reduced to the share that the profile states. Data that fits into
the L2 cache moves at its rate. A quarter of the multiprocessors saturates the memory, so small kernels that run
concurrently share the bandwidth fairly. `bench/accuracy` compares these times with measured ones, to which the
constants below are fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flambeau.driver.protocol import MatrixProduct, Work
from flambeau.driver.virtual.profile import Links, Profile

_SATURATING_SHARE = 4  # one SM uses at most this many times its share of the bandwidth
_THREADS_OF_A_BLOCK = 1024  # elements that a block processes: a thread handles several
# instructions that a multiprocessor starts in a cycle: four schedulers, 32 lanes each
_INSTRUCTIONS_OF_A_CYCLE = 128
_STAGING_NS = 5000  # for which the host and the engine wait for each other in a copy of pageable memory
_STAGING_BUFFER = 1 << 19  # bytes of the staging buffer; larger copies of pageable memory reach the full rate
_CLOCK_SHARE = 0.886  # the share of the boost clock under load
# Data up to L2 * (SHARE - EDGE) stays in the cache, from L2 * SHARE on none does.
_L2_SHARE, _L2_EDGE = 0.9, 0.55

# See Note [The time of a product].
_TILES = ((128, 256), (128, 128), (64, 128), (64, 64), (32, 64), (32, 32), (16, 32))
_HALF_KINDS = ("float16", "bfloat16", "float8")
_FEWEST_STEPS = 64  # of a part of the depth


class Tiling(NamedTuple):
    """The constants of products by kind of arithmetic. See Note [The time of a product].

    Attributes:
        shrink: Factor of the rate from one tile size to the next smaller one.
        step: Least seconds of a unit of the depth.
        tile: Seconds of a tile beyond its depth.
        split: Seconds of the sum of split parts.
        slower: Widest load in bytes -> factors of the time of the arithmetic and of the steps.
    """

    shrink: float
    step: float
    tile: float
    split: float
    slower: dict[int, tuple[float, float]]


_HALF = Tiling(1.0, 3.5e-9, 0.66e-6, 4.3e-6, {8: (2.0, 1.83), 4: (3.7, 1.83), 2: (6.0, 4.0)})
_TF32 = Tiling(0.62, 11.3e-9, 1.1e-6, 2.5e-6, {8: (1.87, 1.0), 4: (1.87, 1.0)})
_SINGLE = Tiling(0.88, 11.6e-9, 1.27e-6, 7.2e-6, {})


def kernel_sms(work: Work, profile: Profile) -> int:
    """Return the number of multiprocessors that a launch fills."""
    return min(max(-(-work.threads // profile.threads_per_sm), 1), profile.sms)


def kernel_ns(work: Work, profile: Profile) -> int:
    """Return the nanoseconds of a launch from the start of its first kernel."""
    blocks = min(max(-(-work.threads // _THREADS_OF_A_BLOCK), 1), profile.sms)
    memory = work.nbytes / (
        memory_rate(work.resident, profile) * min(1.0, blocks * _SATURATING_SHARE / profile.sms)
    )
    clock = profile.clock_khz * 1e3 * _CLOCK_SHARE
    issue = work.instructions / (_INSTRUCTIONS_OF_A_CYCLE * blocks * clock)
    product = product_seconds(work.product, profile) if work.product is not None else 0.0
    between = max(work.kernels - 1, 0) * profile.costs.kernel_ns
    return round((max(memory, issue, product, work.chain / clock) + work.cycles / clock) * 1e9) + between


def memory_rate(resident: float, profile: Profile) -> float:
    """Return the bytes per second that a kernel with `resident` bytes of data moves, from the L2 cache or from
    memory.
    """
    cached = (_L2_SHARE * profile.l2 - resident) / (_L2_EDGE * profile.l2) if profile.l2 else 0.0
    hits = min(max(cached, 0.0), 1.0)
    return 1 / (hits / profile.l2_bandwidth + (1 - hits) / (profile.bandwidth * profile.efficiency.bandwidth))


# Note [The time of a product]
# A product is cut into tiles of the result, which the multiprocessors compute in waves. Of the tile sizes, and of
# the numbers of parts that the depth is split into, the fastest counts. A tile takes the time of its arithmetic,
# at a rate that falls with its size, and at least the latency of each step along the depth. The sums of split
# parts pass through the L2 cache.


def product_seconds(product: MatrixProduct, profile: Profile) -> float:
    """Return the seconds of matrix products, without the start of their kernel. See Note [The time of a product]."""
    tiling = _tiling(product.rate, profile)
    slower, slower_steps = tiling.slower.get(product.load, (1.0, 1.0))
    reached = min(peak(product.rate, profile) * product.share, roof(product.rate, profile))
    rate = reached / (profile.sms * slower)
    step = tiling.step * slower_steps / product.share
    best = float("inf")
    for place, sides in enumerate(_TILES):
        shrunk = rate * tiling.shrink**place
        for high, wide in {sides, sides[::-1]}:
            tiles = product.count * -(-product.rows // high) * -(-product.columns // wide)
            together = min(2 ** (place / 2), 4.0)
            best = min(
                best,
                _tiled_seconds(product, profile, tiling, tiles, 2 * high * wide / shrunk, step, together),
            )
    return best


def _tiling(rate: str, profile: Profile) -> Tiling:
    """Return the sizes and times of a product's tiles at a rate of arithmetic, or float32's if the device lacks it."""
    kind = _kind(rate, profile)
    return _HALF if kind in _HALF_KINDS else _TF32 if kind == "tf32" else _SINGLE


def _tiled_seconds(
    product: MatrixProduct, profile: Profile, tiling: Tiling, tiles: int, arithmetic: float, step: float,
    together: float,
) -> float:  # fmt: skip
    """Return the seconds of all tiles, for the best split of the depth.

    Args:
        tiles: Number of tiles.
        arithmetic: Seconds of a tile for each unit of the depth, at the full rate of a multiprocessor.
        step: The least seconds of it.
        together: Number of tiles that share a multiprocessor and hide each other's latency.
    """
    best = float("inf")
    for parts in (1, 2, 4, 8, 16, 32):
        if parts > 1 and (product.depth < _FEWEST_STEPS * parts or tiles * parts > 2 * profile.sms):
            break
        waves, depth = -(-tiles * parts // profile.sms), -(-product.depth // parts)
        rounds = max(waves / together, 1.0)
        seconds = (
            max(waves * depth * arithmetic, rounds * depth * max(arithmetic, step)) + rounds * tiling.tile
        )
        if parts > 1:
            sums = 8 * product.count * product.rows * product.columns * parts
            seconds += tiling.split + sums / profile.l2_bandwidth
        best = min(best, seconds)
    return best


def peak(rate: str, profile: Profile) -> float:
    """Return the operations per second that large products reach on the whole device."""
    return roof(rate, profile) * float(getattr(profile.efficiency, _kind(rate, profile)))


def roof(rate: str, profile: Profile) -> float:
    """Return the operations per second of the whole device that no product exceeds."""
    return float(getattr(profile.rates, _kind(rate, profile)))


def _kind(rate: str, profile: Profile) -> str:
    """Return the key of a kind of arithmetic. A kind that the device lacks runs at float32's rate."""
    kind = _KINDS.get(rate, rate)
    return kind if getattr(profile.rates, kind, None) is not None else "float32"


_KINDS = {"float8_e4m3fn": "float8", "float8_e5m2": "float8"}


def cycles_ns(cycles: int, profile: Profile) -> int:
    """Return the nanoseconds of a number of clock cycles."""
    return max(cycles, 0) * 1_000_000 // profile.clock_khz


def bytes_ns(nbytes: int, rate: float) -> int:
    """Return the nanoseconds that moving bytes takes at a rate in bytes per second."""
    return round(nbytes * 1e9 / rate)


def staged_in_ns(nbytes: int, links: Links) -> int:
    """Return the nanoseconds of a copy from pageable memory, which the host copies to the staging buffer."""
    return bytes_ns(nbytes, links.pageable) + _STAGING_NS


def staged_out_ns(nbytes: int, links: Links) -> int:
    """Return the nanoseconds of a copy to pageable memory.

    Except for the first piece, the host empties the staging buffer while the engine fills it again.
    """
    first = bytes_ns(min(nbytes, _STAGING_BUFFER), links.host_copy)
    return bytes_ns(nbytes, links.pageable_out) + first + _STAGING_NS


def local_copy_ns(nbytes: int, profile: Profile) -> int:
    """Return the nanoseconds of a copy within a device, which both reads and writes its memory."""
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
    return Wire(links.pcie, (ll, Protocol(8_400, 5_700, 1.0)), start + links.copy_in_ns)


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
    """Return the devices in a ring order in which neighbours are linked; in the given order if there is none."""
    found = [indices[0]]
    left = [i for i in indices if i != indices[0]]
    return found + left if rule != "cube-mesh" else (_closed_ring(found, left, rule) or [*found, *left])


def _closed_ring(found: list[int], left: list[int], rule: str) -> list[int] | None:
    """Return a ring that begins with `found` and contains all of `left`; None if there is none."""
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
