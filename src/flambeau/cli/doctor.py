"""`flambeau doctor`: the devices and why they are available, their state, and a check of peer copies."""

from __future__ import annotations

import argparse
import json
import sys

from flambeau.runtime.devices.doctor import doctor, examine, is_hidden


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "doctor",
        help=summary,
        description="Driver and library versions, visible devices and why these, memory, TF32, and whether copies "
        "between devices arrive as they were sent. In a program: print(flambeau.doctor()).",
        epilog="The exit status is 1 if the environment asks for what is not there, or copies between two devices "
        "arrive changed. A machine without a GPU is not an error.",
    )
    parser.add_argument("--json", action="store_true", help="print values for programs; sizes in bytes")
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Examine the machine and print the result. Returns the exit status."""
    try:
        print(json.dumps(examine(True), indent=1) if options.json else doctor(True))
    except ValueError as error:  # an invalid environment variable
        print(f"flambeau doctor: {error}", file=sys.stderr)
        return 1
    found = examine()
    corrupt = any(pair["copies"].startswith("corrupt") for pair in found["peers"])
    absent = found["driver"] == "cuda" and not found["visible"] and not is_hidden()
    return 1 if corrupt or absent else 0
