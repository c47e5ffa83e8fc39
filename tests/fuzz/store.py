"""A store's server among hostile clients: a stateful machine whose well-behaved clients follow a model.

Whatever hostile connections send, leave out or abandon, each answer to a well-behaved client is the model's.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import struct
from collections import Counter, deque
from contextlib import suppress
from typing import Any

from harness import Failure, Findings
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from messages import _value
from mutations import mutate_bytes

from flambeau.core.ipc.codec import frame_message, receive, send
from flambeau.core.ipc.handshake import SECRET, greet
from flambeau.distributed.stores.coordinator import REQUESTS, Coordinator
from flambeau.distributed.stores.kv_store import OPERATIONS
from flambeau.distributed.stores.tcp_store import TCPStore

KEYS = ("good-a", "good-b")
COUNTERS, QUEUES = ("good-n", "good-m"), ("good-q", "good-r")
_LINGER = struct.pack("ii", 1, 0)  # closing then resets the connection
counts: Counter[str] = Counter()  # of rules that have run, for the summary

clients, seeds = st.integers(0, 2), st.integers(0, 1 << 32)
values = st.binary(max_size=20)


class StoreMachine(RuleBasedStateMachine):
    """Three well-behaved clients of one server, some that wait, and any number of hostile ones."""

    def __init__(self) -> None:
        super().__init__()
        os.environ.pop(SECRET, None)
        self.master = TCPStore("127.0.0.1", 0, None, True)
        assert self.master._server is not None
        self.master._server.server.meetings = Coordinator(2)
        self.stores = [self.master, *[TCPStore("127.0.0.1", self.master.port) for _ in range(2)]]
        self.values: dict[str, bytes] = {}
        self.queues: dict[str, deque[bytes]] = {key: deque() for key in QUEUES}
        self.waiting: list[tuple[socket.socket, str]] = []
        self.hostile: list[socket.socket] = []

    def teardown(self) -> None:
        for end in [*self.hostile, *[end for end, _ in self.waiting]]:
            end.close()
        del self.stores, self.master

    def changed(self, key: str, value: bytes) -> None:
        """Note a value. Whoever waits for its key gets it."""
        self.values[key] = value
        for end, wanted in list(self.waiting):
            if wanted == key:
                assert receive(end) == ["ok", value]
                end.close()
                self.waiting.remove((end, wanted))

    # -- clients that behave well -------------------------------------------------------------------------

    @rule(client=clients, key=st.sampled_from(KEYS), value=values)
    def sets(self, client: int, key: str, value: bytes) -> None:
        self.stores[client].set(key, value)
        self.changed(key, value)

    @rule(client=clients, key=st.sampled_from(KEYS), value=values)
    def appends(self, client: int, key: str, value: bytes) -> None:
        self.stores[client].append(key, value)
        self.changed(key, self.values.get(key, b"") + value)

    @rule(client=clients, key=st.sampled_from(COUNTERS), amount=st.integers(-5, 5))
    def adds(self, client: int, key: str, amount: int) -> None:
        total = int(self.values.get(key, b"0")) + amount
        assert self.stores[client].add(key, amount) == total
        self.changed(key, b"%d" % total)

    @rule(client=clients, key=st.sampled_from(KEYS), expected=values, desired=values)
    def compares(self, client: int, key: str, expected: bytes, desired: bytes) -> None:
        there = self.values.get(key)
        answer = self.stores[client].compare_set(key, expected, desired)
        if there == expected or (there is None and not expected):
            self.changed(key, desired)
        assert answer == self.values.get(key, expected)

    @rule(client=clients, key=st.sampled_from(KEYS + COUNTERS))
    def reads(self, client: int, key: str) -> None:
        there = key in self.values
        assert self.stores[client].check([key]) is there
        if there:
            assert self.stores[client].get(key) == self.values[key]

    @rule(client=clients, key=st.sampled_from(KEYS + COUNTERS))
    def deletes(self, client: int, key: str) -> None:
        assert self.stores[client].delete_key(key) is (self.values.pop(key, None) is not None)

    @rule(client=clients, key=st.sampled_from(QUEUES), value=values)
    def pushes(self, client: int, key: str, value: bytes) -> None:
        self.stores[client].queue_push(key, value)
        self.queues[key].append(value)

    @rule(client=clients, key=st.sampled_from(QUEUES))
    def pops(self, client: int, key: str) -> None:
        assert self.stores[client].queue_len(key) == len(self.queues[key])
        if self.queues[key]:
            assert self.stores[client].queue_pop(key) == self.queues[key].popleft()

    @rule(client=clients)
    def lists(self, client: int) -> None:
        assert {key for key in self.stores[client].list_keys() if key.startswith("good-")} == {*self.values}

    @precondition(lambda self: len(self.waiting) < 4)
    @rule(key=st.sampled_from(KEYS))
    def waits(self, key: str) -> None:
        end = self.connected()
        send(end, ["get", [f"/{key}"], [f"/{key}"], 0, True, "here"])  # as a TCPStore names its keys
        self.waiting.append((end, key))
        if key in self.values:
            self.changed(key, self.values[key])

    # -- clients that do not ------------------------------------------------------------------------------

    def connected(self, greeted: bool = True) -> socket.socket:
        end = socket.create_connection(("127.0.0.1", self.master.port), timeout=60)
        if greeted:
            greet(end)
        return end

    @precondition(lambda self: len(self.hostile) < 8)
    @rule(greeted=st.booleans())
    def connects(self, greeted: bool) -> None:
        self.hostile.append(self.connected(greeted))

    @precondition(lambda self: self.hostile)
    @rule(
        number=seeds, form=st.sampled_from(["request", "value", "bytes", "length", "part", "twice", "meet"])
    )
    def sends(self, number: int, form: str) -> None:
        rng = random.Random(number)
        self.throw(rng, hostile_bytes(rng, form))

    @precondition(lambda self: self.hostile)
    @rule(number=seeds, key=st.sampled_from(KEYS), limit=st.sampled_from([0, 1]))
    def abandons(self, number: int, key: str, limit: int) -> None:
        """Wait for a key of others, and be gone when it comes."""
        rng = random.Random(number)
        self.throw(rng, frame_message(["get", [f"/{key}"], [f"/{key}"], limit, rng.random() < 0.5, "there"]))
        self.leaves(number, rng.random() < 0.5)

    def throw(self, rng: random.Random, data: bytes) -> None:
        with suppress(OSError):  # the server has closed the connection
            rng.choice(self.hostile).sendall(data)

    @precondition(lambda self: self.hostile)
    @rule(number=seeds, resets=st.booleans())
    def leaves(self, number: int, resets: bool) -> None:
        end = self.hostile.pop(number % len(self.hostile))
        with suppress(OSError):
            if resets:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
            elif number % 3:
                end.shutdown(socket.SHUT_WR)
        end.close()

    @invariant()
    def is_served(self) -> None:
        counts["steps"] += 1
        for store in self.stores:
            assert store.check(["good-a"]) is ("good-a" in self.values)


def hostile_bytes(rng: random.Random, form: str) -> bytes:
    """Bytes to a server: of no message, of no request, or of a request of keys that nobody else uses."""
    operation = rng.choice(list(OPERATIONS))
    args = [sample(rng, schema) for schema in OPERATIONS[operation]]
    message: Any = [operation, args, rng.choice([[], ["bad-k"]]), rng.choice([0, 1, -1, 1 << 60]), True, ""]
    match form:
        case "value":
            message = _value(rng, 6)
        case "bytes":
            return mutate_bytes(rng, frame_message(message))
        case "length":
            return struct.pack("!Q", rng.choice([1 << 16, 1 << 36, 1 << 63, (1 << 64) - 1])) + rng.randbytes(
                9
            )
        case "part":
            data = frame_message(message)
            return data[: rng.randrange(len(data))]
        case "twice":
            return frame_message(message) * 2
        case "meet":
            name = rng.choice(list(REQUESTS))
            message = [
                "meet",
                [rng.randrange(9), name, *[sample(rng, s) for s in REQUESTS[name]]],
                [],
                0,
                True,
                "",
            ]
    return frame_message(message)


def sample(rng: random.Random, schema: Any) -> Any:
    """A value that fits a schema, most of the time; keys of its own, which are two letters away from all others'."""
    if rng.random() < 0.05:
        return _value(rng, 2)
    if isinstance(schema, tuple):
        return [sample(rng, schema[0]) for _ in range(rng.randrange(3))]
    if isinstance(schema, list):
        return [sample(rng, each) for each in schema]
    if not isinstance(schema, type):
        return sample(rng, rng.choice(schema.schemas))
    return {str: "bad-k", bytes: b"9" * rng.choice([1, 30]), int: rng.choice([0, 1, 1 << 62]), bool: True}[
        schema
    ]


def search(number: int, begin: int, count: int, stop: int = 1) -> Findings:
    """Run the machine `count` times from a seed; `begin` is added to the seed, since runs are not numbered."""
    found = Findings("store", number)
    counts.clear()
    options = settings(
        max_examples=count, stateful_step_count=40, deadline=None, database=None, derandomize=False,
        phases=(Phase.generate, Phase.shrink), print_blob=False,
    )  # fmt: skip
    log = logging.getLogger("torch.distributed")
    level = log.level
    log.setLevel(logging.CRITICAL)  # each hostile connection has a line
    try:
        run_state_machine_as_test(seed(number + begin)(StoreMachine), settings=options)
    except Exception as error:
        text = "\n".join([repr(error), *getattr(error, "__notes__", [])])
        found.failures["machine",] = Failure(begin, "steps", text)
        found.counts["failed"] = 1
    finally:
        log.setLevel(level)
    found.counts["accepted"] = counts["steps"]
    return found
