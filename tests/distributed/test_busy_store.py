"""A client cannot make a store's server work more than its messages explain, nor delay others by many turns.

The test runs the server's loop itself and counts turns and function calls, which do not depend on the machine.
"""

from __future__ import annotations

import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from flambeau.core.ipc import handshake
from flambeau.core.ipc.codec import Inbox, frame_message
from flambeau.core.ipc.handshake import SECRET
from flambeau.distributed.dist_errors import DistNetworkError
from flambeau.distributed.stores import coordinator, kv_store, store_client, store_server, tcp_store
from flambeau.distributed.stores.coordinator import Coordinator
from flambeau.distributed.stores.store_server import StoreServer
from flambeau.distributed.stores.tcp_store import TCPStore

TURNS = 4  # within which an honest request must be answered
MIB = 1 << 20


class Loop(StoreServer):
    """A server whose turns the test runs."""

    worst = 0  # function calls in one turn

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener)
        self.ends: list[socket.socket] = []  # of the test's clients

    def _serve(self) -> None:
        pass

    def turn(self) -> None:
        if self._busy or self._selector.select(0):
            self.worst = max(self.worst, calls_of(self._turn))

    @property
    def table(self) -> Any:
        return self._table


class Client:
    """A client that never blocks."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.connection = socket.create_connection(("127.0.0.1", loop.port), timeout=20)
        self.connection.setblocking(False)
        loop.ends.append(self.connection)
        self.unsent = memoryview(b"")
        self.inbox = Inbox(1 << 40)
        self.ask([handshake._VERSION, 1])
        assert self.answer() == ["ok", handshake._VERSION]

    def ask(self, *requests: Any) -> None:
        self.unsent = memoryview(bytes(self.unsent) + b"".join(map(frame_message, requests)))
        self.push()

    def push(self) -> None:
        """Send what the connection takes now."""
        with suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self.connection.send(self.unsent) :]

    def read(self) -> list[Any]:
        try:
            return self.inbox.feed(self.connection.recv(MIB))
        except BlockingIOError:
            return []

    def answer(self, turns: int = 100_000) -> Any:
        """Return the answer, after at most so many turns of the server."""
        for _ in range(turns):
            self.push()
            self.loop.turn()
            if found := self.read():
                return found[0]
        raise AssertionError(f"no answer after {turns} turns")


def request(operation: str, *args: Any, needs: Any = (), limit: int = 0) -> list[Any]:
    return [operation, list(args), list(needs), limit, True, "here"]


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.delenv(SECRET, raising=False)
    server = Loop(socket.create_server(("127.0.0.1", 0)))
    yield server
    for end in (
        server._listener,
        server._bell,
        server._ear,
        *[c.connection for c in server._clients],
        *server.ends,
    ):
        end.close()
    server._selector.close()


def keys_of(number: int) -> list[str]:
    return [f"k{index}" for index in range(number)]


def fill(loop: Loop, number: int) -> None:
    loop.table.set_all(keys_of(number), [b""] * number)


def wait_for_many(loop: Loop, hostile: Client, n: int) -> None:
    """Set all keys but the last two, so that a check of the wait would look at all of them."""
    fill(loop, n - 2)
    hostile.ask(request("check", keys_of(n), needs=keys_of(n)))


def wait_and_flip(loop: Loop, hostile: Client, n: int) -> None:
    wait_for_many(loop, hostile, n)
    other = Client(loop)
    other.ask(
        *[request(*each) for _ in range(200) for each in (("set", f"k{n - 1}", b""), ("delete", f"k{n - 1}"))]
    )


def list_many(loop: Loop, hostile: Client, n: int) -> None:
    fill(loop, n)
    hostile.ask(*[request("list_keys")] * 5)


def get_one_value_often(loop: Loop, hostile: Client, n: int) -> None:
    loop.table.set("large", bytes(MIB))
    hostile.ask(request("get_all", ["large"] * n, needs=["large"]))


def get_a_grown_value_often(loop: Loop, hostile: Client, n: int) -> None:
    loop.table.append("large", bytes(MIB))
    get_all = request("get_all", ["large"] * n)
    hostile.ask(get_all, request("append", "large", b"1"), get_all)


def ask_often(loop: Loop, hostile: Client, n: int) -> None:
    hostile.ask(*[request("num_keys")] * n)


def send_many_items(loop: Loop, hostile: Client, n: int) -> None:
    hostile.ask(*[[[]] * n] * 3)


def append_often(loop: Loop, hostile: Client, n: int) -> None:
    loop.table.append("grows", bytes(64 * n))
    hostile.ask(*[request("append", "grows", b"1")] * 1000)


def add_to_a_long_value(loop: Loop, hostile: Client, n: int) -> None:
    loop.table.set("digits", b"1" * 100 * n)
    hostile.ask(*[request("add", "digits", 1)] * 100)


def wait_in_many_connections(loop: Loop, hostile: Client, n: int) -> None:
    for index in range(n // 500):
        Client(loop).ask(request("get", f"never{index}", needs=[f"never{index}"]))


def wait_in_a_chain(loop: Loop, hostile: Client, n: int) -> None:
    """Let each wait set the key of the next one when it ends."""
    for index in range(20):
        Client(loop).ask(request("set", f"c{index + 1}", b"", needs=[f"c{index}"]))
    hostile.ask(request("set", "c0", b""))


FLOODS: list[Callable[[Loop, Client, int], None]] = [
    wait_for_many, wait_and_flip, list_many, get_one_value_often, get_a_grown_value_often, ask_often,
    send_many_items, append_often, add_to_a_long_value, wait_in_many_connections, wait_in_a_chain,
]  # fmt: skip


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_honest_requests_take_few_turns_beside_hostile_ones(
    loop: Loop, flood: Callable[[Loop, Client, int], None], reads: bool
) -> None:
    hostile, honest = Client(loop), Client(loop)
    loop.watch = lambda: None
    flood(loop, hostile, 4000)
    for number in range(60):
        hostile.push()
        loop.turn()
        if reads:
            hostile.read()
        honest.ask(request("set", f"honest{number}", b"v"))
        assert honest.answer(TURNS) == ["ok", None]


@pytest.mark.parametrize("flood", [flood for flood in FLOODS if flood not in (wait_for_many, wait_and_flip)])
def test_a_turn_is_no_longer_for_larger_floods(
    loop: Loop, flood: Callable[[Loop, Client, int], None]
) -> None:
    found = []
    for number in (1000, 4000):
        hostile = Client(loop)
        loop.worst = 0
        flood(loop, hostile, number)
        for _ in range(60):
            hostile.push()
            loop.turn()
            hostile.read()
        found.append(loop.worst)
        hostile.connection.close()
    assert found[1] <= 1.5 * found[0] + 3 * store_server._STEP, found


def test_a_change_costs_the_waits_for_its_key_only(loop: Loop) -> None:
    hostile, honest = Client(loop), Client(loop)
    wait_for_many(loop, hostile, 20_000)
    while len(loop._waits.clients) < 1:
        hostile.push()
        loop.turn()
    loop.worst = 0
    for number in range(20):
        honest.ask(request("set", f"honest{number}", b"v"))
        honest.answer(TURNS)
    assert loop.worst < 1000
    honest.ask(request("set_all", ["k19998", "k19999"], [b"", b""]))
    honest.answer(TURNS)
    assert hostile.answer(TURNS) == ["ok", True]


def test_a_wait_ends_when_all_keys_are_there_at_one_time(loop: Loop) -> None:
    waiter, other = Client(loop), Client(loop)
    waiter.ask(request("get_all", ["a", "b"], needs=["a", "b"]))
    for step in (("set", "a", b"1"), ("delete", "a"), ("set", "b", b"2"), ("push", "a", b"no value")):
        other.ask(request(*step))
        assert other.answer(TURNS)[0] == "ok"
        assert not waiter.read()
    other.ask(request("set", "a", b"3"))
    assert waiter.answer(TURNS) == ["ok", [b"3", b"2"]]
    assert not loop._waits.clients and not loop._waits._by_key


def test_values_in_a_queue_go_to_waits_in_order(loop: Loop) -> None:
    waiters = [Client(loop) for _ in range(3)]
    for waiter in waiters:
        waiter.ask(request("pop", "q", needs=["q"]))
        loop.turn()
    other = Client(loop)
    for number in range(3):
        other.ask(request("push", "q", b"%d" % number))
        assert other.answer(TURNS) == ["ok", None]
    assert [waiter.answer(TURNS) for waiter in waiters] == [["ok", b"%d" % number] for number in range(3)]


def test_a_client_that_reads_slowly_is_dropped_alone(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Read some bytes now and then: fewer than a slow network carries."""
    loop.table.set("large", bytes(64 * MIB))
    hostile, honest = Client(loop), Client(loop)
    hostile.ask(request("get", "large"))
    begun, seconds = time.monotonic(), count()
    clock = SimpleNamespace(monotonic=lambda: begun + next(seconds))
    for module in (store_client, store_server):
        monkeypatch.setattr(module, "time", clock)
    for number in range(1000):
        with suppress(BlockingIOError):
            hostile.connection.recv(100)
        honest.ask(request("set", f"n{number}", b""))
        assert honest.answer(TURNS) == ["ok", None]
        if hostile_is_gone(loop):
            break
    assert hostile_is_gone(loop) and "it sends or reads too slowly" in caplog.text


def hostile_is_gone(loop: Loop) -> bool:
    return len(loop._clients) == 1


def test_answers_hold_values_without_copies(loop: Loop) -> None:
    loop.table.set("large", value := bytes(MIB))
    hostile = Client(loop)
    hostile.ask(request("get_all", ["large"] * 1000))
    for _ in range(20):
        loop.turn()
    (client,) = loop._clients
    assert client.unread > 900 * MIB
    assert sum(part.obj is not value for part in client._outbox) <= 1002
    assert sum(part.nbytes for part in client._outbox if part.obj is not value) < 2 * MIB


def test_too_many_keys_or_items_are_refused(
    loop: Loop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_client, "MOST_ITEMS", 5000)
    hostile = Client(loop)
    hostile.ask([[None] * 5001])
    for _ in range(20):
        hostile.push()
        loop.turn()
    assert not loop._clients and "a message of too many items" in caplog.text
    monkeypatch.setattr(tcp_store, "MOST_KEYS", 1000)
    store = TCPStore("127.0.0.1", 0, None, True)
    with pytest.raises(
        DistNetworkError, match=r"Too many keys in one request: 1,001\. A TCPStore takes 1,000"
    ):
        store.check(["k"] * 1001)
    store.set("still", "here")
    assert store.check(["still"] * 1000)


def test_a_message_beyond_the_hosts_memory_is_refused(
    loop: Loop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_client, "available", lambda: 1 << 30)
    for number in (1 << 24, 1 << 30):
        hostile = Client(loop)
        hostile.connection.send(number.to_bytes(8, "big"))
        loop.turn()
    assert (
        "a message of 1,073,741,824 bytes, and this host has 1,073,741,824 bytes of memory left"
        in caplog.text
    )
    assert len(loop._clients) == 1


def test_many_strangers_and_many_lines_are_bounded(
    loop: Loop, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_server, "_STRANGERS", 10)
    ends = [socket.create_connection(("127.0.0.1", loop.port)) for _ in range(100)]
    while loop._selector.select(0):
        loop.turn()
    assert len(loop._clients) == 10 and len(loop._deadlines) <= 4 * 10 + 65
    assert len(caplog.records) == store_server._LINES
    monkeypatch.setattr(store_server, "_LINES_S", 0.0)
    with closing(socket.create_connection(("127.0.0.1", loop.port))):
        loop.turn()
    assert "60 more such lines were left out" in caplog.text
    for end in ends:
        end.close()


def test_a_server_without_descriptors_does_not_sleep(loop: Loop) -> None:
    """Admitted clients have them all: new connections wait, and requests do not."""
    honest = Client(loop)
    loop._make_room()
    with closing(socket.create_connection(("127.0.0.1", loop.port))):
        honest.ask(request("num_keys"))
        assert honest.answer(1) == ["ok", 0]
        assert len(loop._clients) == 1
        loop._resume = 0.0
        loop._turn()
        loop._turn()
        assert len(loop._clients) == 2


def test_the_newest_value_of_an_ending_is_found(loop: Loop) -> None:
    table = loop.table
    for key in ("/p/waits/0", "waits/0", "/q/r/waits/0", "/q/waits/00", "/waits/0x"):
        table.set(key, key.encode())
    assert table.newest("waits/0") == b"/q/r/waits/0"
    assert table.newest("p/waits/0") == b"/p/waits/0"
    assert table.newest("waits/1") == table.newest("x/waits/0") == b""
    assert table.delete("/q/r/waits/0") and table.newest("waits/0") == b"/p/waits/0"
    table.keep("waits")
    assert table.list_keys() == ["waits/0"] and table.newest("waits/0") == b""


def test_a_coordinator_is_as_fast_beside_large_requests() -> None:
    """Members, allocations and instances of one process cost others nothing."""
    place = Coordinator(2, clock=lambda: 0.0, used=lambda process: 0.0)
    size = coordinator._MEMBERS
    for process in (1, 2):
        place.ask(process, 0, "hello", [process - 1])
    with pytest.raises(ValueError, match="a communicator of 4,097 members; at most 4,096"):
        place.ask(1, 1, "join", [b"u", list(range(size + 1)), [], "here"])
    members = [[rank, rank] for rank in range(size)]
    joins = [(1, members[:-1]), (2, members[-1:])]
    assert (
        calls_of(lambda: [place.ask(p, 1, "join", [b"u", list(range(size)), m, "here"]) for p, m in joins])
        < 20 * size
    )
    place.settle({})
    for number in range(200):
        place.ask(1, 2, "reserve", [0, number, 1, 1 << 40])
        place.ask(
            1, 2, "offer", [b"u", [-1, 0, number], 0, ["all_reduce", 1, "float32", "sum", -1, "", b"", 0]]
        )
    place.ask(1, 3, "wait", ["why", False])
    place.settle({})
    assert calls_of(lambda: place.ask(2, 2, "reserve", [0, 0, 1, 1 << 40])) < 50
    assert calls_of(lambda: place.settle({})) < 100
    place.ask(1, 4, "release", [0, 7])
    assert place.ask(2, 3, "held", [0]) == [3, "ok", [[1, 199]]]
    place.ask(1, 5, "wait", ["why", False])
    assert place.settle({}) == []
    place.remove_process(2)
    ((process, answer),) = place.settle({})
    assert process == 1 and answer[1] == "error" and "has ended and will never reach call 0" in answer[2]
    for process in range(3, 3 + coordinator._MORE):
        place.ask(process, 0, "hello", [0])
    with pytest.raises(ValueError, match="more than 258 processes"):
        place.ask(process + 1, 0, "hello", [0])


def calls_of(function: Callable[[], object]) -> int:
    """Count the function calls of a call."""
    calls = 0

    def on_event(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def test_a_grown_value_is_not_copied_for_each_change(loop: Loop) -> None:
    large = bytes(MIB)
    loop.table.set("large", large)
    for _ in range(100):
        loop.table.append("large", b"x")
        assert loop.table.get("large").parts[0] is large
    assert loop.table.do("get", ["large"]) == large + b"x" * 100


def test_grown_values_follow_a_model(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_store, "_SHORT", 8)
    monkeypatch.setattr(kv_store, "_LONG", 64)
    rng, model = random.Random(5), b""
    loop.table.set("k", b"")
    for _ in range(2000):
        value = rng.randbytes(rng.choice([0, 1, 7, 8, 9, 63, 64, 65, 200]))
        if rng.random() < 0.05:
            expected = rng.choice([model, value])
            model = value if model == expected else model
            assert loop.table.do("compare_set", ["k", expected, value]) == model
        loop.table.append("k", value)
        model += value
        assert loop.table.do("get_all", [["k", "k"]]) == [model, model]
        assert len(loop.table.get("k").parts) <= len(model) / 32 + 10
