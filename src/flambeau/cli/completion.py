"""`flambeau completion`: print the script with which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

SHELLS = ("bash", "zsh", "fish")
_FILES = ("PROGRAM", "[replay] SNAPSHOT", "...")  # metavars of positional arguments that may be files


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "completion",
        help=summary,
        description="Print the script with which bash, zsh or fish completes commands, options and files. It is "
        "made by the package shtab: pip install shtab.",
        epilog="Write it where the shell looks: for bash ~/.local/share/bash-completion/completions/flambeau, for "
        "zsh a file _flambeau in a folder of $fpath, for fish ~/.config/fish/completions/flambeau.fish.",
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Print the script. Returns the exit status."""
    try:
        shtab = import_module("shtab")
    except ModuleNotFoundError:
        print("flambeau completion: the package shtab is not installed: pip install shtab", file=sys.stderr)
        return 2
    parser = import_module("flambeau.cli.main").build_parser()
    for action in _actions(parser):
        if action.type is Path or action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's protocol
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the actions of a parser and of its subcommands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from _actions(child)
