"""`join`: create a communicator. The ranks find each other by an id that the first of them publishes in the store.

NCCL waits forever for a missing rank. On real GPUs all ranks therefore first meet in the store, within the group's
timeout, and NCCL's initialization is aborted after the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from flambeau.core import callsite
from flambeau.core.errors import DriverError
from flambeau.distributed.backends import rank_processes, watchdog
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.backends.communicator import Pair
from flambeau.distributed.backends.rank_progress import RankProgress
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.stores.store import await_keys
from flambeau.runtime import system
from flambeau.runtime.device_context import Context


def join(
    context: Context, place: Place, timeout: timedelta, pair: Pair | None, number: int
) -> tuple[int, RankProgress | None]:
    """Create, for this rank's device, the communicator of all ranks of a group or of a pair of ranks.

    Args:
        number: How many of the rank's devices have joined before. The second communicator of one rank pairs with the
            second of the others.

    Raises:
        DistBackendError: If a rank has not joined in time, or NCCL has failed.
    """
    # one rank if it sends a message to itself
    ranks = range(place.size) if pair is None else (*dict.fromkeys(pair),)
    rank, called = ranks.index(place.rank), [place.ranks[other] for other in ranks]
    whose = "all ranks" if pair is None else f"ranks {', '.join(map(str, called))}"
    name = f"group {place.name}" if pair is None else f"messages of group {place.name}"
    key = f"communicator of {whose} ({name})/{number}"  # deadlock reports show this key
    what = f"first {'collective' if pair is None else 'message'} of group {place.name}"
    driver, store = context.driver, place.store
    wait = partial(_wait, place, ranks, what, timeout)
    try:
        if rank == 0:
            store.set(key, driver.comm_id())
        if system.is_virtual():
            progress = None
            wait([key])
        else:
            progress = _await_members(store, key, called, rank, wait)
        members = [(rank, context.driver_index)]
        create = partial(driver.comm_create, store.get(key), len(ranks), members, called, name)
        comms = create() if progress is None else _in_time(create, place, timeout)
    except DriverError as error:
        raise DistBackendError(str(error)) from error
    return comms[0], progress


def _await_members(
    store: Any, key: str, called: Sequence[int], rank: int, wait: Callable[[Sequence[str]], None]
) -> RankProgress:
    """Wait until all ranks have joined."""
    keys = [f"{key}/{number}" for number in range(len(called))]
    store.set(keys[rank], rank_processes.here())
    wait(keys)
    addresses = [text.decode() for text in store.multi_get(keys)]
    return RankProgress(store, key, called, called[rank], addresses)


def _wait(place: Place, ranks: Sequence[int], what: str, timeout: timedelta, keys: Sequence[str]) -> None:
    """Wait for keys that the first of `ranks` sets.

    Raises:
        DistBackendError: If the rank does not set them in time, or its process has ended.
    """
    why = await_keys(place.store, keys, timeout, lambda: _describe_ended(place.store, ranks, keys))
    if why is not None:
        missing = [str(place.ranks[rank]) for rank in _late(place.store, ranks, keys)]
        raise DistBackendError(
            f"rank {place.ranks[place.rank]} at {_here()}: rank{'s' * (len(missing) > 1)} {', '.join(missing)} did not "
            f"arrive {'' if why else f'within {timeout.total_seconds():g} s '}at the {what} "
            f"(ranks {', '.join([str(place.ranks[rank]) for rank in ranks])}){why}"
        )


def _late(store: Any, ranks: Sequence[int], keys: Sequence[str]) -> list[int]:
    """Return those of `ranks` that have not set their keys."""
    return [rank for rank, key in zip(ranks, keys, strict=False) if not store.check([key])]


def _describe_ended(store: Any, ranks: Sequence[int], keys: Sequence[str]) -> str:
    """Return text that names a rank whose process has ended; "" if no such rank is known."""
    return next(
        filter(None, [rank_processes.describe_ended(store, rank) for rank in _late(store, ranks, keys)]), ""
    )


def _in_time(create: Callable[[], list[int]], place: Place, timeout: timedelta) -> list[int]:
    """Run NCCL's initialization with a timeout, because a member that ends during it would block it forever."""
    found: list[Any] = []

    def attempt() -> None:
        try:
            found.append(create())
        except Exception as error:
            found.append(error)

    if not watchdog.within(attempt, seconds=timeout.total_seconds()):
        raise DistBackendError(
            f"rank {place.ranks[place.rank]} at {_here()}: NCCL did not join the ranks of group {place.name} within "
            f"{timeout.total_seconds():g} s"
        )
    if isinstance(found[0], Exception):
        raise found[0]
    joined: list[int] = found[0]
    return joined


def _here() -> str:
    """Return the line of the program."""
    return callsite.place(callsite.caller())
