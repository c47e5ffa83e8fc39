"""The `flambeau` command: one subcommand a file."""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Sequence
from typing import TextIO

from flambeau import version
from flambeau.cli import completion, doctor, explore, launch, memory, run, trace, typings
from flambeau.cli.output.console import escape_unencodable
from flambeau.runtime.devices import configuration

PIPE_STATUS = 141  # as shells show a process that SIGPIPE ended


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and dispatch. Returns the exit status: the program's own, 2 for a wrong command line, 3 for a race."""
    options = build_parser("launch" in (sys.argv if argv is None else argv)).parse_args(argv)
    for message in configuration.unknown_variables():
        print(f"flambeau: {message}", file=sys.stderr)
    if options.command not in ("run", "trace"):  # for these commands, stdout belongs to the program
        escape_unencodable(sys.stdout)
    try:
        status: int = options.do(options)
        if sys.stdout is not None and not sys.stdout.closed:  # the program may have closed it
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe has ended, such as `head`
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for file in (sys.stdout, sys.stderr):
            if file is not None and not file.closed and not _has_reader(file):
                os.dup2(nowhere, file.fileno())  # the interpreter flushes both at its end
        return PIPE_STATUS
    return status


def _has_reader(file: TextIO) -> bool:
    """Return False if a stream is a pipe whose other end is closed."""
    poll = select.poll()
    poll.register(file, 0)  # only errors and hang-ups
    return not poll.poll(0)


def build_parser(launch_wanted: bool = True) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        launch_wanted: Whether `launch` needs its options, whose defaults take time to import.
    """
    found = argparse.ArgumentParser(
        prog="flambeau",
        description="Run torch.cuda programs on real or virtual GPUs, and prove them race-free.",
    )
    found.add_argument("--version", action="version", version=f"flambeau {version.flambeau}")
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    run.add_parser(commands)
    explore.add_parser(commands)
    trace.add_parser(commands)
    memory.add_parser(commands)
    launch.add_parser(commands, wanted=launch_wanted)
    doctor.add_parser(commands)
    completion.add_parser(commands)
    typings.add_parser(commands)
    return found


if __name__ == "__main__":
    sys.exit(main())
