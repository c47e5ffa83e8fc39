"""The simulated cost of collectives in a cluster of nodes that a network with one rail per GPU connects.

# Note [Collectives of a cluster] There are n ranks on m nodes of g GPUs; each contributes B bytes. Inside a
node a GPU sends `links.ring` bytes a second, into the network `cluster.rail`. The rails of a node work
together: a ring or tree has a channel for each.

ring          2 (n - 1) steps, of which 2 (m - 1) cross the network; 2 (n - 1) / n B through a node's slowest link
tree          up and down a chain of g in each node and a binary tree of the nodes: 2 (g - 1) steps inside,
              2 log2(m) across; 2 B / `tree_share` through a node's slowest link
hierarchical  reduce_scatter inside the node, all_reduce of B / g over each rail (the better of ring and tree),
              all_gather inside the node

Each begins with `base_ns`; a step costs `hop_ns` inside a node and `rail_hop_ns` across. NCCL chooses
between ring and tree by these formulas (`nccl/src/graph/tuning.cc`: steps, latencies of the protocol
Simple, a tree's share of a ring's bandwidth); an all_reduce costs the smaller of the two. The hierarchical
algorithm follows NCCL's NVLSTree in outline; a cluster's `algorithm` selects it. Inside one node,
`cost.collective_ns` holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.driver.virtual.cost import bytes_ns, collective_ns, wire
from flambeau.driver.virtual.profile import Profile

Cost = tuple[int, int]
"""Latency and transfer time, in ns."""


def cluster_ns(kind: str, nbytes: int, places: Sequence[int], profile: Profile) -> Cost:
    """Return the time of a collective among the GPUs `places`, which are numbered node by node.

    `nbytes` is the size of one member's count.
    """
    cluster = profile.cluster
    assert cluster is not None
    nodes = len({place // cluster.node for place in places})
    size = len(places)
    if nodes == 1:
        return collective_ns(kind, nbytes, size, wire(profile, True))
    each = max(size // nodes, 1)
    way = min(profile.links.ring, each * cluster.rail)
    if kind == "all_reduce":
        return _all_reduce(nbytes, size, nodes, profile)
    if kind == "send/recv":
        return cluster.base_ns + cluster.rail_hop_ns, bytes_ns(nbytes, cluster.rail)
    steps = (size - nodes) * cluster.hop_ns + (nodes - 1) * cluster.rail_hop_ns
    moved = (size - 1) * nbytes if kind in ("all_gather", "reduce_scatter") else nbytes
    return cluster.base_ns + steps, bytes_ns(moved, way)


def _all_reduce(nbytes: int, size: int, nodes: int, profile: Profile) -> Cost:
    cluster = profile.cluster
    assert cluster is not None
    ways = {"ring": _ring, "tree": _tree, "hierarchical": _hierarchical}
    names = ("ring", "tree") if cluster.algorithm == "nccl" else (cluster.algorithm,)
    return min([ways[name](nbytes, size, nodes, profile) for name in names], key=sum)


def _way(size: int, nodes: int, profile: Profile) -> float:
    """Return the bytes per second that can pass through a node."""
    assert profile.cluster is not None
    return min(profile.links.ring, max(size // nodes, 1) * profile.cluster.rail)


def _ring(nbytes: int, size: int, nodes: int, profile: Profile) -> Cost:
    cluster = profile.cluster
    assert cluster is not None
    across = 2 * (nodes - 1)
    latency = (2 * (size - 1) - across) * cluster.hop_ns + across * cluster.rail_hop_ns
    moved = 2 * (size - 1) * nbytes // size
    return cluster.base_ns + latency, bytes_ns(moved, _way(size, nodes, profile))


def _tree(nbytes: int, size: int, nodes: int, profile: Profile) -> Cost:
    cluster = profile.cluster
    assert cluster is not None
    inside, across = max(size // nodes, 1) - 1, (nodes - 1).bit_length()
    latency = 2 * (inside * cluster.hop_ns + across * cluster.rail_hop_ns)
    return cluster.base_ns + latency, bytes_ns(
        round(2 * nbytes / cluster.tree_share), _way(size, nodes, profile)
    )


def _hierarchical(nbytes: int, size: int, nodes: int, profile: Profile) -> Cost:
    cluster, links = profile.cluster, profile.links
    assert cluster is not None
    each = max(size // nodes, 1)
    inside = 2 * (each - 1) * cluster.hop_ns, bytes_ns(2 * (each - 1) * nbytes // each, links.ring)
    part = nbytes // each
    ring = (
        2 * (nodes - 1) * cluster.rail_hop_ns,
        bytes_ns(2 * (nodes - 1) * part // nodes, cluster.rail),
    )
    tree = (
        2 * (nodes - 1).bit_length() * cluster.rail_hop_ns,
        bytes_ns(round(2 * part / cluster.tree_share), cluster.rail),
    )
    across = min(ring, tree, key=sum)
    return cluster.base_ns + inside[0] + across[0], inside[1] + across[1]
