"""`flambeau trace`: run a torch program and write a timeline of the program and its devices."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from flambeau.cli.output_files import add_outputs
from flambeau.cli.run import add_options, run
from flambeau.cli.trailing_options import take_last

_FORMS = (".html", ".svg", ".json", ".json.gz")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser], summary: str) -> None:
    parser = commands.add_parser(
        "trace",
        help=summary,
        description="Run a program as `flambeau run` does and write its timeline: host threads, streams, copy engines, "
        "who waits for whom, memory, ranges and races. On virtual GPUs times are simulated; on real ones they are "
        "measured by events around each call.",
        epilog="A .html file is one self-contained page, .json or .json.gz is for ui.perfetto.dev, .svg is a picture. "
        "{rank} in its name stands for the rank that `flambeau launch` gave the process.",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="the file to write (default: trace.html); may also follow the program",
    )
    add_outputs(parser)
    add_options(parser)
    parser.set_defaults(do=trace, trace=[], picture=None)


def trace(options: argparse.Namespace) -> int:
    """Run the program with these options. Returns the exit status, like `flambeau run`."""
    last = (
        None if options.output else take_last(options, ("-o", "--output"), lambda name: name.endswith(_FORMS))
    )
    output = options.output or last or "trace.html"
    options.output = Path(str(output).replace("{rank}", os.environ.get("RANK", "0")))
    name = options.output.name
    if not name.endswith(_FORMS):
        print(f"flambeau trace: {name!r} has none of the endings {', '.join(_FORMS)}", file=sys.stderr)
        return 2
    if name.endswith(".svg"):
        options.picture = options.output
    else:
        options.trace = [options.output]
    return run(options)
