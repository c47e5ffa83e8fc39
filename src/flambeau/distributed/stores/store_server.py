"""`StoreServer`: one table, served to the ranks of a machine or of many over TCP by a separate thread.

# Note [A store survives its clients]
Problem: one thread serves all ranks, and any process may connect to its port.
Rule: a message is checked against its schema before it is processed. If it does not match, is too long, has too many
items, arrives or is read too slowly, the server closes that client's connection with a warning in the log, and no
other. An unexpected exception counts as that client's, too. The server logs exceptions of functions that the process
has registered with the thread, such as the launcher's reports of waiting ranks.
A turn of the loop does a bounded amount of work for each client: it reads, unpacks, packs and sends a part, and the
clients take turns. A change of a key costs only the waits for that key.
Why: an error or long work in the serving thread would end or delay the whole job.
Consequences: a new operation needs a schema (`OPERATIONS` in kv_store.py, `REQUESTS` in coordinator.py), and time in
proportion to its message.
"""

from __future__ import annotations

import errno
import heapq
import itertools
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

from flambeau.core.ipc.codec import LARGEST, fits
from flambeau.core.ipc.handshake import SECRET
from flambeau.distributed.stores.coordinator import Coordinator
from flambeau.distributed.stores.key_waits import KeyWaits
from flambeau.distributed.stores.kv_store import CHANGES, Table
from flambeau.distributed.stores.store_client import MEET, BadMessage, StoreClient, request_of

log = logging.getLogger("torch.distributed")

_UNREAD = 1 << 26  # bytes of answers that a client has not read; it must read them before it asks for more
_STRANGERS = 1 << 10  # connections that are not admitted yet
_NAP_S = 3600.0  # the longest sleep in seconds; the selector's own limit is some weeks
_WATCH_S = 0.25  # between two calls of `watch` while clients wait
_PAUSE_S = 0.1  # without new connections after the process had no file descriptor left
_LINES, _LINES_S = 30, 60.0  # lines in the log about closed connections within this many seconds
_END = b"x"
_STEP = 1 << 10  # items of messages that a turn unpacks or packs for one client
_REQUESTS = 16  # requests that a turn handles for one client


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
        # called repeatedly while clients wait for keys or collectives
        self.watch: Callable[[], None] | None = None
        self._watched = 0.0  # time of the last call
        self._table = Table()
        self._waits = KeyWaits(self._table)
        self._calls: deque[Callable[[], None]] = deque()
        self._clients: dict[StoreClient, None] = {}
        self._strangers: dict[StoreClient, None] = {}  # those that are not admitted yet, the oldest first
        self._busy: dict[StoreClient, None] = {}  # those whose messages or answers need more turns
        self._deadlines: list[tuple[float, int, StoreClient]] = []  # a heap: when to check which client
        self._numbers = itertools.count()
        self._resume = math.inf  # when to accept connections again
        self._lines = _Lines()
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
        waiting = [(client.process, client.waits, client.missing) for client in self._waits.clients]
        return collective_waits | {
            process: (request.describe_missing(missing), str(request))
            for process, request, missing in waiting
            if request is not None
        }

    def value_of(self, ending: str) -> bytes:
        """Return the newest value whose key ends with `ending`, under any prefix; b"" if there is none."""
        return self._table.newest(ending)

    def blocked_processes(self, least_s: float) -> dict[int, object]:
        """Return the processes that do nothing but wait for keys, for at least `least_s` more seconds, with an id of
        each wait.
        """
        soon = time.monotonic() + least_s
        return {
            c.process: c.waits.wait
            for c in self._waits.clients
            if c.waits and c.waits.alone and c.waits.whole_deadline > soon
        }

    def give_up(self, report: str) -> None:
        """Make each wait for keys raise a DeadlockError."""
        for client in list(self._waits.clients):
            self._answer(client, ["error", "DeadlockError", report])

    def forget(self, wait_key: str) -> None:
        """Drop all values except those whose key begins with `wait_key`. No client may be waiting."""
        self._table.keep(wait_key)

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
        for key, events in self._selector.select(self._next_timeout()):
            if key.fileobj is self._ear:
                if _END in self._ear.recv(1 << 10):
                    return False
                while self._calls:
                    self._call_guarded(self._calls.popleft())
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._transfer(key.data, events)
        for client in list(self._busy):
            self._serve_client(client)
        now = time.monotonic()
        self._check_deadlines(now)
        self._call_guarded(self._settle)
        if self.watch is not None and now - self._watched >= _WATCH_S:
            self._watched = now
            self._call_guarded(self.watch)
        return True

    def _check_deadlines(self, now: float) -> None:
        """Drop clients that are too slow, and end waits whose time is over."""
        if self._resume <= now:
            self._resume = math.inf
            self._selector.register(self._listener, selectors.EVENT_READ)
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, client = heapq.heappop(self._deadlines)
            if client not in self._clients:
                continue
            client.scheduled = math.inf
            if client.deadline <= now:
                self._dismiss(client, "it sends or reads too slowly")
            elif client.waits and client.waits.deadline is not None and client.waits.deadline <= now:
                self._answer(client, ["late"])
            self._schedule(client)

    def _schedule(self, client: StoreClient) -> None:
        """Check the client's deadlines when the first of them is over."""
        due = client.deadline
        if client.waits is not None and client.waits.deadline is not None:
            due = min(due, client.waits.deadline)
        if due >= client.scheduled or client not in self._clients:
            return
        if len(self._deadlines) > 4 * len(self._clients) + 64:  # most are of clients that have gone
            self._deadlines = [(c.scheduled, next(self._numbers), c) for c in self._clients]
            heapq.heapify(self._deadlines)
        client.scheduled = due
        heapq.heappush(self._deadlines, (due, next(self._numbers), client))

    def _call_guarded(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            log.exception("the store at port %d goes on after an error of this process", self.port)

    def _next_timeout(self) -> float:
        """Return the seconds until the next deadline."""
        if self._busy:
            return 0.0
        deadlines = [self._resume]
        if self._deadlines:
            deadlines.append(self._deadlines[0][0])
        if self.meetings is not None and self.meetings.deadline is not None:
            deadlines.append(self.meetings.deadline)
        if self.watch is not None and (self._waits.clients or (self.meetings and self.meetings.waits())):
            deadlines.append(self._watched + _WATCH_S)
        return max(0.0, min(min(deadlines) - time.monotonic(), _NAP_S))

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
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            client = StoreClient(connection, self._secret)
        except (OSError, ValueError):  # the connection has closed again
            connection.close()
            return
        self._clients[client] = self._strangers[client] = None
        self._selector.register(connection, selectors.EVENT_READ, client)
        self._schedule(client)
        if len(self._strangers) > _STRANGERS:
            self._make_room()

    def _make_room(self) -> None:
        """Close the oldest connection that was not admitted: there are too many, or no file descriptor is left."""
        if self._strangers:
            self._dismiss(next(iter(self._strangers)), "there are too many connections")
        else:  # wait until a client closes its connection
            self._selector.unregister(self._listener)
            self._resume = time.monotonic() + _PAUSE_S

    def _drop(self, client: StoreClient) -> None:
        if client in self._clients:
            del self._clients[client]
            self._strangers.pop(client, None)
            self._busy.pop(client, None)
            self._waits.remove(client)
            self._selector.unregister(client.connection)
            client.connection.close()
            if client.meets and self.meetings is not None:
                self.meetings.remove_process(client.process)

    def _dismiss(self, client: StoreClient, why: str) -> None:
        """Close the connection of a client that breaks the protocol."""
        self._warn(f"closed the connection of {client}: {why}")
        self._drop(client)

    def _warn(self, what: str) -> None:
        """Log a line about a client, unless there were many."""
        if self._lines.is_due():
            log.warning("the store at port %d %s%s", self.port, what, self._lines.describe_rest())

    def _transfer(self, client: StoreClient, events: int) -> None:
        """Send or read data, depending on what a client's connection is ready for."""
        is_open = not events & selectors.EVENT_WRITE or client.flush()
        if is_open and events & selectors.EVENT_READ:
            is_open = client.receive()
        if not is_open:
            self._drop(client)
            return
        self._update(client)

    def _serve_client(self, client: StoreClient) -> None:
        """Do one turn's work for a client. See Note [A store survives its clients]."""
        try:
            client.pack(_STEP)
            for _ in range(_REQUESTS):
                if client.is_packing or client.unread > _UNREAD or client not in self._clients:
                    break
                message = client.inbox.take(_STEP)
                if not message:
                    break
                self._handle(client, message[0])
        except ValueError as error:
            self._dismiss(client, str(error))
        except Exception:
            log.exception("the store at port %d failed at a request", self.port)
            self._dismiss(client, "its request raised an exception")
        self._flush(client)

    def _greet(self, client: StoreClient, message: Any) -> None:
        if client.greeting.refused:
            raise BadMessage("it goes on though it was refused")
        self._answer(client, client.greeting.take(message))
        if client.process:
            client.admit(LARGEST)
            self._strangers.pop(client, None)
        elif client.greeting.refused:
            self._warn(f"refused {client}")

    def _handle(self, client: StoreClient, message: Any) -> None:
        if not client.process:
            self._greet(client, message)
            return
        if client.waits is not None:
            raise BadMessage("a request before the answer to the last one")
        request = request_of(message)
        if request.operation == MEET:
            self._meet(client, request.args)
            return
        client.waits = request
        self._waits.add(client)
        self._run(client)

    def _meet(self, client: StoreClient, request: list[Any]) -> None:
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
        elsewhere = {c.process: c.waits for c in self._waits.clients if c.waits and c.waits.alone}
        answers = self.meetings.settle(elsewhere)
        if answers:
            by_process = {client.process: client for client in self._clients if client.meets}
            for process, answer in answers:
                if process in by_process:
                    self._answer(by_process[process], answer)

    def _run(self, client: StoreClient) -> None:
        """Run a client's operation unless it waits for a missing key. Clients that it wakes are answered first."""
        todo = deque([client])
        answers: list[tuple[StoreClient, list[Any]]] = []
        while todo:
            each = todo.popleft()
            if each.waits is None or each.missing:  # another one was first
                continue
            request = each.waits
            self._waits.remove(each)
            try:
                answer = ["ok", self._table.run(request.operation, request.args)]
            except (RuntimeError, TypeError, ValueError, LookupError) as error:
                answer = ["error", type(error).__name__, str(error)]
            answers.append((each, answer))
            if request.operation in CHANGES:
                changed = request.args[0]
                todo += self._waits.update([changed] if isinstance(changed, str) else changed)
        for each, answer in answers[1:] + answers[:1]:
            self._answer(each, answer)

    def _answer(self, client: StoreClient, answer: list[Any]) -> None:
        self._waits.remove(client)
        client.answer(answer, _STEP)
        self._flush(client)

    def _flush(self, client: StoreClient) -> None:
        if client in self._clients:
            if client.flush():
                self._update(client)
            else:
                self._drop(client)

    def _update(self, client: StoreClient) -> None:
        """Select what to wait for on the client's socket: messages, unless it must read answers first; room, if answers
        are unsent.
        """
        may_ask = client.unread <= _UNREAD and not client.is_packing
        if client.is_packing or (may_ask and client.inbox.is_ready):
            self._busy[client] = None
        else:
            self._busy.pop(client, None)
        events = selectors.EVENT_WRITE if client.unread else 0
        if may_ask and not client.inbox.is_ready:
            events |= selectors.EVENT_READ
        self._selector.modify(client.connection, events, client)
        self._schedule(client)


class _Lines:
    """A limit on lines of the log, so that hostile clients cannot fill a disk or block on a full pipe."""

    def __init__(self) -> None:
        self._count = self._left_out = 0
        self._since = -math.inf

    def is_due(self) -> bool:
        """Return True if one more line may be written."""
        now = time.monotonic()
        if now - self._since >= _LINES_S:
            self._since, self._count = now, 0
        self._count += 1
        self._left_out += self._count > _LINES
        return self._count <= _LINES

    def describe_rest(self) -> str:
        """Return a text about the lines that were left out since the last one."""
        left_out, self._left_out = self._left_out, 0
        return f" ({left_out:,} more such lines were left out)" if left_out else ""
