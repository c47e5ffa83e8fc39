"""The `flambeau` command: one subcommand a file."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TextIO

from flambeau import version
from flambeau.cli.output.console import PIPE_STATUS, escape_unencodable, is_lost
from flambeau.core.host.gc_pause import without_collections
from flambeau.runtime.devices import configuration

# command: (module, summary)
COMMANDS = {
    "run": ("run", "run a torch program and report on its devices"),
    "explore": ("explore", "run a torch program in many legal orders and compare what it prints"),
    "trace": ("trace", "run a torch program and write its timeline: a page, or a trace for Perfetto"),
    "memory": ("memory", "show a memory snapshot as a page, or replay its trace with other settings"),
    "fit": ("fit", "run a torch program on each GPU model: does it fit, and how long is a step"),
    "calibrate": ("calibrate", "measure a real GPU and write the profile of virtual GPUs like it"),
    "launch": ("launch", "start the ranks of a distributed torch program"),
    "doctor": ("doctor", "show the devices and why they are visible, and check them"),
    "completion": ("completion", "print the script that completes commands in a shell"),
    "types": ("typings", "write stubs of the name torch for editors and type checkers"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and dispatch. Returns the exit status: the program's own, 2 for a wrong command line, 3 for a race."""
    _open_closed_files()
    try:
        try:
            return _run_command(sys.argv[1:] if argv is None else argv)
        finally:
            if sys.stdout is not None and not sys.stdout.closed:  # the program may have closed it
                sys.stdout.flush()
    except OSError as error:
        lost = [file for file in (sys.stdout, sys.stderr) if is_lost(file)]
        if not lost:
            raise
        return _end_without(lost, error)
    finally:
        if argv is None:  # the process ends with the command: its last collections skip all modules
            gc.freeze()


def _run_command(arguments: Sequence[str]) -> int:
    command = next((word for word in arguments if not word.startswith("-")), "")
    with without_collections():
        options = build_parser(command).parse_args(arguments)
    for message in configuration.unknown_variables():
        print(f"flambeau: {message}", file=sys.stderr)
    if options.command not in ("run", "trace"):  # for these commands, stdout belongs to the program
        escape_unencodable(sys.stdout)
    status: int = options.do(options)
    return status


def _open_closed_files() -> None:
    """Open the null device as stdout and stderr where the process started without them (`>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _end_without(lost: Sequence[TextIO], error: OSError) -> int:
    """Return the exit status of a command that can write to none of the files `lost`."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for file in lost:
        os.dup2(nowhere, file.fileno())  # the interpreter flushes both at its end
    if isinstance(error, BrokenPipeError):  # the reader of a pipe has ended, such as `head`
        return PIPE_STATUS
    print(f"flambeau: can't write to {lost[0].name.strip('<>')}: {error.strerror}", file=sys.stderr)
    return 1


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands.

    Args:
        command: The command whose options are needed, because each command's take time to import; None for all.
    """
    parser = argparse.ArgumentParser(
        prog="flambeau",
        description="Run torch.cuda programs on real or virtual GPUs, and prove them race-free.",
    )
    parser.add_argument("--version", action="version", version=f"flambeau {version.flambeau}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        if command in (None, name):
            import_module(f"flambeau.cli.{module}").add_parser(commands, summary)
        else:
            commands.add_parser(name, help=summary)
    return parser


if __name__ == "__main__":
    sys.exit(main())
