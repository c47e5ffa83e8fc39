"""Identity of the processes of other ranks, and checks whether they still run, for processes of this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any


def here() -> str:
    """Return the identity of this process: process id, host and process-id namespace."""
    table = ""
    with suppress(OSError):
        table = os.readlink("/proc/self/ns/pid")  # containers of one host have separate process ids
    return f"{os.getpid()} {socket.gethostname()} {table}"


def announce(store: Any, rank: int) -> None:
    """Publish this process in a group's store, for ranks that wait for this one."""
    store.set(_key(rank), here())


def describe_ended(store: Any, rank: int) -> str:
    """Return text that a rank's process has ended; "" if it runs or this machine cannot determine that."""
    process = near(store.get(_key(rank)).decode()) if store.check([_key(rank)]) else 0
    return f": its process, {process}, has ended" if process and has_ended(process) else ""


def keys_of(ranks: Iterable[int]) -> list[str]:
    """Return the keys of a group's store under which ranks publish their processes."""
    return [_key(rank) for rank in ranks]


def _key(rank: int) -> str:
    return f"process of rank {rank}"


def near(address: str) -> int:
    """Return the process id that `here` described, if this machine can see the process; otherwise 0."""
    process, _, place = address.partition(" ")
    is_local = place == here().partition(" ")[2] and process.isdecimal() and len(process) < 20
    return int(process) if is_local else 0


def has_ended(process: int) -> bool:
    """Return True if a process of this machine has ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    with suppress(OSError):  # a zombie process counts as ended
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    return False
