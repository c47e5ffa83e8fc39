"""Hostile traces for `flambeau memory replay`: random events, and those of a program in another order."""

from __future__ import annotations

import copy
import json
import pickle
import random
from typing import Any

import snapshots
from harness import Fuzzer
from mutations import NUMBERS, mutate_value
from snapshots import FILE, Refusal, loaded

from flambeau.runtime.memory.allocator_config import policy_of
from flambeau.runtime.memory_reports.replay import events_of, play

_CONFS = (
    "", "max_split_size_mb:32", "expandable_segments:True", "roundup_power2_divisions:4", "garbage_collection_threshold:0.6",
)  # fmt: skip
_ACTIONS = (
    "alloc", "alloc", "alloc", "free_completed", "free_completed", "free_requested", "segment_alloc", "segment_free",
    "segment_map", "oom", "order", "snapshot", "x",
)  # fmt: skip


def draw(rng: random.Random) -> bytes:
    value = copy.copy(snapshots.sample()[1])
    match rng.randrange(3):
        case 0:
            value["device_traces"] = [[_event(rng) for _ in range(rng.randrange(60))] for _ in range(2)]
        case 1:
            value["device_traces"] = [rng.sample(trace, len(trace)) for trace in value["device_traces"]]
        case _:
            value["device_traces"] = mutate_value(rng, value["device_traces"])
    if rng.random() < 0.3:
        value["segments"] = mutate_value(rng, value["segments"])
    try:
        return pickle.dumps(value, 4)
    except UnicodeEncodeError:
        return json.dumps({"segments": [], "device_traces": []}).encode()


def _event(rng: random.Random) -> dict[str, Any]:
    size = rng.choice([512, 1 << 20, 20 << 20, rng.randrange(1 << 31), rng.choice(NUMBERS)])
    event = {
        "action": rng.choice(_ACTIONS), "addr": rng.choice([rng.randrange(8) << 21, rng.choice(NUMBERS)]), "size": size,
        "stream": rng.choice([0, 0, 1, 7, rng.choice(NUMBERS)]), "frames": [], "after": rng.choice([0, 1, 7]),
    }  # fmt: skip
    if rng.random() < 0.3:
        event["pool_id"] = rng.choice([(0, 0), (0, 1), (1, 0), (1 << 63, 1)])
    return event


def take(data: bytes) -> None:
    try:
        found = loaded(data)
    except ValueError as error:
        raise Refusal(str(error)) from None
    number = len(data)
    capacity = (1 << 62, 16 << 30, 1 << 20, 0)[number % 4]
    policy = policy_of(_CONFS[number % len(_CONFS)])
    for device, trace in enumerate(found["device_traces"]):
        live = [segment for segment in found["segments"] if segment.get("device", 0) == device]
        events = events_of(trace, live)
        outcome = play(events, capacity, policy)
        assert outcome.peak_allocated <= outcome.peak_reserved <= capacity, outcome


FUZZER = Fuzzer("replays", draw, take, (Refusal,), FILE)
