"""`flambeau doctor`: what devices there are and why, in what state, and whether their peer copies arrive."""

from __future__ import annotations

import argparse
import json

from flambeau.runtime.doctor import doctor, examine


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say what devices there are and why, and look for what is wrong with them",
        description="Driver and library versions, visible devices and why these, memory, TF32, and whether copies "
        "between devices arrive as they were sent. In a program: print(flambeau.doctor()).",
        epilog="The exit status is 1 if there is no device, or copies between two of them arrive changed.",
    )
    parser.add_argument("--json", action="store_true", help="print values for programs; sizes in bytes")
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Examine and print; the exit status."""
    print(json.dumps(examine(True), indent=1) if options.json else doctor(True))
    found = examine()
    corrupt = any(pair["copies"].startswith("corrupt") for pair in found["peers"])
    return 1 if corrupt or not found["visible"] else 0
