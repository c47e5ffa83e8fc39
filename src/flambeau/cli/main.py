"""The `flambeau` command: one subcommand a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flambeau import version
from flambeau.cli import doctor, explore, launch, memory, run, trace
from flambeau.runtime.devices import configuration


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and dispatch. Returns the exit status: the program's own, 2 for a wrong command line, 3 for a race."""
    parser = argparse.ArgumentParser(
        prog="flambeau",
        description="Run torch.cuda programs on real or virtual GPUs, and prove them race-free.",
    )
    parser.add_argument("--version", action="version", version=f"flambeau {version.flambeau}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run.add_parser(commands)
    explore.add_parser(commands)
    trace.add_parser(commands)
    memory.add_parser(commands)
    launch.add_parser(commands, wanted="launch" in (sys.argv if argv is None else argv))
    doctor.add_parser(commands)
    options = parser.parse_args(argv)
    for message in configuration.unknown_variables():
        print(f"flambeau: {message}", file=sys.stderr)
    status: int = options.do(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
