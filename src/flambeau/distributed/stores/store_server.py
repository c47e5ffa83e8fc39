"""`StoreServer`: one table, served to the ranks of a machine or of many over TCP by a separate thread.

# Note [A store survives its clients]
Problem: one thread serves all ranks, and any process may connect to its port.
Rule: a message is checked against its schema before it is processed. If it does not match, is too long, stays
incomplete or its answer is not read, the server closes that client's connection with a warning in the log, and no
other. An unexpected exception counts as that client's, too. The server logs exceptions of functions that the process
has registered with the thread, such as the launcher's reports of waiting ranks.
Why: an error in the serving thread would end the whole job.
Consequences: a new operation needs a schema (`OPERATIONS` in kv_store.py, `REQUESTS` in coordinator.py).
"""

from __future__ import annotations

import errno
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flambeau.core.ipc.codec import LARGEST, Either, Inbox, fits, frame_message
from flambeau.core.ipc.handshake import SECRET, UNGREETED, Greeting
from flambeau.distributed.stores.coordinator import Coordinator
from flambeau.distributed.stores.kv_store import CHANGES, OPERATIONS, Table

log = logging.getLogger("torch.distributed")

# operation, arguments, needed keys, limit in ms (or limits of this part and of the whole wait), alone, site
_REQUEST = [str, list, (str,), Either(int, [int, int]), bool, str]
_MEET = "meet"  # the operation of virtual GPUs, whose arguments the coordinator checks
_GREETING_S = 30.0  # seconds that a client may take to be admitted
_STALLED_S = (
    600.0  # seconds without a byte amid a message of an admitted client, which a debugger may have stopped
)
_UNREAD = 1 << 28  # bytes of answers that a client has not read; it must read them before it asks for more
_LONGEST_MS = 1 << 53  # the largest time limit
_NAP_S = 3600.0  # the longest sleep in seconds; the selector's own limit is some weeks
_WATCH_S = 0.25  # between two calls of `watch` while clients wait
_END = b"x"
_PART = 1 << 20  # bytes read at a time


class BadMessage(ValueError):
    """A message that none of our clients sends."""


class _Client:
    """One connection to the store.

    Attributes:
        backlog: Messages to handle once the client has read earlier answers.
        inbox: Bytes of an incomplete message.
        outbox: Answers that are not sent yet.
        unread: Bytes in `outbox`.
        process: The process id that the client sent; 0 before it is admitted.
        meets: True if it is the connection of a rank's virtual GPUs.
        waits: The request that waits for keys, if any.
        active: Time of the last transferred byte or, before the greeting, of the connection, on the monotonic clock.
    """

    __slots__ = ("active", "backlog", "connection", "greeting", "inbox", "meets", "outbox", "unread", "waits")

    def __init__(self, connection: socket.socket, secret: str | None) -> None:
        self.connection = connection
        self.greeting = Greeting(connection, secret)
        self.inbox = Inbox(limit=UNGREETED)
        self.backlog: deque[Any] = deque()
        self.outbox: deque[memoryview] = deque()
        self.unread = 0
        self.meets = False
        self.waits: _Request | None = None
        self.active = time.monotonic()

    @property
    def process(self) -> int:
        return self.greeting.process

    @property
    def deadline(self) -> float | None:
        """Return the time by which the client must make progress, on the monotonic clock; None if no message is
        pending.
        """
        if not self.process:
            return self.active + _GREETING_S
        return self.active + _STALLED_S if self.inbox.is_partial or self.outbox else None

    def __str__(self) -> str:
        try:
            end = self.connection.getpeername()
        except OSError:
            end = "a closed connection"
        return f"process {self.process} at {end}" if self.process else f"a client at {end}"


class _Request:
    """An operation that may have to wait for keys.

    Attributes:
        needs: The keys that it needs.
        begun: Time of arrival, on the monotonic clock.
        deadline: Time at which this request fails if keys are missing; None means never.
        patience: Time at which its program gives up, which may repeat the request until then; infinite means never.
        alone: True if no other thread of its process could set the keys.
        site: The call site of the request.
    """

    __slots__ = ("alone", "args", "begun", "deadline", "needs", "operation", "patience", "site")

    def __init__(
        self, operation: str, args: list[Any], needs: list[str], limits_ms: list[int], alone: bool, site: str
    ) -> None:
        self.alone = alone
        self.site = site
        self.operation = operation
        self.args = args
        self.needs = needs
        self.begun = time.monotonic()
        limit, whole = limits_ms
        self.deadline = self.begun + limit / 1000 if limit else None
        self.patience = self.begun + whole / 1000 if whole else math.inf

    @property
    def wait(self) -> object:
        """Return a value that identifies this wait of its process; a repeated request continues it."""
        return self.begun if self.deadline == self.patience else str(self)

    def __str__(self) -> str:
        return f"{', '.join(map(repr, self.needs))} of the store at {self.site}"


def _request_of(message: Any) -> _Request:
    """Return the request in a message. Raises BadMessage if the message is invalid."""
    if not fits(message, _REQUEST):
        raise BadMessage("a request of another form")
    operation, args, needs, limit, alone, site = message
    if operation != _MEET and not fits(args, OPERATIONS.get(operation, False)):
        raise BadMessage(f"operation {operation[:40]!r} with arguments of other types")
    limits = limit if isinstance(limit, list) else [limit, limit]
    if not all(0 <= each <= _LONGEST_MS for each in limits):
        raise BadMessage(f"a time limit of {limit} ms")
    return _Request(operation, args, needs, limits, alone, site)


class StoreServer:
    """The server of a store. It answers ["ok", value], ["late"] or ["error", type, text].

    Args:
        listener: A listening socket.
        secret: The secret for clients of other hosts (Note [Who may connect to a store]); None admits no other host.
    """

    def __init__(self, listener: socket.socket, secret: str | None = None) -> None:
        name = listener.getsockname()
        self.address: str = name[0]  # address of the interface; "::" and "0.0.0.0" stand for all interfaces
        self.port: int = name[1]
        self._secret = os.environ.get(SECRET) if secret is None else secret
        self._listener = listener
        self.meetings: Coordinator | None = None  # the coordinator of the ranks' virtual GPUs
        self.watch: Callable[[], None] | None = None  # called repeatedly while clients wait
        self._watched = 0.0  # time of the last call
        self._table = Table()
        self._calls: deque[Callable[[], None]] = deque()
        self._clients: dict[_Client, None] = {}
        self._selector = selectors.DefaultSelector()
        self.process = os.getpid()
        self._bell, self._ear = socket.socketpair()
        for end in (listener, self._ear):
            end.setblocking(False)
            self._selector.register(end, selectors.EVENT_READ)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="flambeau store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close every connection. Idempotent; in a forked child it does nothing."""
        if os.getpid() != self.process:
            return
        try:
            self._bell.send(_END)
        except OSError:
            return
        if self._thread is not threading.current_thread():
            # not join(): a finalizer may interrupt a holder of locks that ending threads need
            self._ended.wait()

    def call(self, function: Callable[[], None]) -> None:
        """Run a function in the serving thread."""
        self._calls.append(function)
        with suppress(OSError):
            self._bell.send(b"c")

    # The following methods run in the serving thread, through `call`.
    def processes(self) -> set[int]:
        """Return the processes that have a connection, but this one."""
        return {client.process for client in self._clients} - {self.process}

    def waits(self) -> dict[int, tuple[str, object]]:
        """Return a text of each process's wait, with a value that differs between its waits."""
        collective_waits = {} if self.meetings is None else self.meetings.waits()
        return collective_waits | {
            c.process: (str(c.waits), str(c.waits)) for c in self._clients if c.waits and c.waits.needs
        }

    def value_of(self, ending: str) -> bytes:
        """Return the newest value whose key ends with `ending`, under any prefix; b"" if there is none."""
        values = [value for key, value in self._table.values.items() if key.endswith(f"/{ending}")]
        return values[-1] if values else b""

    def blocked_processes(self, least_s: float) -> dict[int, object]:
        """Return the processes that only wait for keys for at least `least_s` more seconds, and an id of each wait."""
        soon = time.monotonic() + least_s
        return {
            c.process: c.waits.wait
            for c in self._clients
            if c.waits and c.waits.needs and c.waits.alone and c.waits.patience > soon
        }

    def give_up(self, report: str) -> None:
        """Make each wait for keys raise a DeadlockError."""
        for client in [c for c in self._clients if c.waits is not None]:
            self._answer(client, ["error", "DeadlockError", report])

    def forget(self, wait_key: str) -> None:
        """Drop all values except those whose key begins with `wait_key`. No client may be waiting."""
        values = self._table.values
        self._table.values = {key: value for key, value in values.items() if key.startswith(wait_key)}

    def _serve(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._selector.close()
            ends = [client.connection for client in self._clients]
            for end in (self._listener, self._ear, self._bell, *ends):
                end.close()
            self._ended.set()

    def _turn(self) -> bool:
        """Handle messages and deadlines once. Returns False when the server should end."""
        for key, events in self._selector.select(self._patience()):
            if key.fileobj is self._ear:
                if _END in self._ear.recv(1 << 10):
                    return False
                while self._calls:
                    self._call_guarded(self._calls.popleft())
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._serve_client(key.data, events)
        now = time.monotonic()
        for client in list(self._clients):
            if client.deadline is not None and client.deadline <= now:
                self._dismiss(client, "it has sent or read nothing for too long")
            elif client.waits and client.waits.deadline is not None and client.waits.deadline <= now:
                self._answer(client, ["late"])
        self._call_guarded(self._settle)
        if self.watch is not None and now - self._watched >= _WATCH_S:
            self._watched = now
            self._call_guarded(self.watch)
        return True

    def _call_guarded(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            log.exception("the store at port %d goes on after an error of this process", self.port)

    def _patience(self) -> float:
        """Return the seconds until the next deadline."""
        deadlines = [c.waits.deadline for c in self._clients if c.waits and c.waits.deadline is not None]
        deadlines += [c.deadline for c in self._clients if c.deadline is not None]
        if self.meetings is not None and self.meetings.deadline is not None:
            deadlines.append(self.meetings.deadline)
        if self.watch is not None and any(c.waits is not None for c in self._clients):
            deadlines.append(self._watched + _WATCH_S)
        return max(0.0, min(min(deadlines, default=math.inf) - time.monotonic(), _NAP_S))

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            # otherwise the selector would report it again and again
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._make_room()
            return
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client = _Client(connection, self._secret)
        except (OSError, ValueError):  # the connection has closed again
            connection.close()
            return
        self._clients[client] = None
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _make_room(self) -> None:
        """Close the oldest connection that was not admitted, because the process has no file descriptor left."""
        waiting = [client for client in self._clients if not client.process]
        if waiting:
            self._dismiss(waiting[0], "there are too many connections")
        else:
            time.sleep(0.1)  # until a client closes its connection

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            del self._clients[client]
            self._selector.unregister(client.connection)
            client.connection.close()
            if client.meets and self.meetings is not None:
                self.meetings.remove_process(client.process)

    def _dismiss(self, client: _Client, why: str) -> None:
        """Close the connection of a client that breaks the protocol."""
        log.warning("the store at port %d closed the connection of %s: %s", self.port, client, why)
        self._drop(client)

    def _serve_client(self, client: _Client, events: int) -> None:
        """Handle a client's readiness. See Note [A store survives its clients]."""
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(client)
            if events & selectors.EVENT_READ and client in self._clients:
                self._read(client)
            while client.backlog and client.unread <= _UNREAD and client in self._clients:
                self._handle(client, client.backlog.popleft())
            self._select(client)
        except ValueError as error:
            self._dismiss(client, str(error))
        except Exception:
            log.exception("the store at port %d failed at a request", self.port)
            self._dismiss(client, "its request raised an exception")

    def _read(self, client: _Client) -> None:
        """Read the bytes that a client has sent. Raises ValueError for invalid messages."""
        try:
            part = client.connection.recv(_PART)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            self._drop(client)
            return
        if client.process:
            client.active = time.monotonic()
        client.backlog += client.inbox.feed(part)

    def _greet(self, client: _Client, message: Any) -> None:
        if client.greeting.refused:
            raise BadMessage("it goes on though it was refused")
        self._answer(client, client.greeting.take(message))
        if client.process:
            client.inbox.limit, client.active = LARGEST, time.monotonic()
        elif client.greeting.refused:
            log.warning("the store at port %d refused %s", self.port, client)

    def _handle(self, client: _Client, message: Any) -> None:
        if not client.process:
            self._greet(client, message)
            return
        if client.waits is not None:
            raise BadMessage("a request before the answer to the last one")
        request = _request_of(message)
        if request.operation == _MEET:
            self._meet(client, request.args)
        else:
            client.waits = request
            self._try(client)

    def _meet(self, client: _Client, request: list[Any]) -> None:
        """Pass a request for other ranks' virtual GPUs to the coordinator."""
        if len(request) < 2 or not fits(request[:2], [int, str]):
            raise BadMessage("a request of virtual GPUs without its number and name")
        number, operation, *args = request
        if self.meetings is None:
            self._answer(client, [number, "error", "this launcher serves no virtual GPUs"])
            return
        answer = self.meetings.ask(client.process, number, operation, args)
        client.meets = True
        if answer is not None:
            self._answer(client, answer)

    def _settle(self) -> None:
        """Answer the ranks whose wait for others has ended."""
        if self.meetings is None:
            return
        stored = [c for c in self._clients if c.waits is not None and c.waits.alone]
        elsewhere = {c.process: str(c.waits) for c in stored}
        by_process = {client.process: client for client in self._clients if client.meets}
        for process, answer in self.meetings.settle(elsewhere):
            if process in by_process:
                self._answer(by_process[process], answer)

    def _try(self, client: _Client) -> None:
        """Run a waiting client's operation if possible. Clients that it wakes are answered first."""
        request = client.waits
        if request is None or (request.needs and not self._table.ready(request.operation, request.needs)):
            return
        client.waits = None
        try:
            answer = ["ok", self._table.do(request.operation, request.args)]
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            answer = ["error", type(error).__name__, str(error)]
        if request.operation in CHANGES:
            for other in [c for c in self._clients if c.waits is not None and c.waits.needs]:
                self._try(other)
        self._answer(client, answer)

    def _answer(self, client: _Client, answer: list[Any]) -> None:
        client.waits = None
        data = frame_message(answer)
        if client.process:
            client.active = time.monotonic()
        client.outbox.append(memoryview(data))
        client.unread += len(data)
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        if client not in self._clients:
            return
        try:
            while client.outbox:
                sent = client.connection.send(client.outbox[0])
                client.unread -= sent
                if client.process:
                    client.active = time.monotonic()
                client.outbox[0] = client.outbox[0][sent:]
                if not client.outbox[0]:
                    client.outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
        self._select(client)

    def _select(self, client: _Client) -> None:
        """Wait for the client's messages, unless it must read answers first, and for room for its answers."""
        if client in self._clients:
            events = selectors.EVENT_WRITE if client.outbox else 0
            if client.unread <= _UNREAD:
                events |= selectors.EVENT_READ
            self._selector.modify(client.connection, events, client)
