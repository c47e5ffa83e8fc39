"""`ranks`: run several ranks of a program as threads of this process, in a reproducible order.

    def body():
        dist.init_process_group("nccl")
        t = torch.ones(4, device="cuda")
        dist.all_reduce(t)
        return t.tolist()

    assert ranks(body, 4) == [[4.0] * 4] * 4

Each rank is a thread with its own virtual GPU as the current device, its own environment (RANK, WORLD_SIZE, LOCAL_RANK
...) for `init_process_group`, and its own process groups. One rank runs at a time, and the next one when it waits: for
another rank's contribution to a collective, for a key of the store, or at the end. A run therefore repeats exactly. A
wait that can never end is reported immediately, with all waiting ranks and their call sites.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from flambeau.core.brief import brief
from flambeau.core.host.turn_scheduler import Baton, seat
from flambeau.distributed import world
from flambeau.distributed.setup import _abort_process_group
from flambeau.distributed.stores.store import HashStore
from flambeau.runtime import current, generator, system
from flambeau.testing import make_callable


def ranks(
    fn: Callable[..., Any],
    n: int,
    *args: Any,
    profile: str | None = None,
    schedule: str | None = None,
    races: str | None = None,
    poison: bool | None = None,
    data: bool | None = None,
    order: int | None = None,
) -> list[Any]:
    """Run `fn(*args)` on `n` ranks and return the results by rank.

    The first error of a rank ends the others at their next wait, and is raised with the rank in its notes. A rank that
    calls `sys.exit()` has ended, as if `fn` had returned None.

    Args:
        profile, schedule, races, poison, data: Settings of the virtual GPUs, one GPU for each rank (see
            `flambeau.virtual`). If n GPUs are open already and these are None, the ranks use the open GPUs.
        order: Seed for the choice of the next rank among several that can run; None for round robin.

    Raises:
        DriverError: If all ranks wait for each other.
        ValueError: If n is less than 1.
        RuntimeError: If a rank has called `sys.exit` with a status other than 0.
    """
    if n < 1:
        raise ValueError(f"ranks: there must be at least one, not {n}")
    given = {"profile": profile, "schedule": schedule, "races": races, "poison": poison, "data": data}
    with _machine(n, {name: value for name, value in given.items() if value is not None}):
        return _run(fn, n, args, order)


@contextmanager
def _machine(n: int, given: dict[str, Any]) -> Iterator[None]:
    """Open virtual GPUs, at least one for each rank, or use the open ones."""
    if not given and system.is_virtual() and system.device_count() >= n:
        yield
        return
    with system.virtual(devices=n, **given):
        yield


def _run(fn: Callable[..., Any], n: int, args: Sequence[Any], order: int | None) -> list[Any]:
    system.init()
    session = world.Session(HashStore())
    hosts = Hosts()
    choose = None if order is None else random.Random(order).choice
    baton = Baton(n, choose, hosts.switch)
    results: list[Any] = [None] * n

    def body(rank: int) -> None:
        with _rank(rank, n, session):
            results[rank] = _result(rank, fn, args)

    try:
        error = baton.run([partial(body, rank) for rank in range(n)])
    finally:
        hosts.join()
    if error is not None:
        error.add_note(f"(rank {baton.failed} of {n})")
        raise error
    return results


def _result(rank: int, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Return the result of a rank's function. `sys.exit` ends the rank and not the program, as it ends a process."""
    try:
        return fn(*args)
    except SystemExit as end:
        if end.code is None or (isinstance(end.code, int) and end.code == 0):
            return None
        raise RuntimeError(f"rank {rank} has ended by sys.exit({brief(end.code)})") from end


@contextmanager
def _rank(rank: int, size: int, session: world.Session) -> Iterator[None]:
    """Make this thread a rank inside the block."""
    mine = world.World(environment(rank, size), session)
    world.local.world = mine
    current.local.device = rank
    try:
        yield
    except BaseException:
        if mine.default is not None:
            _abort_process_group()
        raise
    finally:
        world.local.world = None


def environment(rank: int, size: int) -> dict[str, str]:
    """Return the environment variables that `flambeau launch` sets for a rank on one node."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip


class Hosts:
    """Separate hosts of the ranks, so that time and waits of one rank do not affect the others.

    Each has its own default generators, which start as copies of the caller's.
    """

    def __init__(self) -> None:
        driver: Any = system.accelerator()
        self._those = [system.bare_driver(), *filter(None, [getattr(driver, "detector", None)])]
        self._outer = generator.defaults()
        self._random: dict[int, generator.Defaults] = {}
        generator.use_defaults(self._outer.copy())  # the first rank's

    def switch(self, before: int, after: int) -> None:
        """Switch to another rank's host."""
        for one in self._those:
            one.switch_host(before, after)
        self._random[before] = generator.defaults()
        generator.use_defaults(self._random.get(after) or self._outer.copy())

    def join(self) -> None:
        """Return to the host that started the ranks, after all have ended."""
        for one in self._those:
            one.join_hosts()
        generator.use_defaults(self._outer)


def rank() -> int:
    """Return the number of the rank that asks.

    Raises:
        RuntimeError: If it is invalid.
    """
    mine = seat()
    if mine is None:
        raise RuntimeError("this thread is not a rank of testing.ranks")
    return mine.number


make_callable(__name__)
