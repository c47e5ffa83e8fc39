"""The arguments of torchrun, which `flambeau launch` and `python -m flambeau.distributed.run` take.

Each has a default from the environment, PET_ and its name in capitals, as in PyTorch.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

_STREAMS = "0 none, 1 stdout, 2 stderr, 3 both; or by local rank: 0:3,1:1"
_VALUES: tuple[tuple[str, Any, str], ...] = (
    ("nnodes", "1:1", "number of nodes; MIN:MAX with two different numbers is refused"),
    ("nproc-per-node", "1", "number of ranks on this node, or gpu, cpu or auto"),
    ("rdzv-backend", "static", "rendezvous of nodes: static (by --master-addr) or c10d (by --rdzv-endpoint)"),
    ("rdzv-endpoint", "", "HOST:PORT of the rendezvous"),
    ("rdzv-id", "none", "the run's name"),
    ("rdzv-conf", "", "KEY=VALUE,...: join_timeout, timeout (seconds)"),
    ("max-restarts", 0, "number of restarts of all ranks after one has failed"),
    ("monitor-interval", 0.1, "seconds between checks of the other nodes"),
    ("event-log-handler", "null", "null: there are no events"),
    ("role", "default", "the ranks' role"),
    ("log-dir", None, "the folder of logs"),
    ("redirects", "0", f"write streams to files, not to the console: {_STREAMS}"),
    ("tee", "0", f"write streams to files and to the console: {_STREAMS}"),
    ("local-ranks-filter", "", "show only these local ranks on the console; the others' streams go to files"),
    ("node-rank", 0, "this node's number"),
    ("master-addr", "127.0.0.1", "node 0's address"),
    ("master-port", None, "a free port of node 0"),
    ("local-addr", None, "this node's address"),
    ("signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "signals that end all ranks"),
    ("shutdown-timeout", 30, "seconds from SIGTERM to SIGKILL"),
)
_FLAGS = (
    ("standalone", "one node, which uses a free port"),
    ("no-python", "the program is not a Python script: execute it"),
    ("run-path", "run the script by runpy.run_path"),
    ("virtual-local-rank", "LOCAL_RANK is 0 for all, and CUDA_VISIBLE_DEVICES shows each its own device"),
)
_REFUSED = {
    "--duplicate-stdout-filters": "log lines are not copied by filters here: use --tee and read the files",
    "--duplicate-stderr-filters": "log lines are not copied by filters here: use --tee and read the files",
    "--logs-specs": "there are no entry points for log specifications here: use --log-dir, --redirects and --tee",
    "--numa-binding": "ranks are not bound to cores here: start them with numactl and --no-python",
}


def get_args_parser(prog: str = "torchrun") -> argparse.ArgumentParser:
    """Return the parser of all arguments."""
    parser = argparse.ArgumentParser(prog=prog, description="Start the ranks of a distributed program.")
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, default, text in _VALUES:
        kind = type(default) if isinstance(default, int | float) else str
        parser.add_argument(
            *_spelt(name), type=kind, default=_from_environment(name, default), help=text, metavar="X"
        )
    for name, text in _FLAGS:
        parser.add_argument(
            *_spelt(name), action="store_true", default=_from_environment(name, "0") == "1", help=text
        )
    parser.add_argument(
        *_spelt("start-method"),
        choices=("spawn", "fork", "forkserver"),
        default=_from_environment("start-method", "spawn"),
        help="no effect: each rank starts with a new interpreter",
    )
    parser.add_argument(
        "-m", "--module", action="store_true", default=_from_environment("module", "0") == "1",
        help="PROGRAM is a module's name",
    )  # fmt: skip
    for name, why in _REFUSED.items():
        spelt = (name, "--" + name[2:].replace("-", "_"))
        parser.add_argument(*spelt, action=_Refused, const=why, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("training_script", metavar="PROGRAM", help="a script, or with -m a module")
    parser.add_argument(
        "training_script_args", metavar="...", nargs=argparse.REMAINDER, help="the program's own arguments"
    )


class _Refused(argparse.Action):
    """An argument of torchrun that would have no effect. `const` is the reason for refusing it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        parser.error(f"{self.option_strings[0]}: {self.const}")


def _spelt(name: str) -> list[str]:
    """Return both spellings of an option, --node-rank and --node_rank, with torchrun's short form if there is one."""
    short = {"redirects": ["-r"], "tee": ["-t"]}.get(name, [])
    return [*short, *dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))]


def _from_environment(name: str, default: Any) -> Any:
    return os.environ.get(f"PET_{name.upper().replace('-', '_')}", default)
