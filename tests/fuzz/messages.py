"""Hostile messages of the store's protocol: bytes for the reader of messages, in parts of any size."""

from __future__ import annotations

import random
import struct
from typing import Any

from harness import Fuzzer
from mutations import NUMBERS, mutate_bytes

from flambeau.core.ipc.codec import Inbox, frame_message, pack
from flambeau.distributed.stores.store_client import request_of

_LIMIT = 1 << 20


def draw(rng: random.Random) -> bytes:
    message: Any = [
        "get",
        [_value(rng, 4)],
        ["k"],
        rng.choice([0, 5, -1, 1 << 60]),
        rng.random() < 0.5,
        "here",
    ]
    if rng.random() < 0.5:
        message = _value(rng, 20)
    data = frame_message(message)
    if rng.random() < 0.5:
        body = mutate_bytes(rng, pack(message))
        data = (
            struct.pack(
                "!Q", rng.choice([len(body), len(body), len(body) + 1, rng.choice(NUMBERS) % (1 << 64)])
            )
            + body
        )
    return data * rng.choice([1, 1, 2]) if rng.random() < 0.8 else mutate_bytes(rng, data)


def _value(rng: random.Random, depth: int) -> Any:
    if depth and rng.random() < 0.6:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return rng.choice([None, True, rng.choice(NUMBERS), "", "key", "é" * 50, b"", b"\xff" * 200])


def take(data: bytes) -> None:
    inbox, rng = Inbox(_LIMIT), random.Random(data)
    while data:
        size = rng.choice([1, 3, 100, len(data)])
        for message in inbox.feed(data[:size]):
            assert len(pack(message)) <= _LIMIT
            request_of(message)
        data = data[size:]


FUZZER = Fuzzer("messages", draw, take, (ValueError,))
