"""`World`: the process groups of one rank. Owner of the process groups.

A process is one rank, and all its threads see one world. Ranks that are threads (`testing.ranks`) have one each.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from flambeau.core.public_names import lacks
from flambeau.distributed.backend_names import BackendType
from flambeau.distributed.backends import backend_registry, rank_processes
from flambeau.distributed.backends.backend import DEFAULT, Backend, Place
from flambeau.distributed.backends.thread_backend import Hub
from flambeau.distributed.debug import Agreement, DebugLevel, level_of
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.stores.store import PrefixStore

NOT_INITIALIZED = (
    "Default process group has not been initialized, please make sure to call init_process_group."
)


class ProcessGroup:
    """An ordered group of ranks. `new_group` creates groups."""

    __module__ = "flambeau.distributed"
    __getattr__ = lacks
    BackendType = BackendType
    UNDEFINED, GLOO, NCCL, UCC, MPI, XCCL, CUSTOM = BackendType

    def __init__(
        self, place: Place, word: str, devices: Mapping[str, str], hub: Hub | None, description: str
    ) -> None:
        self._place = place
        self._word = word
        self._devices = dict(devices)
        self._hub = hub
        self._backends: dict[str, Backend] = {}
        self._detail = world().debug is DebugLevel.DETAIL
        self._left = ""  # the reason why the group was left; empty while it is open
        self.group_desc = description
        self.bound_device_id: Any = None
        self.splits = 0  # number of splits so far

    def rank(self) -> int:
        """Return this rank's number in the group."""
        return self._place.rank

    def size(self) -> int:
        """Return the number of ranks in the group."""
        return self._place.size

    def name(self) -> str:
        """Return the backend's name."""
        return self._word

    @property
    def group_name(self) -> str:
        return self._place.name

    def get_group_store(self) -> Any:
        """Return the group's part of the store."""
        return self._place.store

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations.

        Raises:
            TypeError: If the value is not a timedelta.
        """
        if not isinstance(timeout, timedelta):
            raise TypeError(f"Expected timeout argument to be of type datetime.timedelta, got {timeout}")
        self._place = replace(self._place, timeout=timeout)
        for backend in self._backends.values():
            backend.set_timeout(timeout)

    def abort(self) -> None:
        """Abort all communicators of the group immediately: waits for other ranks fail."""
        self._left = "was aborted"
        for backend in self._backends.values():
            backend.abort()
        self._backends = {}

    def shutdown(self) -> None:
        """Close the group's communicators after pending operations."""
        self._left = "was shut down"
        for backend in self._backends.values():
            backend.close()
        self._backends = {}

    def backend_of(self, device_type: str) -> Backend:
        """Return the backend of a kind of device, created on first use.

        Raises:
            RuntimeError: If none is named.
            DistBackendError: If the group was left.
        """
        if self._left:
            raise DistBackendError(
                f"process group {self.group_name} {self._left}: nothing more goes through it"
            )
        found = self._backends.get(device_type)
        if found is None:
            word = self._devices.get(device_type)
            if word is None:
                raise RuntimeError(f"No backend type associated with device type {device_type}")
            found = self._backends[device_type] = backend_registry.make(
                word, device_type, self._place, self._hub, lambda: self._host_backend(word)
            )
            if self._detail and self._place.store is not None and self._place.size > 1:
                found.agreement = Agreement(self._place)
        return found

    def _host_backend(self, word: str) -> Backend:
        """Return the backend of CPU tensors through which a backend copies CUDA tensors."""
        if self._devices.get("cpu") == word:
            return self.backend_of("cpu")
        place = replace(self._place, store=PrefixStore("staged", self._place.store))
        if place.size > 1 and self._hub is None:
            rank_processes.announce(place.store, place.rank)
        return backend_registry.make(word, "cpu", place, self._hub, lambda: self.backend_of("cpu"))

    def backend_for(self, tensor: Any) -> Backend:
        """Return the group's backend for a tensor's device. Raises like `backend_of`."""
        return self.backend_of(tensor.device.type)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the global ranks of its members, by rank."""
        return self._place.ranks

    @property
    def device_types(self) -> tuple[str, ...]:
        return tuple(self._devices)

    @property
    def config(self) -> str:
        return ",".join(f"{device}:{word}" for device, word in self._devices.items())


NON_GROUP_MEMBER = -100  # what `new_group` returns to ranks that are not in the group


class Session:
    """The state that ranks as threads share: the store, and each group's local coordinator."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self._hubs: dict[str, Hub] = {}

    def hub(self, name: str) -> Hub:
        return self._hubs.setdefault(name, Hub())


class World:
    """The process groups of one rank, by name. `environment` holds RANK, WORLD_SIZE and related variables."""

    def __init__(self, environment: Mapping[str, str], session: Session | None = None) -> None:
        self.environment = environment
        self.session = session
        self.default: ProcessGroup | None = None
        self.groups: dict[str, ProcessGroup] = {}
        self.count = 0  # number of groups created so far, equal on all ranks
        # hash of members -> number of groups that they created without other ranks
        self.hashed: Counter[str] = Counter()
        self.store: Any = None
        self.served: Any = None  # the coordinator or address that other ranks need while this rank lives
        self._debug: DebugLevel | None = None
        self.world_groups = 0  # how often a group of all ranks was created
        # (file, line) -> how often its breakpoint was reached
        self.breakpoints: dict[tuple[str, int], int] = {}
        self.coalescing: dict[str, Any] = {}  # group name -> operations held back by a coalescing manager
        self.meshes: list[Any] = []  # meshes that `with` has made current, the innermost last

    @property
    def debug(self) -> DebugLevel:
        """Return the debug level of new groups. The environment determines its default."""
        return level_of(self.environment) if self._debug is None else self._debug

    @debug.setter
    def debug(self, level: DebugLevel | None) -> None:
        self._debug = level

    def require_default(self) -> ProcessGroup:
        """Return the group of all ranks.

        Raises:
            ValueError: If there is none.
        """
        if self.default is None:
            raise ValueError(NOT_INITIALIZED)
        return self.default

    def next_name(self) -> str:
        """Return the next group's name. It is equal on all ranks that create groups in the same order."""
        name = str(self.count)
        self.count += 1
        return name

    def next_hashed_name(self, members: tuple[int, ...]) -> str:
        """Return the name of a group that its members create without the other ranks."""
        stem = hashlib.sha1("_".join(map(str, members)).encode()).hexdigest()
        number = self.hashed[stem]
        self.hashed[stem] += 1
        return f"{stem}_{number}"

    def add(
        self,
        ranks: tuple[int, ...],
        rank: int,
        name: str,
        word: str,
        devices: Mapping[str, str],
        timeout: timedelta,
        description: str,
        priority: int = 0,
    ) -> ProcessGroup:
        """Create and register a group that contains this rank, as number `rank` of the group. `priority` is the
        priority of its streams.
        """
        store = None if self.store is None else PrefixStore(name, self.store)
        if store is not None:
            rank_processes.announce(store, rank)
        hub = None if self.session is None else self.session.hub(f"{self.world_groups}/{name}")
        place = Place(rank, len(ranks), ranks, name, store, timeout, priority)
        group = self.groups[name] = ProcessGroup(place, word, devices, hub, description)
        return group

    def leave(self, group: ProcessGroup, how: Callable[[ProcessGroup], None]) -> None:
        """Destroy a group. Destroying the group of all ranks destroys all others too, the newest first."""
        if group.group_name != DEFAULT:
            how(group)
            self.groups.pop(group.group_name, None)
            return
        try:
            for name in reversed(list(self.groups)):
                how(self.groups[name])
                del self.groups[name]
        finally:  # also after an error: the remaining groups are closed, and the error propagates
            while self.groups:
                with suppress(Exception):
                    self.groups.popitem()[1].abort()
            self.default = self.store = None
            self.count = 0
            self.hashed.clear()


class ThreadWorld(threading.local):
    """The thread-local world of a rank that is a thread."""

    world: World | None = None


process = World(os.environ)
local = ThreadWorld()


def world() -> World:
    """Return the calling rank's world."""
    return local.world or process
