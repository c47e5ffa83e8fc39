"""`cluster`: simulate one of many equal ranks, with simulated time and without data.

    with cluster(512, profile="dgx-h200"):
        dist.init_process_group("cpu:gloo,cuda:nccl")
        net = DistributedDataParallel(model.cuda(), device_ids=[0])
        ...                                     # a step takes as long as on 512 GPUs

# Note [Simulated clusters]
The program is rank 0 of `size`, with one virtual GPU without data (`flambeau.virtual(data=False)`). The other ranks do
not run; they are assumed to do the same as rank 0 at the same time. Collectives on GPUs begin when rank 0 calls them
and cost what the cluster's links determine (Note [Collectives of a cluster]); collectives on the CPU combine copies of
rank 0's numbers. A step of thousands of GPUs is therefore simulated as fast as a step of one.

The simulation omits differences between ranks (slow nodes, noise, uneven batches), congestion in the network, groups
other than that of all ranks, and the multiprocessors that NCCL's own kernels use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flambeau.core.host_arrays import bytes_at
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed import world
from flambeau.distributed.backends.thread_backend import Hub, Part
from flambeau.distributed.setup import destroy_process_group
from flambeau.distributed.stores.store import HashStore
from flambeau.driver.collective_rules import PAIRED, perform, spans
from flambeau.runtime import system
from flambeau.testing.ranks import environment

explain_absent_names(globals(), "flambeau.testing.cluster")


@contextmanager
def cluster(size: int, profile: str = "dgx-h200", schedule: str | None = None) -> Iterator[Any]:
    """Become rank 0 of `size` simulated ranks of a cluster. See Note [Simulated clusters].

    Args:
        profile: Name of a profile with a cluster ("dgx-h100", "dgx-h200"), or the path of a TOML file.

    Yields:
        The machine.

    Raises:
        ValueError: If the profile does not exist, or `size` is less than 1.
        NotSupportedError: If the profile has no cluster; inside the block, if a call reads a value of a GPU.
    """
    if size < 1:
        raise ValueError(f"cluster: there must be at least one rank, not {size}")
    with system.virtual(devices=1, profile=profile, schedule=schedule, races="off", data=False) as machine:
        system.init()
        system.bare_driver().mirror(size)
        before, world.local.world = world.local.world, world.World(environment(0, size), Mirrored())
        try:
            yield machine
        finally:
            if world.world().default is not None:
                destroy_process_group()
            world.local.world = before


class Mirrored(world.Session):
    """The state that simulated ranks share: a separate store, and coordinators where all ranks arrive with this one."""

    def __init__(self) -> None:
        super().__init__(HashStore())

    def hub(self, name: str) -> Hub:
        return _MirrorHub()


class _MirrorHub(Hub):
    """The coordinator of CPU tensors, to which every rank contributes equal numbers."""

    def post(self, part: Part, size: int, channel: object) -> None:
        call = part.call
        if call.kind in PAIRED:
            raise RuntimeError(
                "in a simulated cluster all ranks do the same: none receives what another sends"
            )
        _, read = spans(call, 0, size)
        mine = b"" if read is None or not read[1] else bytes(bytes_at(*read))
        perform([call] * size, bytes_at, dict.fromkeys(range(1, size), mine))
        part.done = True
