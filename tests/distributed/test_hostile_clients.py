"""A store's server survives any client: frames of any form, floods, silence, wrong secrets, other hosts."""

from __future__ import annotations

import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flambeau.core.ipc import handshake
from flambeau.core.ipc.codec import Either, fits, frame_message, pack, receive, send
from flambeau.core.ipc.handshake import SECRET, RefusedError, greet, is_same_host
from flambeau.distributed.dist_errors import DistNetworkError
from flambeau.distributed.stores import store_client, store_server
from flambeau.distributed.stores.coordinator import REQUESTS, Coordinator
from flambeau.distributed.stores.kv_store import OPERATIONS
from flambeau.distributed.stores.store_server import StoreServer
from flambeau.distributed.stores.tcp_store import TCPStore, _listen

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
FRAMES = 100_000 if EXHAUSTIVE else 600
SEED = int(os.environ.get("FLAMBEAU_HUNT_SEED", "20261122"))


@pytest.fixture
def master(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    monkeypatch.delenv(SECRET, raising=False)
    store = TCPStore("127.0.0.1", 0, None, True)
    assert store._server is not None
    store._server.server.meetings = Coordinator(2)
    return store


def connected(store: TCPStore) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", store.port), timeout=20)
    greet(connection)
    return connection


def is_served(store: TCPStore) -> bool:
    store.set("still", "here")
    return store.get("still") == b"here"


BAD = [
    ["check", [], 5, 0, True, ""],
    ["get", ["k"], ["k"], 10**30, True, ""],
    ["get", ["k"], ["k"], -1, True, ""],
    [[], ["k"], [], 0, True, ""],
    ["meet", [], [], 0, True, ""],
    ["meet", [1, "hello"], [], 0, True, ""],
    ["meet", [1, "hello", "rank"], [], 0, True, ""],
    ["meet", [1, "wait", "why", True], [], 0, True, ""],
    ["meet", [1, [], 0], [], 0, True, ""],
    ["set", ["k", 5], [], 0, True, ""],
    ["set", ["k"], [], 0, True, ""],
    ["add", ["k", True], [], 0, True, ""],
    ["__init__", [], [], 0, True, ""],
    ["values", [], [], 0, True, ""],
    ["ready", ["get", ["k"]], [], 0, True, ""],
    ["get_all", ["k"], [], 0, True, ""],
    None, [], "set", 7, b"", [1, 2, 3, 4, 5, 6],
]  # fmt: skip


@pytest.mark.parametrize("message", BAD, ids=str)
def test_a_malformed_request_closes_its_connection_alone(
    master: TCPStore, message: Any, caplog: pytest.LogCaptureFixture
) -> None:
    other = TCPStore("127.0.0.1", master.port)
    with closing(connected(master)) as client:
        send(client, message)
        assert client.recv(1) == b"", "the server hangs up"
    assert is_served(master) and is_served(other)
    assert "closed the connection of process" in caplog.text


def test_any_frame_leaves_the_server_alive(master: TCPStore) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {FRAMES} frames")
    client = connected(master)
    for number in range(FRAMES):
        try:
            client.sendall(_frame(rng))
            if rng.random() < 0.3:
                client.settimeout(0.001)
                with suppress(TimeoutError):
                    client.recv(1 << 16)
            client.settimeout(20)
        except OSError:
            pass
        if rng.random() < 0.7:
            client.close()
            client = connected(master)
        if number % 50 == 0:
            assert is_served(master), number
    client.close()
    assert is_served(master)


def _frame(rng: random.Random) -> bytes:
    """A frame: of a request's form with random arguments, of random values, or of bytes changed at random."""
    operation = rng.choice([*OPERATIONS, "meet", "", "__class__"])
    args = [_value(rng, 3) for _ in range(rng.randrange(4))]
    if operation == "meet":
        args = [rng.choice([rng.randrange(9), _value(rng, 1)]), rng.choice([*REQUESTS, "?"]), *args]
    elif operation in OPERATIONS and rng.random() < 0.7:
        args = [_sample(rng, schema) for schema in OPERATIONS[operation]]
    if operation == "meet" and args[1] in REQUESTS and rng.random() < 0.7:
        args[2:] = [_sample(rng, schema) for schema in REQUESTS[args[1]]]
    needs = rng.choice([[], ["a"], _value(rng, 2)])
    message: Any = [operation, args, needs, rng.choice([0, 1, 10**18, -1]), True, ""]
    if rng.random() < 0.2:
        message = _value(rng, 5)
    data = bytearray(frame_message(message))
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def _value(rng: random.Random, depth: int) -> Any:
    if depth and rng.random() < 0.3:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    choices = [None, True, False, 0, -1, 1, 10**25, "", "a", "rank", b"", b"\xff", "\0" * 9]
    return rng.choice(choices)


def _sample(rng: random.Random, schema: Any) -> Any:
    """A value that fits a schema, with numbers and names that may lead nowhere."""
    if isinstance(schema, Either):
        return _sample(rng, rng.choice(schema.schemas))
    if isinstance(schema, tuple):
        return [_sample(rng, schema[0]) for _ in range(rng.randrange(4))]
    if isinstance(schema, list):
        return [_sample(rng, each) for each in schema]
    samples: dict[Any, list[Any]] = {
        int: [0, 1, -1, 2, 10**25], str: ["", "a", "b", "sum"], bytes: [b"", b"u", b"12"], bool: [True, False]
    }  # fmt: skip
    return rng.choice(samples[schema])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=2000 if EXHAUSTIVE else 200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from([*REQUESTS]), st.integers(1, 3), st.randoms()), max_size=30))
def test_the_coordinator_keeps_its_invariants(asked: list[tuple[str, int, random.Random]]) -> None:
    """Requests that fit their schemas, in any order, of any process: each is answered, kept, or refused."""
    place = Coordinator(3, clock=lambda: 0.0, used=lambda process: 0.0)
    for number, (operation, process, rng) in enumerate(asked):
        args = [_sample(rng, schema) for schema in REQUESTS[operation]]
        with suppress(ValueError):
            place.ask(process, number, operation, args)
        place.settle({})
        if rng.random() < 0.1:
            place.remove_process(process)
            place.settle({})


@given(VALUES)
def test_values_fit_their_own_schema(value: Any) -> None:
    def schema_of(each: Any) -> Any:
        if each is None:
            return None
        return [schema_of(item) for item in each] if isinstance(each, list) else type(each)

    assert fits(value, schema_of(value))
    assert (fits([value], (schema_of(value),)) and not fits(value, [schema_of(value)])) or isinstance(
        value, list
    )
    assert not fits(True, int) and not fits(1, bool) and not fits(1, True) and fits(1, Either(str, int))


def test_a_long_message_before_the_greeting_is_refused(master: TCPStore) -> None:
    with closing(socket.create_connection(("127.0.0.1", master.port), timeout=20)) as client:
        client.sendall(struct.pack("!Q", handshake.UNGREETED + 1))
        assert client.recv(1) == b""
    assert is_served(master)


@pytest.mark.parametrize("greeted", [False, True])
def test_a_client_that_stops_amid_a_message_is_dropped(
    master: TCPStore, greeted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_client, "_GREETING_S", 0.05)
    monkeypatch.setattr(store_client, "_STALLED_S", 0.05)
    with closing(socket.create_connection(("127.0.0.1", master.port), timeout=20)) as client:
        if greeted:
            greet(client)
        client.sendall(frame_message(["set", ["k", b"v"], [], 0, True, ""])[:9])
        assert client.recv(1) == b""
    assert is_served(master)


def test_a_client_that_reads_nothing_is_not_served_for_ever(
    master: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_server, "_UNREAD", 1 << 20)
    master.set("large", "x" * (1 << 19))
    assert master._server is not None
    with closing(connected(master)) as client:
        client.setblocking(False)
        requests = memoryview(frame_message(["get", ["large"], ["large"], 0, True, ""]) * (1 << 16))
        with suppress(BlockingIOError):
            while requests:
                requests = requests[client.send(requests) :]
        assert is_served(master)
        unread = [c.unread for c in master._server.server._clients]
        assert max(unread) <= (1 << 20) + 2 * (1 << 20), "answers that nobody reads stay bounded"
    assert is_served(master)


@pytest.fixture
def another_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every connection counts as one of another host."""
    monkeypatch.setattr(handshake, "is_same_host", lambda connection: False)
    yield


def test_another_host_needs_a_secret(another_host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    with pytest.raises(DistNetworkError, match=f"refused this process: it has no secret.*set {SECRET}"):
        TCPStore("127.0.0.1", 0, None, True)


def test_who_knows_the_secret_is_admitted(another_host: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "of this run")
    master = TCPStore("127.0.0.1", 0, None, True)
    assert is_served(TCPStore("127.0.0.1", master.port))
    for secret, reason in (("of another run", "it has another secret"), ("", "this process has none")):
        monkeypatch.setenv(SECRET, secret)
        with pytest.raises(DistNetworkError, match=reason):
            TCPStore("127.0.0.1", master.port)
    assert is_served(master)


def test_the_secret_never_crosses_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client proves that it knows it to a server that records all that it is sent."""
    monkeypatch.setenv(SECRET, "a long text that is easy to find")
    taken: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                taken.append(pack(receive(connection)))
                send(connection, ["prove", b"challenge"])
                taken.append(pack(receive(connection)))
                send(connection, ["refused", "recorded"])

        thread = threading.Thread(target=serve)
        thread.start()
        with (
            socket.create_connection(listener.getsockname()) as client,
            pytest.raises(RefusedError, match="recorded"),
        ):
            greet(client)
        thread.join()
    assert taken and not any(b"easy to find" in part for part in taken)


@pytest.mark.parametrize(
    "host, address",
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "::1")],
)
def test_a_server_listens_where_its_name_says(host: str, address: str) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    store = TCPStore(host, 0, None, True)
    assert store._server is not None and store._server.server.address == address


def test_a_name_of_no_address_here_is_served_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a router has the address, or Debian leads a host's own name to 127.0.1.1."""
    real = socket.getaddrinfo

    def lookup(host: Any, *args: Any, **options: Any) -> Any:
        told = {"routed": "192.0.2.1", "debian": "127.0.1.1"}.get(host, host)
        return real(told, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    for name in ("routed", "debian"):
        with closing(_listen(name, 0)) as listener:
            assert listener.getsockname()[0] in ("::", "0.0.0.0")


def test_connections_of_this_host_are_known() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as served,
    ):
        assert is_same_host(client) and is_same_host(served)
    left, right = socket.socketpair()
    with left, right:
        assert is_same_host(left)


def test_the_server_goes_on_after_an_error_of_its_process(
    master: TCPStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert master._server is not None
    master._server.server.call(lambda: {}["missing"])
    assert is_served(master) and "KeyError: 'missing'" in caplog.text
    monkeypatch.setattr(Coordinator, "settle", lambda self, elsewhere: {}["unsettled"])
    assert is_served(master)
    monkeypatch.undo()
    assert is_served(master) and "KeyError: 'unsettled'" in caplog.text


def test_a_server_without_descriptors_gives_up_strangers_first(master: TCPStore) -> None:
    """Connections that were not admitted are closed when the process has no file descriptor left."""
    assert master._server is not None
    server: StoreServer = master._server.server
    stranger = socket.create_connection(("127.0.0.1", master.port), timeout=20)
    done = threading.Event()

    def make_room() -> None:
        server._make_room()
        done.set()

    for _ in range(100):
        server.call(lambda: None)
        if any(not c.process for c in list(server._clients)):
            break
        assert is_served(master)
    server.call(make_room)
    assert done.wait(20)
    with closing(stranger):
        assert stranger.recv(1) == b""
    assert is_served(master)
