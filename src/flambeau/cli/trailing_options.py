"""Options of a command after the program: `flambeau explore program.py --schedules 1000`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence


def take_last(options: argparse.Namespace, names: Sequence[str], fits: Callable[[str], bool]) -> str | None:
    """Remove an option at the end of the program's arguments and return its value, if `fits` accepts it.

    Callers use it only if the option does not occur before the program. A note is printed, because the option might be
    the program's.
    """
    *rest, option, value = ("", *options.arguments) if options.arguments else ("", "")
    if "=" in value and value.startswith("--"):
        rest, (option, _, value) = [*rest, option], value.partition("=")
    if option not in names or not fits(value):
        return None
    options.arguments = rest[1:]
    print(
        f"flambeau {options.command}: the last {option} is this command's own; with another before the program it is "
        "the program's",
        file=sys.stderr,
    )
    return str(value)
