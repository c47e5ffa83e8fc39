"""The handshake that begins each connection to a store: `greet` on the client's side, `Greeting` on the server's.

# Note [Who may connect to a store]
Problem: a store decides what ranks compute and where they meet, and any process that reaches its port can talk to it.
Rule: a server that has a secret admits clients that prove that they know it: the server sends a random challenge, the
client answers with its HMAC under the secret, and the secret itself is never sent. A server without one admits
clients on the same host only.
Why: the launcher of one node makes a secret and gives it to its ranks by the environment, so the user sets nothing; for
several hosts the user sets FLAMBEAU_STORE_SECRET on each, or MPI carries it.
Consequences: docs/security.md says what this does not defend.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
from ipaddress import IPv6Address, ip_address
from typing import Any

from flambeau.core.ipc.codec import fits, receive, send

SECRET = "FLAMBEAU_STORE_SECRET"
UNGREETED = 1 << 16  # bytes of the longest message before a connection is admitted
_VERSION = "flambeau store 2"
_NO_SECRET = (
    f"it admits those who know its secret, and this process has none: it must inherit {SECRET} from the launcher; for "
    "several hosts set it to the same text on each before the ranks start"
)
_NONE_THERE = (
    f"it has no secret, so it admits clients on its own host only: set {SECRET} to the same text on every host "
    "before the ranks start"
)
_WRONG = f"it has another secret: {SECRET} must be the same text on every host"


class RefusedError(Exception):
    """The error raised if the server does not admit a client. The text has the reason and the fix."""


def new_secret() -> str:
    """Return a random secret for one run, as text."""
    return secrets.token_hex(32)


def greet(connection: socket.socket, secret: str | None = None) -> None:
    """Identify this process to a server, and prove knowledge of the secret if the server asks for it.

    Args:
        connection: A new connection to the server.
        secret: The secret; None is that of the environment.

    Raises:
        RefusedError: If the server does not admit this client.
        ConnectionError: If the server is not a store, or is one of another version.
    """
    send(connection, [_VERSION, os.getpid()])
    answer = receive(connection, UNGREETED)
    if fits(answer, ["prove", bytes]):
        secret = secret or os.environ.get(SECRET)
        if not secret:
            raise RefusedError(_NO_SECRET)
        send(connection, ["proof", _proof(secret, answer[1])])
        answer = receive(connection, UNGREETED)
    if fits(answer, ["refused", str]):
        raise RefusedError(answer[1])
    if answer != ["ok", _VERSION]:
        raise ConnectionError("what answers is not a store of this version")


class Greeting:
    """The server's side of one connection's handshake.

    Attributes:
        process: The client's process id as it has sent it; 0 before it is admitted.
        refused: True once the server has refused the client.
    """

    __slots__ = ("_challenge", "_claimed", "_secret", "_stranger", "process", "refused")

    def __init__(self, connection: socket.socket, secret: str | None) -> None:
        self.process = 0
        self.refused = False
        self._claimed = 0
        self._secret = secret
        self._stranger = not is_same_host(connection)
        self._challenge = b""

    def take(self, message: Any) -> list[Any]:
        """Return the answer to the client's next message.

        Raises:
            ValueError: If the message is not part of a handshake.
        """
        if self._challenge:
            if not fits(message, ["proof", bytes]):
                raise ValueError("no proof of the secret")
            assert self._secret is not None
            if not hmac.compare_digest(message[1], _proof(self._secret, self._challenge)):
                return self._refuse(_WRONG)
            return self._admit()
        if not fits(message, [_VERSION, int]) or not 0 < message[1] < 1 << 31:
            raise ValueError("no greeting")
        self._claimed = message[1]
        if not self._secret:
            return self._refuse(_NONE_THERE) if self._stranger else self._admit()
        self._challenge = secrets.token_bytes(32)
        return ["prove", self._challenge]

    def _admit(self) -> list[Any]:
        self.process = self._claimed
        return ["ok", _VERSION]

    def _refuse(self, why: str) -> list[Any]:
        self.refused = True
        return ["refused", why]


def is_same_host(connection: socket.socket) -> bool:
    """Return True if both ends of a connection are on one host."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return True
    peer, own = (ip_address(end[0]) for end in (connection.getpeername(), connection.getsockname()))
    mapped = peer.ipv4_mapped if isinstance(peer, IPv6Address) else None
    return (mapped or peer).is_loopback or peer == own


def _proof(secret: str, challenge: bytes) -> bytes:
    return hmac.digest(secret.encode(), b"flambeau store " + challenge, "sha256")
