"""`connect_peers`: one TCP connection from this rank to each other member of a group.

Members exchange their addresses and a secret through the group's store. A connection is admitted by the store's
handshake (Note [Who may connect to a store]) with that secret, so only processes that can read the store can
join. Members of one host use the loopback device. Otherwise a member listens at the address of the interface that
GLOO_SOCKET_IFNAME names, or at the one from which it reaches the store.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from typing import Any

from flambeau.core.ipc.codec import fits, receive, send
from flambeau.core.ipc.handshake import UNGREETED, Greeting, RefusedError, greet, new_secret
from flambeau.distributed.backends import rank_processes
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.stores.store import await_keys

_STEP_S = 0.25  # seconds between checks that the other members' processes are alive
_GREETING_S = 10.0  # the longest handshake, in seconds, of an unknown connection
_SIOCGIFADDR = 0xC0206921 if sys.platform == "darwin" else 0x8915  # reads an interface's IPv4 address


def connect_peers(place: Place) -> dict[int, socket.socket]:
    """Connect to all other members of the group. All members must call this.

    Returns:
        The connections, by rank in the group.

    Raises:
        DistBackendError: If a member has ended, does not connect in time, or does not know the secret.
    """
    store, end = place.store, time.monotonic() + (place.timeout.total_seconds() or 1e9)
    others = [rank for rank in range(place.size) if rank != place.rank]
    _await_keys(rank_processes.keys_of(others), place, end)
    secret = store.compare_set("tcp/secret", "", new_secret()).decode()
    with closing(_listen(place)) as listener:
        host, port = listener.getsockname()[:2]
        store.set(f"address of rank {place.rank}", f"{host} {port}")
        _await_keys([f"address of rank {rank}" for rank in others], place, end)
        found: dict[int, socket.socket] = {}
        try:
            for rank in others:
                if rank < place.rank:
                    found[rank] = _dial(place, rank, secret, end)
            while len(found) < len(others):
                rank, connection = _accept(listener, secret, lambda: _absent(place, found), end)
                if not place.rank < rank < place.size or rank in found:
                    connection.close()
                    raise DistBackendError(f"a process claims to be rank {rank} of group {place.name}")
                found[rank] = connection
        except BaseException:
            for connection in found.values():
                connection.close()
            raise
    for connection in found.values():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
    return found


def _await_keys(keys: list[str], place: Place, end: float) -> None:
    left = timedelta(seconds=max(end - time.monotonic(), 1e-3))
    why = await_keys(place.store, keys, left, lambda: _absent(place, {}))
    if why is not None:
        raise DistBackendError(why or f"not all of ranks {list(place.ranks)} joined in time")


def _absent(place: Place, found: dict[int, Any]) -> str:
    """Return the reason why a member that has not connected never will; "" if it may."""
    for rank in range(place.size):
        if (
            rank not in found
            and rank != place.rank
            and (why := rank_processes.describe_ended(place.store, rank))
        ):
            return f"rank {place.ranks[rank]}{why}"
    return ""


def _listen(place: Place) -> socket.socket:
    listener = socket.create_server((_own_address(place), 0), backlog=place.size)
    listener.settimeout(_STEP_S)
    return listener


def _own_address(place: Place) -> str:
    """Return the address at which the other members reach this one."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if interface:
        return _address_of_interface(interface)
    hosts = [
        value.partition(b" ")[2] for value in place.store.multi_get(rank_processes.keys_of(range(place.size)))
    ]
    if len({*hosts}) == 1:
        return "127.0.0.1"
    base: Any = place.store
    base = getattr(base, "_underlying_non_prefix_store", base)
    target = (base.host, base.port) if hasattr(base, "host") else (socket.gethostname(), 9)
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())


def _address_of_interface(name: str) -> str:
    request = struct.pack("256s", name[:15].encode())
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
    except OSError as error:
        raise DistBackendError(
            f"GLOO_SOCKET_IFNAME names {name!r}, which has no IPv4 address on this host: {error.strerror}"
        ) from None


def _dial(place: Place, rank: int, secret: str, end: float) -> socket.socket:
    host, port = place.store.get(f"address of rank {rank}").decode().split()
    try:
        connection = socket.create_connection((host, int(port)), timeout=_seconds_until(end))
        greet(connection, secret)
        send(connection, [place.rank])
    except (OSError, ValueError, RefusedError) as error:
        raise DistBackendError(
            f"rank {place.ranks[rank]} at {host}:{port} cannot be reached: {error}"
        ) from error
    return connection


def _accept(
    listener: socket.socket, secret: str, absent: Callable[[], str], end: float
) -> tuple[int, socket.socket]:
    """Return the next member that connects and proves knowledge of the secret; other connections are closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            if (why := absent()) or time.monotonic() > end:
                raise DistBackendError(why or "not all members connected in time") from None
            continue
        try:
            connection.settimeout(min(_seconds_until(end), _GREETING_S))
            greeting = Greeting(connection, secret)
            while not greeting.process:
                send(connection, greeting.take(receive(connection, UNGREETED)))
                if greeting.refused:
                    raise ValueError("refused")
            claim = receive(connection, UNGREETED)
            if not fits(claim, [int]):
                raise ValueError("no rank")
            return int(claim[0]), connection
        except (OSError, ValueError):
            connection.close()


def _seconds_until(end: float) -> float:
    return max(end - time.monotonic(), 1e-3)
