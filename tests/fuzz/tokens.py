"""Hostile tokens: schedules, and what processes send each other for CUDA tensors and events."""

from __future__ import annotations

import base64
import random
import warnings
import zlib
from functools import cache
from typing import Any

from harness import Fuzzer
from mutations import NUMBERS, hostile, mutate_bytes

import flambeau as torch
from flambeau.runtime import system


def program() -> float:
    """Work on two streams, in several orders."""
    x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
    for _ in range(4):
        x.add_(1)
        with torch.cuda.stream(side):
            y = torch.ones(4, device="cuda") * 2
    torch.cuda.synchronize()
    return (x.sum() + y.sum()).item()


@cache
def token() -> str:
    with torch.virtual(devices=1, schedule="random:3"):
        program()
        return system.accelerator().token()


def draw(rng: random.Random) -> tuple[str, Any]:
    match rng.randrange(4):
        case 0:
            return "schedule", _schedule(rng)
        case 1:
            return "schedule", f"replay:{_token(rng)}"
        case 2:
            return "event", mutate_bytes(rng, bytes(64)) if rng.random() < 0.3 else rng.randrange(1 << 32)
        case _:
            return "parcel", [(rng.randrange(8), rng.randrange(1 << 32)) for _ in range(rng.randrange(1, 4))]


def _schedule(rng: random.Random) -> Any:
    kind = rng.choice(["earliest", "random", "adversarial", "pct", "replay", "follow", "answers", "", "x"])
    parts = [
        rng.choice([str(rng.choice(NUMBERS)), "٣", "1_0", " 7", "y" * 300, "", "-1", "1e3"]) for _ in range(2)
    ]
    return rng.choice([":".join([kind, *parts[: rng.randrange(3)]]), hostile(rng)])


def _token(rng: random.Random) -> str:
    """A damaged token, or a whole one with other choices."""
    raw = base64.urlsafe_b64decode(token()[1:] + "==")
    if rng.random() < 0.3:
        raw = mutate_bytes(rng, raw)
    else:
        data = bytearray(zlib.decompress(raw[4:]))
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data) or 1) :] = rng.choice(
                [b"", b"\xff" * 99, rng.randbytes(8), b"\x80" * 9 + b"\x01"]
            )
        if rng.random() < 0.1:
            data += rng.choice([b"\xff", b"\x00"]) * (1 << 24)
        packed = zlib.compress(bytes(data), 1)
        raw = zlib.crc32(packed).to_bytes(4, "big") + packed
    return rng.choice(["1", "1", "1", "1", "", "2"]) + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def take(drawn: tuple[str, Any]) -> None:
    kind, data = drawn
    if kind == "schedule":
        with torch.virtual(devices=1, schedule=data):
            try:
                assert program() == 24.0
            except torch.DriverError as error:
                assert "replay: " in str(error), error  # the token is that of another program
        return
    with warnings.catch_warnings(), torch.virtual(devices=1):
        warnings.filterwarnings(
            "ignore", "Producer process has been terminated"
        )  # of a parcel that was refused
        if kind == "event":
            handle = torch.cuda.Event(interprocess=True).ipc_handle()
            data = mutate_bytes(random.Random(data), handle) if isinstance(data, int) else data
            event = torch.cuda.Event.from_ipc_handle(torch.device("cuda"), data)
            event.wait()
            torch.cuda.synchronize()
            return
        source = torch.arange(64.0, device="cuda")
        parcel = list(source.untyped_storage()._share_cuda_())
        for at, seed in data:
            rng = random.Random(seed)
            part = parcel[at]
            parcel[at] = (
                mutate_bytes(rng, part) if isinstance(part, bytes) and rng.random() < 0.6 else hostile(rng)
            )
        storage = torch.UntypedStorage._new_shared_cuda(*parcel)
        storage.cpu()


FUZZER = Fuzzer("tokens", draw, take, (ValueError, RuntimeError, TypeError))
