"""`PeerLinks`: frames over the connections of one rank to the other members of its group, moved by a thread.

A frame is a kind, two numbers, and a body. The thread reads and writes whenever a connection allows either, so two
ranks that send large tensors to each other do not block. A caller writes its frames itself as far as the connection
accepts them, which saves a change of threads; the thread writes the rest.

Bodies are read into memory that the receiver of the frame names as soon as it has seen the head. Tensors therefore
travel without copies on the host.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol

_HEAD = struct.Struct("!BQQQ")  # kind, number, sub-number, bytes of the body
_BUFFER = 1 << 16  # bytes per read while no message body is incomplete
_READS = 32  # reads from one connection before the others are served
_VECTORS = 16  # buffers that one call writes
Bytes = memoryview
Head = tuple[int, int, int, int]
BYE = 0  # the kind of the frame with which a rank leaves the group


class Receiver(Protocol):
    """The receiver of frames. The links' thread calls it with the lock held."""

    def take_head(self, rank: int, head: Head) -> tuple[Bytes, Callable[[], None]]:
        """Return the memory for a frame's body and what to call once it is there."""
        ...

    def lose(self, rank: int, why: str) -> None:
        """Handle that no more frames will arrive from a rank."""
        ...


class _Link:
    """The connection to one rank."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank = rank
        self.connection = connection
        self.inbox = memoryview(bytearray(_BUFFER))
        self.start = self.end = 0  # bytes of `inbox` that have not been parsed
        self.body: Bytes | None = None  # the missing part of the body that is being received
        self.whole: Callable[[], None] = _nothing
        self.outbox: deque[tuple[Bytes, Callable[[], None] | None]] = deque()
        self.lost = ""  # the reason why no more data arrives; empty while the connection is open
        self.closed = False
        self.has_left = False  # True after the rank sent BYE
        self.writable = False  # True while the selector watches for room to write
        self.writing = False  # True while a caller further up the stack writes


class PeerLinks:
    """The links of one rank, and the thread that serves them.

    Attributes:
        lock: Guards the links and the state of the receiver.
    """

    def __init__(self, connections: Mapping[int, socket.socket], receiver: Receiver) -> None:
        self.lock = threading.Condition()
        self._links = {rank: _Link(rank, connection) for rank, connection in connections.items()}
        self._receiver = receiver
        self._selector = selectors.DefaultSelector()
        self._wake, self._alarm = socket.socketpair()
        for end in (self._wake, self._alarm):
            end.setblocking(False)
        self._selector.register(self._alarm, selectors.EVENT_READ)
        for link in self._links.values():
            self._selector.register(link.connection, selectors.EVENT_READ, link)
        self._leaving = self._gathers = False
        self._thread = threading.Thread(target=self._serve, name="flambeau-tcp", daemon=True)
        _all.add(self)

    def start(self) -> None:
        """Start the thread that serves the connections."""
        self._thread.start()

    def send(
        self,
        rank: int,
        kind: int,
        number: int,
        sub: int,
        body: Any = b"",
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Enqueue a frame. `sent` is called when the operating system has accepted all of it. The caller holds the
        lock.
        """
        link = self._links[rank]
        if link.lost:
            return  # every operation that needs the rank has failed
        view = memoryview(body)
        link.outbox.append(
            (memoryview(_HEAD.pack(kind, number, sub, view.nbytes)), None if view.nbytes else sent)
        )
        if view.nbytes:
            link.outbox.append((view, sent))
        if not link.writable and not self._gathers:  # otherwise the thread writes
            self._write(link)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Return a context manager that collects frames and writes them together at its end. The caller holds the
        lock.
        """
        self._gathers = True
        try:
            yield
        finally:
            self._gathers = False
            for link in self._links.values():
                if link.outbox and not link.writable:
                    self._write(link)

    def lost(self, rank: int) -> str:
        """Return the reason why a rank can send nothing more; "" while its connection works."""
        link = self._links.get(rank)
        return "" if link is None else link.lost

    def leave(self, idle: bool) -> None:
        """End the connections after pending operations; see `settle`. The caller holds the lock."""
        self._leaving = True
        self.settle(idle)

    def settle(self, idle: bool) -> None:
        """Send the final frame to all ranks if this rank is leaving and is `idle`. The caller holds the lock."""
        if self._leaving and idle:
            self._leaving = False
            for link in self._links.values():
                if link.lost:
                    self._shut(link)
                else:
                    self.send(link.rank, BYE, 0, 0, sent=partial(self._shut, link))

    def close(self) -> None:
        """Close all connections immediately. The lock must be held."""
        for link in self._links.values():
            self.send(link.rank, BYE, 0, 0)
            self._close(link, "the process group was aborted")
        self._ring()

    def close_sockets(self) -> None:
        """Close the sockets of a forked child, which would keep its parent's connections open."""
        for link in self._links.values():
            link.connection.close()

    # -- writing ------------------------------------------------------------------------------------------

    def _write(self, link: _Link) -> None:
        """Write as much as the connection accepts."""
        if link.writing:
            return  # a callback of `_pop_sent` has sent more
        link.writing = True
        try:
            self._write_all(link)
        finally:
            link.writing = False
        watches = bool(link.outbox) and not link.closed
        if watches != link.writable:
            link.writable = watches
            if threading.current_thread() is self._thread:
                self._watch(link)
            else:
                self._ring()

    def _write_all(self, link: _Link) -> None:
        while link.outbox and not link.closed:
            try:
                count = link.connection.sendmsg([view for view, _ in list(link.outbox)[:_VECTORS]])
            except BlockingIOError:
                break
            except OSError:
                link.outbox.clear()
                break  # the reading side reports the reason
            self._pop_sent(link, count)

    def _pop_sent(self, link: _Link, count: int) -> None:
        while link.outbox:
            view, sent = link.outbox[0]
            if count < view.nbytes:
                link.outbox[0] = (view[count:], sent)
                return
            count -= view.nbytes
            link.outbox.popleft()
            if sent is not None:
                sent()

    def _watch(self, link: _Link) -> None:
        if not link.closed:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.writable else 0)
            self._selector.modify(link.connection, events, link)

    def _ring(self) -> None:
        with suppress(OSError):
            self._wake.send(b"!")

    def _shut(self, link: _Link) -> None:
        """Stop sending but keep reading, because unread data would reset the connection."""
        with suppress(OSError):
            link.connection.shutdown(socket.SHUT_WR)

    # -- reading ------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while any(not link.closed for link in self._links.values()):
            found = self._selector.select()
            with self.lock:
                for key, events in found:
                    if key.data is None:
                        self._answer_alarm()
                        continue
                    if events & selectors.EVENT_WRITE:
                        self._write(key.data)
                    if events & selectors.EVENT_READ:
                        self._read(key.data)
        self._selector.close()
        self._wake.close()
        self._alarm.close()

    def _answer_alarm(self) -> None:
        with suppress(OSError):
            while self._alarm.recv(4096):
                pass
        for link in self._links.values():
            self._watch(link)

    def _read(self, link: _Link) -> None:
        for _ in range(_READS):
            if link.closed:
                return
            direct = link.body is not None
            target = link.body if link.body is not None else link.inbox[link.end :]
            try:
                count = link.connection.recv_into(target)
            except BlockingIOError:
                return
            except OSError as error:
                # the peer ended without reading all data
                reset = isinstance(error, ConnectionResetError | BrokenPipeError)
                self._close(link, "" if reset else f"the connection broke: {error.strerror}")
                return
            if not count:
                self._close(link, "")
                return
            try:
                self._take(link, count, direct)
            except (ValueError, KeyError) as error:
                self._close(link, f"it sent what is not a frame: {error}")
            if count < target.nbytes and not direct:
                return  # no more data has arrived

    def _take(self, link: _Link, count: int, direct: bool) -> None:
        """Consume `count` bytes that were read: for the current body if `direct`, otherwise for the inbox."""
        if link.body is None or not direct:
            link.end += count
            self._parse(link)
            return
        link.body = link.body[count:]
        if not link.body.nbytes:
            whole, link.body, link.whole = link.whole, None, _nothing
            whole()

    def _parse(self, link: _Link) -> None:
        """Pass the frames in the inbox to the receiver."""
        while link.end - link.start >= _HEAD.size and not link.closed:
            head: Head = _HEAD.unpack_from(link.inbox, link.start)
            link.start += _HEAD.size
            if head[0] == BYE:
                link.has_left = True
                self._lose(link, "")
                continue
            body, whole = self._receiver.take_head(link.rank, head)
            there = min(link.end - link.start, body.nbytes)
            body[:there] = link.inbox[link.start : link.start + there]
            link.start += there
            if there < body.nbytes:
                link.body, link.whole = body[there:], whole
            else:
                whole()
        left = link.end - link.start
        link.inbox[:left] = bytes(link.inbox[link.start : link.end])
        link.start, link.end = 0, left

    def _close(self, link: _Link, why: str) -> None:
        if not link.closed:
            link.closed = True
            with suppress(KeyError, ValueError):
                self._selector.unregister(link.connection)
            link.connection.close()
            link.outbox.clear()
            self._lose(link, why)

    def _lose(self, link: _Link, why: str) -> None:
        if not link.lost:
            link.lost = why or "left" if link.has_left else why or "ended"
            self._receiver.lose(link.rank, link.lost)


def _nothing() -> None:
    pass


def _close_in_child() -> None:
    """Close a rank's sockets in a forked child, so that the other ranks notice when the rank ends."""
    for links in list(_all):
        links.close_sockets()


_all: weakref.WeakSet[PeerLinks] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_in_child)
