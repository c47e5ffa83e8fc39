"""`flambeau launch`: torchrun for programs that import torch, on real and on virtual GPUs."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from flambeau.cli import import_hook
from flambeau.cli.environment import add_machine_options, export_options, why_no_machine
from flambeau.cli.output.launch_report import REPORT, launch_document, write_ranks
from flambeau.cli.output_files import add_fixes, add_outputs, why_no_outputs, write_fixes, write_outputs
from flambeau.cli.run import RACE_STATUS, add_full_traceback
from flambeau.cli.tracebacks import FULL
from flambeau.report.child_reports import ChildReports
from flambeau.report.document import has_failed
from flambeau.runtime.devices import configuration


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "launch",
        help=summary,
        description="Start the ranks of a distributed program, as torchrun does, one process each. `import torch` "
        "imports Flambeau in them. Without a GPU and without options the node has one virtual GPU (a100-40g) per rank.",
        epilog="The exit status is that of the first rank that failed, or 3 whenever --races error found a race.",
    )
    add_machine_options(parser, for_ranks=True)
    add_outputs(parser)
    add_fixes(parser)
    parser.add_argument("--quiet", action="store_true", help="print no report")
    add_full_traceback(parser)
    import_module("flambeau.distributed.launching.launch_options").add_arguments(parser)
    parser.set_defaults(do=run)


def run(options: argparse.Namespace) -> int:
    """Run the ranks with these options. Returns the exit status, 2 for invalid options."""
    why = why_no_machine(options) or why_no_outputs(options)
    if why:
        print(f"flambeau launch: {why}", file=sys.stderr)
        return 2
    _set_environment(options)
    import_hook.install()  # the ranks install it themselves, through their environment
    launcher = import_module("flambeau.distributed.run")
    reported = f"{import_module('flambeau.distributed.launching.workers').FOLDER}/{REPORT}"
    outcome: list[int] = []
    children = ChildReports()
    try:
        children.open()
        status: int = launcher.run(
            options, "flambeau launch", ("-m", "flambeau", "run", "--quiet", "--report", reported),
            lambda *ended: outcome.append(_report(options, children, *ended)),
        )  # fmt: skip
    except ValueError as error:
        print(f"flambeau launch: {error}", file=sys.stderr)
        return 2
    finally:
        children.close()
    return outcome[0] if outcome else status


def _report(
    options: argparse.Namespace, children: ChildReports, status: int, folder: Path, first: int
) -> int:
    """Write the requested reports of ranks that have ended with `status`. Returns the exit status.

    It is that of a race wherever races are errors and one was found: which rank ends first, and whether its
    process ends by the race or for lack of its peers, is up to the system.
    """
    document = launch_document(folder, first, children.read(), status)
    if has_failed(document):
        status = document["exit_status"] = RACE_STATUS
    written, failed = write_outputs(options, document)
    status = status or failed
    if not options.quiet and document["ranks"]:
        write_ranks(document, sys.stderr, written, failed=status != 0)
    if options.apply_fixes:
        write_fixes(options, document, options.training_script)
    return status


def _set_environment(options: argparse.Namespace) -> None:
    """Set the environment variables of the ranks."""
    export_options(options)
    if options.full_traceback:
        os.environ[FULL] = "1"
    with suppress(ValueError):  # a malformed variable: the ranks report it on first use
        requested = configuration.from_environment()
        if requested.driver != "cuda" and "FLAMBEAU_VIRTUAL_DEVICES" not in os.environ:
            count = options.nproc_per_node
            os.environ["FLAMBEAU_VIRTUAL_DEVICES"] = count if count.isdigit() else str(configuration.DEVICES)
