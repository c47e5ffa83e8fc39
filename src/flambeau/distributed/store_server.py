"""`StoreServer`: one table, served to the ranks of a machine or of many over TCP by a thread of its own."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from flambeau.core.wire import Inbox, framed
from flambeau.distributed.meeting_place import MeetingPlace
from flambeau.distributed.table import CHANGES, Table

GREETING = "flambeau store 1"
_LARGEST = 1 << 40  # bytes of one message
_END = b"x"
_PART = 1 << 20  # bytes read at a time


class _Client:
    """One connection: what it sent so far, what it is still to be sent, the request that waits for keys."""

    __slots__ = ("connection", "inbox", "meets", "outbox", "process", "waits")

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.inbox = Inbox(limit=1024)  # until it has said who it is
        self.outbox: deque[memoryview] = deque()
        self.process = 0  # until it has greeted
        self.meets = False  # whether it is a rank's virtual GPUs
        self.waits: _Request | None = None


class _Request:
    """An operation, the keys that it needs, when it is too late for them (None: never).

    alone: no other thread of its process could do what it waits for. site: the line of the program that asks.
    """

    __slots__ = ("alone", "args", "deadline", "needs", "operation", "site")

    def __init__(
        self, operation: str, args: list[Any], needs: list[str], limit_ms: int, alone: bool, site: str
    ) -> None:
        self.alone = alone
        self.site = site
        self.operation = operation
        self.args = args
        self.needs = needs
        self.deadline = time.monotonic() + limit_ms / 1000 if limit_ms else None

    def __str__(self) -> str:
        return f"{', '.join(map(repr, self.needs))} of the store at {self.site}"


def _greeted(message: Any) -> int:
    """The process that a greeting comes from. ValueError: it is none."""
    greeting, process = message
    if greeting != GREETING or not isinstance(process, int) or process < 1:
        raise ValueError(f"no greeting: {message!r}")
    return process


def _read(message: Any) -> _Request:
    operation, args, needs, limit_ms, alone, site = message
    return _Request(operation, args, needs, limit_ms, alone, site)


class StoreServer:
    """Serves from `listener` on until `close`. Answers are ["ok", value], ["late"] or ["error", type, text]."""

    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self.meetings: MeetingPlace | None = None  # of ranks' virtual GPUs
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
        """Close every connection. Again is allowed; in a forked child it does nothing."""
        if os.getpid() != self.process:
            return
        try:
            self._bell.send(_END)
        except OSError:
            return
        if self._thread is not threading.current_thread():
            self._ended.wait()  # no join: a finalizer may interrupt who holds what threads need to end

    def call(self, function: Callable[[], None]) -> None:
        """Let the serving thread call this."""
        self._calls.append(function)
        with suppress(OSError):
            self._bell.send(b"c")

    def forget(self, kept: str) -> None:
        """Drop all values but those whose keys begin so. For whoever knows that nobody asks now."""
        values = self._table.values
        self._table.values = {key: value for key, value in values.items() if key.startswith(kept)}

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
        """Handle what has come, or a deadline; False: it is the end."""
        for key, events in self._selector.select(self._patience()):
            if key.fileobj is self._ear:
                if _END in self._ear.recv(1 << 10):
                    return False
                while self._calls:
                    self._calls.popleft()()
            elif key.fileobj is self._listener:
                self._accept()
            elif events & selectors.EVENT_WRITE:
                self._flush(key.data)
            else:
                self._read(key.data)
        now = time.monotonic()
        for client in [c for c in self._clients if c.waits is not None]:
            if client.waits and client.waits.deadline is not None and client.waits.deadline <= now:
                self._answer(client, ["late"])
        self._settle()
        return True

    def _patience(self) -> float | None:
        """Seconds to the next deadline."""
        deadlines = [c.waits.deadline for c in self._clients if c.waits and c.waits.deadline is not None]
        if self.meetings is not None and self.meetings.deadline is not None:
            deadlines.append(self.meetings.deadline)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again
            return
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client = _Client(connection)
        self._clients[client] = None
        self._selector.register(connection, selectors.EVENT_READ, client)

    def _drop(self, client: _Client) -> None:
        if client in self._clients:
            del self._clients[client]
            self._selector.unregister(client.connection)
            client.connection.close()
            if client.meets and self.meetings is not None:
                self.meetings.left(client.process)

    def _read(self, client: _Client) -> None:
        try:
            part = client.connection.recv(_PART)
            messages = client.inbox.feed(part)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            part, messages = b"", []
        for message in messages:
            self._hear(client, message)
        if not part:
            self._drop(client)

    def _hear(self, client: _Client, message: Any) -> None:
        """A message: the greeting, then requests. Whoever says anything else is hung up on."""
        try:
            request = _read(message) if client.process else None
            if request is None:
                client.process, client.inbox.limit = _greeted(message), _LARGEST
        except (LookupError, TypeError, ValueError):
            self._drop(client)
            return
        if request is None:
            self._answer(client, ["ok", GREETING])
        elif request.operation == "meet":
            self._meet(client, request.args)
        else:
            client.waits = request
            self._try(client)

    def _meet(self, client: _Client, request: list[Any]) -> None:
        """A rank asks for others' virtual GPUs."""
        number, operation, *args = request
        if self.meetings is None:
            self._answer(client, [number, "error", "this launcher serves no virtual GPUs"])
            return
        client.meets = True
        try:
            answer = self.meetings.ask(client.process, number, operation, args)
        except (LookupError, TypeError, ValueError):
            self._drop(client)
            return
        if answer is not None:
            self._answer(client, answer)

    def _settle(self) -> None:
        """Answer the ranks whose wait for others is over."""
        if self.meetings is None:
            return
        stored = [c for c in self._clients if c.waits is not None and c.waits.alone]
        elsewhere = {c.process: str(c.waits) for c in stored}
        by_process = {client.process: client for client in self._clients if client.meets}
        for process, answer in self.meetings.settle(elsewhere):
            if process in by_process:
                self._answer(by_process[process], answer)

    def _try(self, client: _Client) -> None:
        """Do what a client waits for if it can be done. Whom that wakes is answered first, and so known to go on."""
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
        client.outbox.append(memoryview(framed(answer)))
        self._flush(client)

    def _flush(self, client: _Client) -> None:
        if client not in self._clients:
            return
        try:
            while client.outbox:
                sent = client.connection.send(client.outbox[0])
                client.outbox[0] = client.outbox[0][sent:]
                if not client.outbox[0]:
                    client.outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.outbox else 0)
        self._selector.modify(client.connection, events, client)
