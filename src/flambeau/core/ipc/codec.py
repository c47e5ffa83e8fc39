"""`pack`, `unpack`, `fits`, `send`, `receive`: plain values as bytes, and messages of them over sockets.

A value is None, a bool, an int, a str, bytes, or a list of values. Any process that can connect can send anything.
Messages are therefore not pickles, and an invalid message raises ValueError without any other effect.
"""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

LARGEST = 1 << 36  # bytes of one message
_LENGTH = struct.Struct("!Q")
_DEPTH = 16
_ALL = sys.maxsize
_LONG = 1 << 14  # bytes of an item from which on a message refers to it and does not copy it
_END, _OPENED = object(), object()
Data = bytes | bytearray | memoryview


def pack(value: Any) -> bytes:
    """Return the bytes of a value.

    Raises:
        TypeError: If it is of another type.
    """
    packing = Packing(value)
    packing.advance(_ALL)
    return b"".join(packing.parts)


class Pieces(NamedTuple):
    """Long bytes as a list of pieces that are not joined. A message holds them as one item of bytes."""

    parts: list[bytes]


class Packing:
    """The bytes of a value, made in steps of bounded work.

    Attributes:
        parts: Bytes so far, once complete all of them. Long bytes are the value's own, without a copy.
        nbytes: Their total length.
    """

    __slots__ = ("_open", "_short", "nbytes", "parts")

    def __init__(self, value: Any) -> None:
        self.parts: list[Data] = []
        self.nbytes = 0
        self._short = bytearray()  # short pieces, for the next part
        self._open: list[Iterator[Any]] = [
            iter((value,))
        ]  # the value and the lists in it that are not complete

    def advance(self, most: int) -> bool:
        """Pack up to `most` more items. Returns True once the value is complete.

        Raises:
            TypeError: If an item is of another type.
        """
        for _ in range(most):
            item = next(self._open[-1], _END)
            if item is not _END:
                self._add(item)
                continue
            self._open.pop()
            if not self._open:
                self._end_part()
                return True
        return False

    def _add(self, item: Any) -> None:
        if isinstance(item, str):
            self._add_raw(b"s", item.encode())
        elif isinstance(item, bytes | bytearray | memoryview):
            self._add_raw(b"b", item)
        elif isinstance(item, Pieces):
            self._add_pieces(item.parts)
        elif isinstance(item, list | tuple):
            self._short += b"l%d;" % len(item)
            self._open.append(iter(item))
        elif item is None:
            self._short += b"n;"
        elif isinstance(item, bool):
            self._short += b"t1;" if item else b"t0;"
        elif isinstance(item, int):
            self._short += b"i%d;" % item
        else:
            raise TypeError(f"no message can hold a {type(item).__name__}")
        if len(self._short) >= _LONG:
            self._end_part()

    def _add_raw(self, kind: bytes, raw: Data) -> None:
        self._short += b"%b%d;" % (kind, len(raw))
        if len(raw) < _LONG:
            self._short += raw
            return
        self._end_part()
        self._put(bytes(raw) if isinstance(raw, bytearray) else raw)  # its owner may resize a bytearray

    def _add_pieces(self, parts: list[bytes]) -> None:
        self._short += b"b%d;" % sum(map(len, parts))
        self._end_part()
        for part in parts:
            self._put(part)

    def _end_part(self) -> None:
        if self._short:
            self._put(bytes(self._short))
            self._short.clear()

    def _put(self, part: Data) -> None:
        self.parts.append(part)
        self.nbytes += len(part)


def unpack(data: bytes | bytearray, start: int = 0) -> Any:
    """Return the value of `pack`'s bytes, which begin at `start`.

    Raises:
        ValueError: If they are invalid.
    """
    unpacking = Unpacking(data, start)
    unpacking.advance(_ALL)
    return unpacking.value


class Unpacking:
    """A value that is read from its bytes in steps of bounded work.

    Attributes:
        value: The value once it is complete.
    """

    __slots__ = ("_at", "_data", "_most", "_open", "value")

    def __init__(self, data: bytes | bytearray, start: int = 0, most: int = _ALL) -> None:
        self._data = data
        self._at = start
        self._most = most  # items that the value may have
        self._open: list[tuple[list[Any], int]] = []  # lists that are not complete, and their lengths
        self.value: Any = None

    def advance(self, most: int) -> bool:
        """Read up to `most` more items. Returns True once the value is complete.

        Raises:
            ValueError: If the bytes are invalid, or the value has too many items.
        """
        for _ in range(most):
            self._most -= 1
            if self._most < 0:
                raise ValueError("a message of too many items")
            if self._close(self._item()):
                return True
        return False

    def _item(self) -> Any:
        """Return the next item; `_OPENED` for the beginning of a list."""
        data, start = self._data, self._at
        end = data.find(b";", start, start + 32)
        if end < 0:
            raise ValueError("these bytes are not a message")
        kind, number = data[start : start + 1], data[start + 1 : end]
        end = self._at = end + 1
        if kind == b"n":
            return None
        count = int(number)
        if kind == b"t":
            return bool(count)
        if kind == b"i":
            return count
        if kind == b"l" and count >= 0:
            if len(self._open) > _DEPTH:
                raise ValueError("these bytes are not a message")
            if count:
                self._open.append(([], count))
                return _OPENED
            return []
        with memoryview(data) as whole:  # copies large data only once
            raw = bytes(whole[end : end + max(count, 0)])
        if kind not in (b"s", b"b") or count < 0 or len(raw) != count:
            raise ValueError("these bytes are not a message")
        self._at = end + count
        return raw.decode() if kind == b"s" else raw

    def _close(self, item: Any) -> bool:
        """Append an item to its list, and each list that this completes to its own. Returns True at the end."""
        if item is _OPENED:
            return False
        while self._open:
            items, count = self._open[-1]
            items.append(item)
            if len(items) < count:
                return False
            item = self._open.pop()[0]
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes after the end of a message")
        self.value = item
        return True


class Either:
    """A schema that admits values of any of `schemas`."""

    __slots__ = ("schemas",)

    def __init__(self, *schemas: Any) -> None:
        self.schemas = schemas


def fits(value: Any, schema: Any) -> bool:
    """Return True if a message has the form that a schema describes.

    Args:
        value: A value of a message.
        schema: A type (`int` does not admit bools); a tuple `(schema,)`: a list of any length, each item of that
            schema; a list: a list of just these items, each of its schema; an `Either`; else a constant.
    """
    if isinstance(schema, type):
        return type(value) is schema
    if isinstance(schema, tuple):
        if isinstance(schema[0], type):
            return isinstance(value, list) and {*map(type, value)} <= {schema[0]}
        return isinstance(value, list) and all(fits(item, schema[0]) for item in value)
    if isinstance(schema, list):
        return isinstance(value, list) and len(value) == len(schema) and all(map(fits, value, schema))
    if isinstance(schema, Either):
        return any(fits(value, each) for each in schema.schemas)
    return type(value) is type(schema) and bool(value == schema)


def frame_message(value: Any) -> bytes:
    """Return a message as it goes over a socket: its length before it."""
    packing = Packing(value)
    packing.advance(_ALL)
    return b"".join([frame_header(packing.nbytes), *packing.parts])


def frame_header(nbytes: int) -> bytes:
    """Return the bytes before a message of this length."""
    return _LENGTH.pack(nbytes)


def send(connection: socket.socket, value: Any) -> None:
    connection.sendall(frame_message(value))


def receive(connection: socket.socket, limit: int = LARGEST) -> Any:
    """Return the next message, of at most `limit` bytes.

    Raises:
        ConnectionError: If the other side has closed the connection, before the message or during it.
        ValueError: If the bytes are not a valid message, or it is too long.
    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > limit:
        raise ValueError(f"a message of {length} bytes; at most {limit} are allowed")
    return unpack(_exactly(connection, length))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(min(count - len(data), 1 << 20))
        if not part:
            raise ConnectionError(f"the connection was closed after {len(data)} of {count} bytes")
        data += part
    return bytes(data)


class Inbox:
    """A parser of messages from bytes as they arrive, for a server that must not block.

    Attributes:
        limit: Bytes of the longest message.
        most: Items of the largest message.
        check_length: Called with the length of each message that begins; raises ValueError to refuse it.
    """

    def __init__(
        self, limit: int, most: int = _ALL, check_length: Callable[[int], None] | None = None
    ) -> None:
        self.limit = limit
        self.most = most
        self.check_length = check_length
        self._data = bytearray()
        self._end = 0  # where the first message in `_data` ends; 0 if it has not begun
        self._current: Unpacking | None = None

    @property
    def is_partial(self) -> bool:
        """Return True if a message has begun and is not whole yet."""
        return bool(self._data) and not self.is_ready

    @property
    def is_ready(self) -> bool:
        """Return True if `take` can go on without more bytes."""
        return self._current is not None or (self._end or _LENGTH.size) <= len(self._data)

    def feed(self, part: bytes) -> list[Any]:
        """Return the messages that are complete now.

        Raises:
            ValueError: If the bytes are not a valid message, or it is too long.
        """
        self.add(part)
        found = []
        while message := self.take(_ALL):
            found += message
        return found

    def drop_partial(self) -> int:
        """Forget the beginning of a message whose rest will not arrive. Returns its number of bytes."""
        nbytes = len(self._data)
        self._data, self._end = bytearray(), 0
        return nbytes

    def add(self, part: bytes) -> None:
        """Append bytes that have arrived."""
        self._data += part

    def take(self, most: int) -> list[Any]:
        """Read up to `most` more items. Returns a list of the next message, empty if it is not complete.

        Raises:
            ValueError: If the bytes are not a valid message, or it is too long.
        """
        if self._current is None:
            self._current = self._begin()
        if self._current is None or not self._current.advance(most):
            return []
        found, self._current = self._current.value, None
        return [found]

    def _begin(self) -> Unpacking | None:
        """Return the next message if all its bytes are here."""
        if not self._end and len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > self.limit:
                raise ValueError(f"a message of {length} bytes; at most {self.limit} are allowed")
            if self.check_length is not None:
                self.check_length(length)
            self._end = _LENGTH.size + length
        end = self._end
        if not end or len(self._data) < end:
            return None
        self._end = 0
        if len(self._data) > end:
            whole = self._data[_LENGTH.size : end]
            del self._data[:end]
            return Unpacking(whole, 0, self.most)
        whole, self._data = self._data, bytearray()
        return Unpacking(whole, _LENGTH.size, self.most)
