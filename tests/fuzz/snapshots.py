"""Hostile memory snapshots for the page of `flambeau memory`: pickles and JSON."""

from __future__ import annotations

import json
import pickle
import random
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from harness import Fuzzer
from mutations import mutate_bytes, mutate_pickle, mutate_value

import flambeau as torch
from flambeau.cli.output.memory_page import page
from flambeau.cli.snapshot_file import load

FILE = "hostile.pickle"


@cache
def sample() -> tuple[bytes, dict[str, Any]]:
    """The history of a small program, as a pickle and as a value."""
    with tempfile.TemporaryDirectory() as folder, torch.virtual(devices=2, profile="v100-16g"):
        path = Path(folder, FILE)
        torch.cuda.memory._record_memory_history()
        kept = [torch.empty(1 << 18, device="cuda") for _ in range(4)]
        del kept[1]
        with torch.cuda.stream(torch.cuda.Stream()):
            kept.append(torch.empty(1 << 20, device="cuda"))
        with suppress(torch.OutOfMemoryError):
            kept.append(torch.empty(1 << 34, device="cuda"))
        kept.append(torch.empty(5, device="cuda:1"))
        torch.cuda.memory._dump_snapshot(path)
        torch.cuda.memory._record_memory_history(None)
        return path.read_bytes(), load(path)


def draw(rng: random.Random) -> bytes:
    raw, value = sample()
    if rng.random() < 0.4:
        changed = raw if rng.random() < 0.2 else mutate_pickle(rng, raw)
        return mutate_bytes(rng, changed) if changed is raw or rng.random() < 0.1 else changed
    for _ in range(rng.choice([1, 1, 2, 5])):
        value = mutate_value(rng, value)
    if rng.random() < 0.4:
        with suppress(ValueError, TypeError, RecursionError, UnicodeError):
            if _is_small(value):
                return json.dumps(value).encode()
    try:
        return pickle.dumps(value, rng.choice([2, 4, 5]))
    except UnicodeEncodeError:
        return raw


def _is_small(value: Any, most: int = 100_000) -> bool:
    """Return True if a value, written out without sharing, has at most so many parts."""
    parts, seen = [value], 0
    while parts and seen <= most:
        part = parts.pop()
        seen += 1
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, (list, tuple)) else ()
    return seen <= most


def loaded(data: bytes) -> dict[str, Any]:
    """Write a snapshot to a file and load it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE)
        path.write_bytes(data)
        return load(path, as_json=len(data) % 2 == 0)


def take(data: bytes) -> None:
    try:
        found = loaded(data)
    except ValueError as error:
        raise Refusal(str(error)) from None
    text = page(found, FILE)
    assert text.endswith(("</html>\n", "</html>")), text[-80:]
    if len(data) % 2 == 0:
        json.dumps(found)


class Refusal(Exception):
    """The file was refused when it was loaded. An error after that is a failure."""


FUZZER = Fuzzer("snapshots", draw, take, (Refusal,), FILE)
