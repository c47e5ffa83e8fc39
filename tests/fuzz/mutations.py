"""Mutations that readers of files share: of bytes, of a pickle's instructions, and of plain values."""

from __future__ import annotations

import pickle
import pickletools
import random
import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any

NUMBERS = (
    0, 1, -1, 2, 7, 127, 128, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 40, (1 << 62),
    (1 << 63) - 1, 1 << 63, -(1 << 63), (1 << 64) - 1, 1 << 64, 1 << 200,
)  # fmt: skip
TEXTS = (
    "",
    "a",
    "\x00",
    "../../x",
    "é" * 9,
    "x" * 5000,
    "cuda:99999999999",
    "storage",
    "\ud800",
    "<script>",
    "\x1b[2J\r\n::error::\u202e",
    "-1",
)


def hostile(rng: random.Random) -> Any:
    """A plain value that readers may not expect."""
    return rng.choice(
        [
            lambda: rng.choice(NUMBERS),
            lambda: rng.choice(TEXTS),
            lambda: rng.choice([None, True, False, 0.5, float("nan"), float("inf"), -0.0, 1e308, b"", b"x" * 300]),
            lambda: rng.choice([[], {}, (), set(), [[]], {"": {}}, (1,), [None] * 9]),
            lambda: shared(rng.choice([tuple, list]), rng.choice([3, 25, 100])),
            lambda: nested(rng.choice([tuple, list]), rng.choice([3, 50, 300])),
        ]
    )()  # fmt: skip


def damaged(rng: random.Random) -> Any:
    """A plain value that readers may not expect, but can hash and print."""
    return rng.choice(
        [rng.choice(NUMBERS), rng.choice(TEXTS), rng.choice([None, True, 0.5, 1e308, b"", [], {}, (), (1,)])]
    )


def shared(kind: Any, levels: int) -> Any:
    """A value with 2**levels parts, each level of which occurs twice in the next."""
    value: Any = kind((1,))
    for _ in range(levels):
        value = kind((value, value))
    return value


def nested(kind: Any, levels: int) -> Any:
    value: Any = kind(())
    for _ in range(levels):
        value = kind((value,))
    return value


# -- bytes ------------------------------------------------------------------------------------------------


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """Change, cut, repeat or insert bytes."""
    raw = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(6):
            case 0:
                del raw[at:]
            case 1:
                raw[at:at] = rng.randbytes(rng.choice([1, 2, 8]))
            case 2:
                del raw[at : at + rng.choice([1, 2, 8, 64])]
            case 3:
                raw[at:at] = raw[at : at + rng.randrange(64)]
            case 4:
                form = rng.choice(["<H", "<I", "<Q"])
                limit = 1 << 8 * struct.calcsize(form)
                raw[at : at + struct.calcsize(form)] = struct.pack(form, rng.choice(NUMBERS) % limit)
            case _:
                raw[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(raw)


# -- pickles ----------------------------------------------------------------------------------------------

_CODES = [opcode.code.encode("latin-1") for opcode in pickletools.opcodes if opcode.arg is None]


def instructions(data: bytes) -> list[bytes]:
    """The instructions of a pickle, without frames: those say how long others are."""
    places = [(opcode.name, place) for opcode, _, place in pickletools.genops(BytesIO(data))]
    ends = [place for _, place in places[1:]] + [len(data)]
    parts = zip(places, ends, strict=True)
    return [data[place:end] for (name, place), end in parts if name != "FRAME"]


def mutate_pickle(
    rng: random.Random,
    data: bytes,
    names: tuple[str, ...] = (),
    value: Callable[[random.Random], Any] = hostile,
) -> bytes:
    """Delete, repeat, move or replace instructions of a pickle, or insert values and names among them."""
    parts = instructions(data)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 6])):
        at = rng.randrange(max(len(parts) - 1, 1))
        match rng.randrange(8):
            case 0:
                del parts[at]
            case 1:
                parts.insert(at, rng.choice(parts))
            case 2:
                other = rng.randrange(len(parts))
                parts[at], parts[other] = parts[other], parts[at]
            case 3:
                parts[at] = value_of(value(rng))
            case 4:
                parts.insert(at, value_of(value(rng)))
            case 5:
                parts.insert(at, rng.choice(_CODES))
            case 6 if names:
                module, _, name = rng.choice(names).rpartition(".")
                parts[at : at + rng.randrange(2)] = [f"c{module}\n{name}\n".encode()]
            case _:
                parts[at] = _argument_changed(rng, parts[at])
        if not parts:
            break
    return b"".join(parts)


def value_of(value: Any) -> bytes:
    """The instructions that push a value; nothing where it has none."""
    try:
        return b"".join(instructions(pickle.dumps(value, 2))[1:-1])
    except (pickle.PicklingError, UnicodeEncodeError):
        return b"N"


def _argument_changed(rng: random.Random, part: bytes) -> bytes:
    if len(part) < 2:
        return part
    raw = bytearray(part)
    at = rng.randrange(1, len(raw))
    raw[at] = rng.choice([0, 1, 127, 128, 255, raw[at] ^ 1 << rng.randrange(8)])
    return bytes(raw)


# -- values -----------------------------------------------------------------------------------------------


def mutate_value(rng: random.Random, value: Any) -> Any:
    """Return a copy in which a part at a random place is replaced, removed or repeated, or is a new one."""
    if not isinstance(value, (dict, list, tuple)) or not value or rng.random() < 0.08:
        return hostile(rng)
    if isinstance(value, dict):
        changed = dict(value)
        key = rng.choice(list(value))
        match rng.randrange(12):
            case 0:
                del changed[key]
            case 1:
                changed[rng.choice(["", "x", "addr", "size", 5])] = changed.pop(key)
            case _:
                changed[key] = mutate_value(rng, value[key])
        return changed
    items = list(value)
    at = rng.randrange(len(items))
    match rng.randrange(12):
        case 0:
            del items[at]
        case 1:
            items.insert(at, items[rng.randrange(len(items))])
        case 2:
            rng.shuffle(items)
        case 3:
            items += items * rng.choice([1, 30])
        case _:
            items[at] = mutate_value(rng, items[at])
    return type(value)(items)
