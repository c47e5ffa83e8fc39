"""`Awaited`: a host wait for something other than devices, during which devices progress. `Readable`: one for a
socket.
"""

from __future__ import annotations

import selectors
from socket import socket
from typing import Protocol

_LOOK_S = 0.1  # seconds between checks for Ctrl-C


class Awaited(Protocol):
    """A host wait for something other than devices.

    Attributes:
        words: Description for reports; "" if the ranks' store knows it.
    """

    words: str

    def look(self, other: socket) -> tuple[bool, bool]:
        """Wait for a moment. Returns (True if the awaited object has arrived, True if `other` can be read).

        May raise the wait's exception.
        """
        ...


class Readable:
    """A connection to the ranks' store that delivers messages."""

    words = ""

    def __init__(self, connection: socket) -> None:
        self._connection = connection

    def look(self, other: socket) -> tuple[bool, bool]:
        found = readable(_LOOK_S, self._connection, other)
        return self._connection in found, other in found


def readable(timeout_s: float, *connections: socket) -> list[object]:
    """Return the readable connections as soon as there is one; none after `timeout_s` seconds."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection, selectors.EVENT_READ)
        return [key.fileobj for key, _ in selector.select(timeout_s)]
