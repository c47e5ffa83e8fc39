"""`TCPStore`: a store that one process serves and all reach by host and port."""

from __future__ import annotations

import contextlib
import math
import os
import random
import socket
import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from errno import EADDRNOTAVAIL, errorcode
from ipaddress import ip_address
from typing import Any

from flambeau.core.callsite import caller, place
from flambeau.core.host.host_wait import Readable, readable
from flambeau.core.host.long_waits import LongWait
from flambeau.core.host.thread_liveness import alone
from flambeau.core.host.turn_scheduler import seat
from flambeau.core.ipc.codec import frame_message, receive
from flambeau.core.ipc.handshake import RefusedError, greet
from flambeau.core.ipc.server_watch import ServerWatch
from flambeau.distributed.dist_errors import DeadlockError, DistNetworkError, DistStoreError, QueueEmptyError
from flambeau.distributed.launching.stalls import Stalls, print_line
from flambeau.distributed.stores.store import (
    DEFAULT_TIMEOUT,
    Inner,
    PartOfWait,
    Store,
    message_limit,
    milliseconds,
    part_of_wait,
    refuse,
    seconds,
)
from flambeau.distributed.stores.store_client import MOST_KEYS
from flambeau.distributed.stores.store_server import StoreServer
from flambeau.driver.driver_registry import go_on

_MEMBERS = "init/"  # counter of the ranks that have joined
_ALL_HERE = "init/all"  # a queue, because queues do not count as keys
_ERRORS = {error.__name__: error for error in (DeadlockError, QueueEmptyError, ValueError, TypeError)}
_BACKLOG = 1024
_ANY = {
    "0.0.0.0": "127.0.0.1",
    "::": "127.0.0.1",
}  # the address at which this process reaches a server that listens on all interfaces
_COUNT_S = 1.0  # seconds between two counts of the ranks that have joined
_GRACE = 30.0  # seconds that an answer may take beyond its time limit before the server counts as lost

# port -> server that several stores of this process may share.
_shared_servers: weakref.WeakValueDictionary[int, Served] = weakref.WeakValueDictionary()


class TCPStore(Inner, Store):
    """A store over TCP. With `is_master` it also serves the store, on `port` or, if that is 0, on a free port.

    The server listens at the address of `host_name`; the loopback address admits only this host. If the name has no
    address of this host, or the host's own name resolves to the loopback device, the server listens at all addresses.
    Note [Who may connect to a store] has the rules of admission.

    Args:
        host_name: Host of the server.
        port: Port of the server, 0 to 65535.
        world_size: Number of stores that will join, including the master's; None for any number.
        is_master: Serve the store in this process.
        timeout: Time limit for the connection, for other stores to join, and for keys.
        wait_for_workers: As master, wait until `world_size` stores have joined.
        multi_tenant: Share this process's server on that port, if there is one.
        master_listen_fd: File descriptor of a socket that listens already.
        use_libuv: No effect; it selects one of PyTorch's servers.

    Raises:
        DistNetworkError: If the port is in use, no server answers within `timeout`, or it refuses this process.
        DistStoreError: If some stores have not joined within `timeout`.
    """

    __module__ = "flambeau.distributed"

    reports_waits = True  # the process that serves the store prints them

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: timedelta = DEFAULT_TIMEOUT,
        wait_for_workers: bool = True,
        multi_tenant: bool = False,
        master_listen_fd: int | None = None,
        use_libuv: bool = True,
    ) -> None:
        _check(port, world_size, timeout)
        self._timeout = timeout
        self._server: Served | None = None
        self._lock = threading.Lock()
        self._loss = ""  # why the connection is lost
        self.host = host_name
        self.libuvBackend = use_libuv
        if is_master:
            self._server = _serve(host_name, port, multi_tenant, master_listen_fd)
        self.port = self._server.port if self._server else port
        self._connection = self._connect()
        weakref.finalize(self, self._connection.close)
        if world_size is not None and world_size >= 0:
            self._join(world_size, wait_for_workers and is_master)
        if self._server is not None and self._server.server.watch is None:
            server = self._server.server
            server.watch = Stalls(server, list, print_line).look_now  # until `watch_ranks` knows the ranks

    def __repr__(self) -> str:
        return f"TCPStore({self.host}:{self.port}{', master' if self._server else ''})"

    def clone(self) -> TCPStore:
        twin = TCPStore(self.host, self.port, timeout=self._timeout)
        twin._server = self._server
        return twin

    def __reduce__(self) -> Any:
        raise TypeError(
            "cannot pickle 'TCPStore' object: another process makes its own, with the host and port"
        )

    def _connect(self) -> socket.socket:
        """Return a connection to the server, which may start later than this process."""
        limit = seconds(self._timeout)
        deadline = None if limit is None else time.monotonic() + limit
        turns, found = seat(), list[socket.socket]()
        if turns is not None:  # the rank that serves must be able to run
            turns.wait(
                lambda: bool(found or self._try(found)), lambda: f"waits for a store at port {self.port}"
            )
        long_wait = LongWait(lambda: f"for a process that serves the store at {self.host}:{self.port}")
        while not (found or self._try(found)):
            long_wait.report()
            if deadline is not None and time.monotonic() >= deadline:
                raise DistNetworkError(
                    f"The client socket has timed out after {milliseconds(self._timeout)}ms while trying to connect "
                    f"to ({self.host}, {self.port})."
                )
            time.sleep(0.01 + 0.04 * random.random())  # spreads the attempts of many ranks
        return found[0]

    def _try(self, found: list[socket.socket]) -> bool:
        """Return True if a server answers; the connection is appended to `found`."""
        with contextlib.suppress(OSError):
            found.append(
                self._greet(
                    socket.create_connection((self._address, self.port), timeout=seconds(self._timeout))
                )
            )
        return bool(found)

    @property
    def _address(self) -> str:
        """Return the address at which this process reaches the server."""
        return self._server.address if self._server else self.host

    def _greet(self, connection: socket.socket) -> socket.socket:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            greet(connection)
        except RefusedError as error:
            connection.close()
            raise DistNetworkError(
                f"The store at {self.host}:{self.port} refused this process: {error}"
            ) from None
        except (OSError, ValueError) as error:  # another program listens on the port
            connection.close()
            raise ConnectionError from error
        connection.settimeout(None)
        return connection

    def _join(self, world_size: int, wait: bool) -> None:
        here = self._ask("add", _MEMBERS, 1)
        if here == world_size:
            self._ask("push", _ALL_HERE, b"1")
        if not wait:
            return
        limit = seconds(self._timeout)
        end = math.inf if limit is None else time.monotonic() + limit

        def has_all() -> bool:  # the last one may have been started with another number of ranks
            return self._ask("add", _MEMBERS, 0) >= world_size

        def describe() -> str:
            here = self._ask("add", _MEMBERS, 0)
            return (
                f"for the ranks of its store at {self.host}:{self.port}: {here} of {world_size} have joined"
            )

        long_wait = LongWait(describe)
        while True:
            try:
                part = part_of_wait(min(long_wait.left_s, _COUNT_S), end)
                self._ask("check", [_ALL_HERE], needs=[_ALL_HERE], timeout=part)
                return
            except DistStoreError:
                if has_all():
                    return
                if time.monotonic() < end:
                    long_wait.report()
                    continue
            here = self._ask("add", _MEMBERS, 0)
            raise DistStoreError(
                f"Timed out after {self._timeout.total_seconds():g} seconds waiting for clients. {here}/{world_size} "
                "clients joined."
            )

    def _do(self, operation: str, args: list[Any], needs: Sequence[str], limit: timedelta) -> Any:
        most = max([len(arg) for arg in args if isinstance(arg, list)], default=0)
        if most > MOST_KEYS:
            raise DistNetworkError(
                f"Too many keys in one request: {most:,}. A TCPStore takes {MOST_KEYS:,}, as PyTorch's does. "
                "Fix: split the list."
            )
        site = place(caller()) if needs else ""
        time_limit: int | list[int] = message_limit(limit)
        if isinstance(limit, PartOfWait):
            time_limit = [message_limit(limit), message_limit(limit.whole)]
        message = [operation, args, list(needs), time_limit, alone(), site]
        try:
            answer = self._request(message, limit if needs else None)
        except OSError as error:
            self._loss = self._loss or self._describe_loss(error)
            raise DistNetworkError(self._loss) from error
        if answer[0] == "late":
            raise DistStoreError(f"wait timeout after {milliseconds(limit)}ms, keys: {', '.join(needs)}")
        if answer[0] == "error":
            raise _ERRORS.get(answer[1], DistStoreError)(answer[2])
        return answer[1]

    def _describe_loss(self, error: OSError) -> str:
        where = f"the store at {self.host}:{self.port}"
        if isinstance(error, TimeoutError):
            return (
                f"{where} does not answer, {_GRACE:g} s beyond the time limit of the request: the process that serves "
                "it may be stopped, or its host cannot be reached"
            )
        return (
            f"{error}: the connection to {where} was likely closed. Did the remote server shutdown or crash?"
        )

    def _request(self, message: list[Any], limit: timedelta | None) -> Any:
        """Send a request. Threads share the connection, so a thread that waits for keys blocks others unless they use
        `clone`.
        """
        frame = frame_message(message)  # raises before a byte is sent
        with self._lock:
            timeout = 0.0 if limit is None else seconds(limit)
            self._connection.settimeout(None if timeout is None else timeout + _GRACE)
            try:
                if limit is not None:
                    go_on()  # the awaited rank may wait for this rank's GPUs
                self._connection.sendall(frame)
                if limit is not None:
                    if alone():
                        go_on(Readable(self._connection))
                    self._await_answer(timeout)
                return receive(self._connection)
            except BaseException:  # otherwise a late answer would be taken for that of the next request
                self._connection.close()
                raise

    def _await_answer(self, timeout: float | None) -> None:
        """Wait until the server answers, or must have answered; `timeout` is that of the request, in seconds."""
        end = math.inf if timeout is None else time.monotonic() + timeout + _GRACE
        watch = ServerWatch(self._address, self.port)
        while not readable(min(watch.left_s, max(0.0, end - time.monotonic())), self._connection):
            if time.monotonic() >= end:
                raise TimeoutError
            watch.report()


def _check(port: int, world_size: int | None, timeout: timedelta) -> None:
    if not isinstance(port, int) or not 0 <= port < 1 << 16:
        refuse("__init__", "a port from 0 to 65535", port)
    if world_size == 0:
        raise ValueError("TCPStore world size cannot be 0")
    if not isinstance(timeout, timedelta):
        refuse("__init__", "a timedelta", timeout)
    if timeout < timedelta():
        raise ValueError(f"the timeout of a TCPStore must not be negative, got {timeout}")


class Served:
    """A server that runs while a store of this process uses it."""

    def __init__(self, server: StoreServer) -> None:
        self.port = server.port
        # the address at which this process reaches it
        self.address = _ANY.get(server.address, server.address)
        self.server = server
        weakref.finalize(self, server.close)


def _serve(host: str, port: int, shared: bool, descriptor: int | None) -> Served:
    """Return a new server, or the one of this process on that port if several stores may share it."""
    there = _shared_servers.get(port) if shared else None
    if there is not None:
        return there
    listener = _listen(host, port) if descriptor is None else socket.socket(fileno=os.dup(descriptor))
    served = Served(StoreServer(listener))
    if shared:
        _shared_servers[served.port] = served
    return served


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at the address of a host name, or at every address of this host; see `TCPStore`."""
    try:
        family, address = _address_of(host)
        if address:
            try:
                return socket.create_server((address, port), family=family, backlog=_BACKLOG)
            except OSError as error:
                if (
                    error.errno != EADDRNOTAVAIL
                ):  # otherwise it is the address of a router or of another name space
                    raise
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        return socket.create_server(("", port), backlog=_BACKLOG)
    except OSError as error:
        raise DistNetworkError(
            f"The server socket has failed to listen on any local network address. port: {port}, useIpv6: false, "
            f"code: -{error.errno}, name: {errorcode.get(error.errno or 0, '')}, message: {error.strerror}"
        ) from None


def _address_of(host: str) -> tuple[int, str]:
    """Return the family and the address that a store of this host name listens at; no address means all of them.

    "localhost" and addresses of the loopback device mean that device. Any other name must lead other hosts here, and
    some systems let a host's own name lead itself to the loopback device: then the store listens at all addresses.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return socket.AF_INET, ""
    here = host == "localhost" or _is_address(host)
    addresses = [(int(family), str(end[0])) for family, _, _, _, end in found]
    usable = [(family, end) for family, end in addresses if here or not ip_address(end).is_loopback]
    return min(usable, key=lambda each: each[0] != socket.AF_INET, default=(socket.AF_INET, ""))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
