"""`ServerWatch`: reports while a client waits for an answer of a store's server that has stopped to answer."""

from __future__ import annotations

import socket

from flambeau.core.host.long_waits import LongWait
from flambeau.core.ipc.handshake import RefusedError, greet

_ANSWER_S = 5.0  # seconds in which a server greets a client, on a busy machine too


class ServerWatch(LongWait):
    """A client's wait for an answer, which prints a line for every 30 seconds in which the server does not answer.

    A server that runs reports long waits itself, so a line is printed only if it does not greet another connection.

    Args:
        host: The server's host.
        port: The server's port.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__(lambda: "" if _answers(host, port) else _describe(host, port))


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_S) as connection:
            greet(connection)
    except RefusedError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _describe(host: str, port: int) -> str:
    return (
        f"for the process that serves the store at {host}:{port}, which does not answer: it may be stopped, or its "
        "host cannot be reached"
    )
