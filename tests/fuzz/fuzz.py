"""`python tests/fuzz/fuzz.py checkpoints --seed 5 --count 10000`: hostile inputs for the readers of this project."""

from __future__ import annotations

import argparse
import importlib
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "src")]

from harness import Findings, Fuzzer, fuzz  # noqa: E402 (the path comes first)

CALLS = ("scalars", "dimensions")
READERS = (
    "checkpoints",
    "generated",
    "unpickling",
    "snapshots",
    "replays",
    "tokens",
    "profiles",
    "messages",
    *CALLS,
)
SEARCHES = ("store", "map_locations", "kills", "ranks")  # what has no single inputs
NAMES = (*READERS, *SEARCHES)


def fuzzer_named(name: str) -> Fuzzer:
    """Return the fuzzer of a module of this folder."""
    found: Fuzzer = importlib.import_module(name).FUZZER
    return found


def search_named(name: str) -> Callable[[int, int, int, int], Findings]:
    """Return the search of a module of this folder: its seed, first number, count and most kinds of failures."""
    found: Callable[[int, int, int, int], Findings] = importlib.import_module(name).search
    return found


def main() -> int:
    """Fuzz as the command line says. The status is 1 where something fails."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "fuzzers", nargs="*", default=NAMES[:-1], metavar="|".join(NAMES), help="default: all but ranks"
    )
    parser.add_argument("--seed", type=int, default=None, help="default: a new one")
    parser.add_argument("--begin", type=int, default=0, help="the number of the first input (0)")
    parser.add_argument("--count", type=int, default=1000, help="how many inputs for each (1000)")
    parser.add_argument("--stop", type=int, default=10, help="end after so many kinds of failures (10)")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    failed = False
    for name in options.fuzzers:
        numbers = seed, options.begin, options.count, options.stop
        found = search_named(name)(*numbers) if name in SEARCHES else fuzz(fuzzer_named(name), *numbers)
        print(found.report(), flush=True)
        failed |= bool(found.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
