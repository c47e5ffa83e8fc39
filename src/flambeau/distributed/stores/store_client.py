"""`StoreClient`: the server's side of one connection to a store. `StoreRequest`: an operation that it asks for."""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

from flambeau.core.brief import brief, brief_text
from flambeau.core.host.host_memory import available
from flambeau.core.ipc.codec import Either, Inbox, Packing, fits, frame_header
from flambeau.core.ipc.handshake import UNGREETED, Greeting
from flambeau.distributed.stores.kv_store import OPERATIONS

MEET = "meet"  # the operation of virtual GPUs, whose arguments the coordinator checks
MOST_KEYS = 1 << 17  # keys of one request, as in PyTorch
MOST_ITEMS = (
    2 * MOST_KEYS + 64
)  # items of one message: keys with values, or keys that an operation needs, too
PART = 1 << 18  # bytes that are read or sent in one turn
# operation, arguments, needed keys, limit in ms (or limits of this part and of the whole wait), alone, site
_REQUEST = [str, list, (str,), Either(int, [int, int]), bool, str]
_GREETING_S = 30.0  # seconds that a client may take to be admitted
_STALLED_S = (
    600.0  # seconds that an admitted client, which a debugger may have stopped, may take for a message
)
_SLOWEST = 1 << 20  # bytes a second at which it must read or send on top of that
_LONGEST_MS = 1 << 53  # the largest time limit
_SITE = 1 << 12  # letters of a call site
_SHOWN, _LETTERS = 4, 200  # keys of a request that a report names, and letters of each
_LARGE = 1 << 24  # bytes of a message from which on the host's memory is checked
_SPARE = 1 << 28  # bytes of the host's memory that messages leave free


class BadMessage(ValueError):
    """The error raised for a message that no client of Flambeau sends."""


def require_memory(nbytes: int) -> None:
    """Raise BadMessage if the host has too little memory for a message."""
    left = available() if nbytes >= _LARGE else None
    if left is not None and nbytes > left - _SPARE:
        raise BadMessage(f"a message of {nbytes:,} bytes, and this host has {left:,} bytes of memory left")


class StoreRequest:
    """An operation that may have to wait for keys.

    Attributes:
        needs: The keys that it needs.
        started_at: Time of arrival, on the monotonic clock.
        deadline: Time at which this request fails if keys are missing; None means never.
        whole_deadline: Time at which the program gives up; it may repeat the request until then. Infinite means never.
        alone: True if no other thread of its process could set the keys.
        site: The call site of the request.
    """

    __slots__ = ("alone", "args", "deadline", "needs", "operation", "site", "started_at", "whole_deadline")

    def __init__(
        self, operation: str, args: list[Any], needs: list[str], limits_ms: list[int], alone: bool, site: str
    ) -> None:
        self.alone = alone
        self.site = brief_text(site)
        self.operation = operation
        self.args = args
        self.needs = needs
        self.started_at = time.monotonic()
        limit, whole = limits_ms
        self.deadline = self.started_at + limit / 1000 if limit else None
        self.whole_deadline = self.started_at + whole / 1000 if whole else math.inf

    @property
    def wait(self) -> object:
        """Return a value that identifies this wait of its process; a repeated request continues it."""
        return self.started_at if self.deadline == self.whole_deadline else str(self)

    def __str__(self) -> str:
        return self._describe(self.needs, len(self.needs))

    def describe_missing(self, missing: Collection[str]) -> str:
        """Return text that names those of the needed keys that are missing."""
        return self._describe((key for key in self.needs if key in missing), len(missing))

    def _describe(self, keys: Iterable[str], count: int) -> str:
        more = [f"{count - _SHOWN:,} more keys"] if count > _SHOWN else []
        shown = [f"{key[:_LETTERS]!r}{'...' * (len(key) > _LETTERS)}" for key in islice(keys, _SHOWN)]
        return f"{', '.join([*shown, *more])} of the store at {self.site}"


def request_of(message: Any) -> StoreRequest:
    """Return the request in a message. Raises BadMessage if the message is invalid."""
    if not fits(message, _REQUEST):
        raise BadMessage("a request of another form")
    operation, args, needs, limit, alone, site = message
    if operation != MEET and not fits(args, OPERATIONS.get(operation, False)):
        raise BadMessage(f"operation {operation[:40]!r} with arguments of other types")
    limits = limit if isinstance(limit, list) else [limit, limit]
    if not all(0 <= each <= _LONGEST_MS for each in limits):
        raise BadMessage(f"a time limit of {brief(limit)} ms")
    if len(site) > _SITE:
        raise BadMessage(f"a call site of {len(site):,} letters")
    return StoreRequest(operation, args, needs, limits, alone, site)


class StoreClient:
    """One connection to the store.

    Attributes:
        inbox: Bytes of messages that were not handled yet.
        unread: Bytes of answers that were not sent yet.
        meets: True if it is the connection of a rank's virtual GPUs.
        waits: The request that waits for keys, if any.
        missing: Those keys of the request that are not set.
        scheduled: Time at which the server will check the client's deadlines.
    """

    __slots__ = (
        "_answers", "_outbox", "_read_by", "_sent_by", "connection", "greeting", "inbox", "meets", "missing",
        "scheduled", "unread", "waits",
    )  # fmt: skip

    def __init__(self, connection: socket.socket, secret: str | None) -> None:
        self.connection = connection
        self.greeting = Greeting(connection, secret)
        self.inbox = Inbox(limit=UNGREETED, most=MOST_ITEMS, check_length=require_memory)
        self._answers: deque[Packing] = deque()  # answers that are not packed yet
        self._outbox: deque[memoryview] = deque()
        self.unread = 0
        self.meets = False
        self.waits: StoreRequest | None = None
        self.missing: set[str] = set()
        self.scheduled = math.inf
        self._sent_by = self._read_by = time.monotonic() + _GREETING_S

    @property
    def process(self) -> int:
        """Return the process id that the client sent; 0 before it is admitted."""
        return self.greeting.process

    @property
    def is_packing(self) -> bool:
        """Return True if an answer is not packed yet."""
        return bool(self._answers)

    @property
    def deadline(self) -> float:
        """Return the time by which the client must send or read, on the monotonic clock."""
        if not self.process:
            return self._sent_by
        sent_by = self._sent_by if self.inbox.is_partial else math.inf
        return min(sent_by, self._read_by if self._outbox else math.inf)

    def admit(self, limit: int) -> None:
        """Allow messages of up to `limit` bytes."""
        self.inbox.limit = limit
        self._read_by = time.monotonic() + _STALLED_S

    def receive(self) -> bool:
        """Read bytes that have arrived. Returns False if the client has closed the connection."""
        try:
            part = self.connection.recv(PART)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if self.process:
            start = self._sent_by if self.inbox.is_partial else time.monotonic() + _STALLED_S
            self._sent_by = start + len(part) / _SLOWEST
        self.inbox.add(part)
        return bool(part)

    def answer(self, message: Any, most: int) -> None:
        """Queue an answer, and pack up to `most` items of it."""
        self._answers.append(Packing(message))
        self.pack(most)

    def pack(self, most: int) -> None:
        """Pack up to `most` items of answers."""
        while self._answers and self._answers[0].advance(most):
            packing = self._answers.popleft()
            if not self._outbox and self.process:
                self._read_by = time.monotonic() + _STALLED_S
            if self.process:
                self._read_by += packing.nbytes / _SLOWEST
            parts = [frame_header(packing.nbytes), *packing.parts]
            self.unread += sum(map(len, parts))
            self._outbox += map(memoryview, [b"".join(parts)] if packing.nbytes < PART else parts)

    def flush(self) -> bool:
        """Send up to about `PART` bytes of answers. Returns False if the connection is closed."""
        sent = 0
        try:
            while self._outbox and sent < PART:
                part = self._outbox[0]
                count = self.connection.send(part[:PART])
                sent += count
                if count < len(part):
                    self._outbox[0] = part[count:]
                else:
                    self._outbox.popleft()
        except BlockingIOError:
            pass
        except OSError:
            return False
        finally:
            self.unread -= sent
        return True

    def __str__(self) -> str:
        try:
            end = self.connection.getpeername()
        except OSError:
            end = "a closed connection"
        return f"process {self.process} at {end}" if self.process else f"a client at {end}"
