"""Hostile profiles of virtual GPUs: TOML files."""

from __future__ import annotations

import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from harness import Fuzzer
from mutations import NUMBERS, mutate_bytes

import flambeau as torch
from flambeau.driver.virtual import profile as module

FILE = "hostile.toml"
_VALUES = (
    *map(str, NUMBERS), "0.5", "-0.5", "nan", "inf", "-inf", "1e308", "1e-308", "true", '"text"', '""', "[]", "{}",
    "[1, 2]", "1979-05-27", '"\\u0000"', "{ x = 1 }", "0x7fffffff", '"ring"', '"none"', "9" * 5000, "[" * 500,
)  # fmt: skip


@cache
def sources() -> tuple[str, ...]:
    folder = Path(module.__file__).parent / "profiles"
    return tuple([path.read_text() for path in sorted(folder.glob("*.toml"))])


def draw(rng: random.Random) -> bytes:
    lines = rng.choice(sources()).splitlines()
    places = [at for at, line in enumerate(lines) if "=" in line]
    for _ in range(rng.choice([1, 1, 2, 6])):
        at = rng.choice(places)
        match rng.randrange(8):
            case 0:
                lines[at] = ""
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[at])
            case 2:
                lines.insert(
                    rng.randrange(len(lines)),
                    rng.choice(["[costs]", "[x]", "[links.x]", "=", "base = 'h100'", "é"]),
                )
            case _:
                lines[at] = f"{lines[at].partition('=')[0]}= {rng.choice(_VALUES)}"
    data = "\n".join(lines).encode()
    return mutate_bytes(rng, data) if rng.random() < 0.1 else data


def take(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE)
        path.write_bytes(data)
        try:
            found: Any = module.load_profile(str(path))
        except ValueError as error:
            raise Refusal(str(error)) from None
        with torch.virtual(devices=2, profile=str(path), data=False):
            used(found)


def used(profile: Any) -> None:
    """Do some of all that takes time on a machine of a profile: an out-of-memory error is an answer, too."""
    try:
        x = torch.ones(64, 64, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            y = (x @ x).half()
        y.to("cuda:1")
        torch.cuda.synchronize()
        torch.cuda.mem_get_info()
        str(torch.cuda.get_device_properties(0))
    except torch.OutOfMemoryError:
        assert profile.memory < 1 << 28, profile.memory


class Refusal(Exception):
    """The profile was refused when it was loaded. An error after that is a failure."""


FUZZER = Fuzzer("profiles", draw, take, (Refusal,), FILE)
