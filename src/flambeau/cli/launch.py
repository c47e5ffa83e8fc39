"""`flambeau launch`: torchrun for programs that say `import torch`, on real and on virtual GPUs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

from flambeau.cli import finder
from flambeau.cli.environment import export_options, why_no_machine, why_not_writable
from flambeau.cli.launch_report import REPORT, read_reports, write_ranks
from flambeau.core.files import replace_file
from flambeau.runtime import settings


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], wanted: bool) -> None:
    """`wanted`: it is this command that is run. Its arguments are in a package that others need not import."""
    parser = commands.add_parser(
        "launch",
        help="start the ranks of a distributed torch program",
        description="Start the ranks of a distributed program, as torchrun does, one process each: `import torch` "
        "finds Flambeau in them. Without a GPU and without options each sees a virtual a100-40g per rank of the node.",
        epilog="The exit status is that of the first rank that failed.",
    )
    parser.add_argument("--driver", choices=("auto", "cuda", "virtual"), help="real or virtual GPUs")
    parser.add_argument("--devices", metavar="N", help="how many virtual GPUs this node has")
    parser.add_argument(
        "--profile", metavar="NAME", help="which GPU they model: a100-40g, h100, ... or a TOML file"
    )
    parser.add_argument(
        "--schedule", metavar="S", help="earliest, random:SEED, adversarial:SEED, pct:SEED:DEPTH"
    )
    parser.add_argument(
        "--races", choices=("off", "warn", "error"), help="look for races in each rank: collect, or raise"
    )
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the ranks' reports as JSON")
    parser.add_argument("--quiet", action="store_true", help="print no report")
    if wanted:
        import_module("flambeau.distributed.launch_options").add_arguments(parser)
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Run the ranks as `options` say; the exit status, 2 for options that cannot be."""
    why = why_no_machine(options)
    if not why and options.report is not None and (unwritable := why_not_writable(options.report)):
        why = f"can't write {str(options.report)!r}: {unwritable}"
    if why:
        print(f"flambeau launch: {why}", file=sys.stderr)
        return 2
    _set_environment(options)
    finder.install()  # the ranks find it by their environment
    launcher = import_module("flambeau.distributed.run")
    reported = f"{import_module('flambeau.distributed.workers').FOLDER}/{REPORT}"
    try:
        status: int = launcher.run(
            options, "flambeau launch", ("-m", "flambeau", "run", "--quiet", "--report", reported),
            partial(_show, options),
        )  # fmt: skip
    except ValueError as error:
        print(f"flambeau launch: {error}", file=sys.stderr)
        return 2
    return status


def _show(options: argparse.Namespace, status: int, folder: Path, first: int) -> None:
    reports = read_reports(folder, first)
    if options.report is not None:
        replace_file(options.report, json.dumps({"exit_status": status, "ranks": reports}, indent=1) + "\n")
    if reports and not options.quiet:
        written = [] if options.report is None else [options.report]
        write_ranks(reports, sys.stderr, written, failed=status != 0)


def _set_environment(options: argparse.Namespace) -> None:
    """What the ranks find in their environment."""
    export_options(options)
    with suppress(ValueError):  # a malformed variable: the ranks hear of it at first use
        wish = settings.from_environment()
        if wish.driver != "cuda" and "FLAMBEAU_VIRTUAL_DEVICES" not in os.environ:
            count = options.nproc_per_node
            os.environ["FLAMBEAU_VIRTUAL_DEVICES"] = count if count.isdigit() else str(settings.DEVICES)
