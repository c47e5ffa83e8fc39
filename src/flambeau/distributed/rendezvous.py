"""`rendezvous`: return a store, a rank and the number of ranks for a URL.

`env://` reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, `tcp://host:port` and `file:///path` name the store.
Handlers are generators, as PyTorch's: a program may register its own.
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import ParseResult, urlparse

from flambeau.core.brief import brief
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.stores.file_store import FileStore
from flambeau.distributed.stores.store import Store
from flambeau.distributed.stores.tcp_store import TCPStore

DEFAULT_TIMEOUT = timedelta(minutes=30)
Handler = Callable[..., Iterator[tuple[Store, int, int]]]


def register_rendezvous_handler(scheme: str, handler: Handler) -> None:
    """Register `handler(url, **kwargs)`, a generator, for URLs of a scheme."""
    if scheme in _handlers:
        raise RuntimeError(f"Rendezvous handler for {scheme}:// already registered")
    _handlers[scheme] = handler


def rendezvous(
    url: str, rank: int = -1, world_size: int = -1, **kwargs: Any
) -> Iterator[tuple[Store, int, int]]:
    """Return an iterator that yields (store, rank, number of ranks) once.

    `rank` and `world_size` may be in the URL instead or, for env://, in the environment.

    Raises:
        ValueError: If a value is missing.
        RuntimeError: If an argument has another type, or the scheme is unknown.
        AssertionError: If a value is both an argument and in the URL.
    """
    if not isinstance(url, str | bytes):
        raise RuntimeError(f"`url` must be a string. {type(url)}: {url!r}")
    for name, value in (("rank", rank), ("world_size", world_size)):
        if not isinstance(value, numbers.Integral):
            raise RuntimeError(f"`{name}` must be an integer. {value}")
    parts = urlparse(url if isinstance(url, str) else url.decode())
    rank_and_size = {"rank": int(rank), "world_size": int(world_size)}
    rank_and_size = {name: value for name, value in rank_and_size.items() if value != -1}
    if rank_and_size:
        parts = _with(parts, rank_and_size)
    handler = _handlers.get(parts.scheme)
    if handler is None:
        raise RuntimeError(f"No rendezvous handler for {parts.scheme}://")
    return handler(parts.geturl(), **kwargs)


def _with(parts: ParseResult, rank_and_size: Mapping[str, int]) -> ParseResult:
    query = _query(parts)
    if "rank" in query or "world_size" in query:
        raise AssertionError(
            f"The url: {parts.geturl()} has node-specific arguments(rank, world_size) already."
        )
    query |= {name: str(value) for name, value in rank_and_size.items()}
    return parts._replace(query="&".join(f"{name}={value}" for name, value in query.items()))


def _query(parts: ParseResult) -> dict[str, str]:
    return dict(pair.split("=") for pair in parts.query.split("&") if pair)


def _problem(scheme: str, what: str) -> ValueError:
    return ValueError(f"Error initializing torch.distributed using {scheme}:// rendezvous: {what}")


def _from_file(
    url: str, timeout: timedelta = DEFAULT_TIMEOUT, **kwargs: Any
) -> Iterator[tuple[Store, int, int]]:
    parts = urlparse(url)
    if not parts.path:
        raise _problem("file", "path missing")
    rank, size = _place("file", parts)
    store = FileStore(parts.path, size)
    store.set_timeout(timeout)
    yield store, rank, size
    raise RuntimeError("Unable to perform rerendezvous using file:// method")


def _from_tcp(
    url: str, timeout: timedelta = DEFAULT_TIMEOUT, **kwargs: Any
) -> Iterator[tuple[Store, int, int]]:
    parts = urlparse(url)
    if parts.port is None:
        raise _problem("tcp", "port number missing")
    rank, size = _place("tcp", parts)
    yield _tcp_store(parts.hostname or "", parts.port, rank, size, timeout, os.environ), rank, size
    raise RuntimeError("Unable to perform re-rendezvous using tcp:// method")


def _from_environment(
    url: str, timeout: timedelta = DEFAULT_TIMEOUT, environ: Mapping[str, str] = os.environ, **kwargs: Any
) -> Iterator[tuple[Store, int, int]]:
    """Yield the rank, world size and store that the environment variables name."""
    query = _query(urlparse(url))

    def value(name: str) -> str:
        if found := environ.get(name):
            return found
        raise _problem("env", f"environment variable {name} expected, but not set")

    def number(name: str, rank_and_size: str | None = None) -> int:
        text = rank_and_size or value(name)
        try:
            return int(text)
        except ValueError:
            raise _problem("env", f"{name} must be an int, not {brief(text)}") from None

    rank = number("RANK", query.get("rank"))
    size = number("WORLD_SIZE", query.get("world_size"))
    host, port = value("MASTER_ADDR"), number("MASTER_PORT")
    yield _tcp_store(host, port, rank, size, timeout, environ), rank, size
    raise RuntimeError("Unable to perform re-rendezvous using env:// method")


def _place(scheme: str, parts: ParseResult) -> tuple[int, int]:
    query = _query(parts)
    for name, words in (("rank", "rank"), ("world_size", "world size")):
        if name not in query:
            raise _problem(scheme, f"{words} parameter missing")
    return int(query["rank"]), int(query["world_size"])


def _tcp_store(
    host: str, port: int, rank: int, size: int, timeout: timedelta, environ: Mapping[str, str]
) -> Store:
    """Return the TCP store. The launcher serves it if the environment says so, otherwise rank 0 does."""
    if not 0 <= port < 1 << 16:
        raise ValueError(f"port must have value from 0 to 65535 but was {port}.")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return TCPStore(host, port, size, False, timeout)
    return TCPStore(host, port, size, rank == 0, timeout, multi_tenant=True)


_handlers: dict[str, Handler] = {"file": _from_file, "tcp": _from_tcp, "env": _from_environment}


explain_absent_names(globals(), "torch.distributed.rendezvous")
