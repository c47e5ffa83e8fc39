"""`pack`, `unpack`, `fits`, `send`, `receive`: plain values as bytes, and messages of them over sockets.

A value is None, a bool, an int, a str, bytes, or a list of values. Any process that can connect can send anything.
Messages are therefore not pickles, and an invalid message raises ValueError without any other effect.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

LARGEST = 1 << 36  # bytes of one message
_LENGTH = struct.Struct("!Q")
_DEPTH = 16
Data = bytes | bytearray | memoryview


def pack(value: Any) -> bytes:
    """Return the bytes of a value.

    Raises:
        TypeError: If it is of another type.
    """
    parts: list[Data] = []
    _pack(value, parts)
    return b"".join(parts)


def _pack(value: Any, parts: list[Data]) -> None:
    if value is None:
        parts.append(b"n;")
    elif isinstance(value, bool):
        parts.append(b"t1;" if value else b"t0;")
    elif isinstance(value, int):
        parts.append(b"i%d;" % value)
    elif isinstance(value, str):
        raw = value.encode()
        parts += (b"s%d;" % len(raw), raw)
    elif isinstance(value, bytes | bytearray | memoryview):
        parts += (b"b%d;" % len(value), value)
    elif isinstance(value, list | tuple):
        parts.append(b"l%d;" % len(value))
        for item in value:
            _pack(item, parts)
    else:
        raise TypeError(f"no message can hold a {type(value).__name__}")


def unpack(data: bytes | bytearray, start: int = 0) -> Any:
    """Return the value of `pack`'s bytes, which begin at `start`.

    Raises:
        ValueError: If they are invalid.
    """
    value, end = _unpack(data, start, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after the end of a message")
    return value


def _unpack(data: bytes | bytearray, start: int, depth: int) -> tuple[Any, int]:
    end = data.find(b";", start, start + 32)
    if end < 0 or depth > _DEPTH:
        raise ValueError("these bytes are no message")
    kind, number = data[start : start + 1], data[start + 1 : end]
    end += 1
    if kind == b"n":
        return None, end
    count = int(number)
    if kind == b"t":
        return bool(count), end
    if kind == b"i":
        return count, end
    if kind == b"l" and count >= 0:
        items = []
        for _ in range(count):
            item, end = _unpack(data, end, depth + 1)
            items.append(item)
        return items, end
    with memoryview(data) as whole:  # copies large data only once
        raw = bytes(whole[end : end + max(count, 0)])
    if kind not in (b"s", b"b") or count < 0 or len(raw) != count:
        raise ValueError("these bytes are no message")
    return (raw.decode() if kind == b"s" else raw), end + count


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
        return isinstance(value, list) and all(fits(item, schema[0]) for item in value)
    if isinstance(schema, list):
        return isinstance(value, list) and len(value) == len(schema) and all(map(fits, value, schema))
    if isinstance(schema, Either):
        return any(fits(value, each) for each in schema.schemas)
    return type(value) is type(schema) and bool(value == schema)


def frame_message(value: Any) -> bytes:
    """Return a message as it goes over a socket: its length before it."""
    parts: list[Data] = [b""]
    _pack(value, parts)
    parts[0] = _LENGTH.pack(sum(map(len, parts)))
    return b"".join(parts)


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
    """A parser of messages from bytes as they arrive, for a server that must not block. `limit`: the longest
    message.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._data = bytearray()

    @property
    def is_partial(self) -> bool:
        """Return True if a message has begun and is not whole yet."""
        return bool(self._data)

    def feed(self, part: bytes) -> list[Any]:
        """Return the messages that are complete now.

        Raises:
            ValueError: If the bytes are not a valid message, or it is too long.
        """
        self._data += part
        found = []
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > self.limit:
                raise ValueError(f"a message of {length} bytes; at most {self.limit} are allowed")
            end = _LENGTH.size + length
            if len(self._data) < end:
                break
            if len(self._data) > end:
                found.append(unpack(bytes(self._data[_LENGTH.size : end])))
                del self._data[:end]
            else:
                whole, self._data = self._data, bytearray()
                found.append(unpack(whole, _LENGTH.size))
        return found
