"""`python -m flambeau.distributed.run`: the command line of torchrun.

Under `flambeau launch`, `import torch` imports Flambeau; under this module Python's usual rules apply.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.dist_errors import DistError
from flambeau.distributed.launching.agent import Agent, LaunchPlan
from flambeau.distributed.launching.cluster_environment import TaskPlacement, detect_placement
from flambeau.distributed.launching.launch_options import get_args_parser
from flambeau.distributed.launching.workers import Streams, stream_bits
from flambeau.runtime import system

STATIC_PORT = 29500
_LAST_PORT = 65535
_BACKENDS = ("static", "c10d")
_RUN_PATH = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"


def main(args: Sequence[str] | None = None) -> None:
    """Parse, run, and exit with the status of the first rank that failed."""
    parser = get_args_parser("python -m flambeau.distributed.run")
    try:
        sys.exit(run(parser.parse_args(args), parser.prog))
    except ValueError as error:
        parser.error(str(error))


def parse_args(args: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of torchrun."""
    return get_args_parser().parse_args(args)


def run(
    args: argparse.Namespace,
    prog: str = "torchrun",
    runner: Sequence[str] = (),
    ended: Callable[[int, Path, int], None] = lambda status, folder, first: None,
) -> int:
    """Start the ranks as `args` request, wait for them, and return the exit status.

    Args:
        runner: Arguments between Python and the program in a rank's command; FOLDER in them is the rank's own folder.
        ended: Called with the status, the folder that holds the ranks' folders, and the first of this node's ranks.

    Raises:
        ValueError: If arguments contradict each other or are invalid.
    """
    folder = Path(args.log_dir or tempfile.mkdtemp(prefix="flambeau-launch-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--log-dir {args.log_dir}: {error.strerror}") from None
    try:
        plan = plan_of(args, folder, prog, runner)
        agent = Agent(plan)
        agent.extra = _omp_threads(plan.nproc)
        status = agent.run()
        ended(status, plan.folder, agent.first)
        return status
    except (DistError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    finally:
        if not args.log_dir:
            shutil.rmtree(folder, ignore_errors=True)


def plan_of(args: argparse.Namespace, folder: Path, prog: str, runner: Sequence[str] = ()) -> LaunchPlan:
    """Return the plan of the arguments, completed by a scheduler's environment."""
    _check(args)
    placement = detect_placement(os.environ)
    nodes = _nodes(args.nnodes)
    node_rank: int | None = int(args.node_rank)
    if placement is not None and nodes == 1 and node_rank == 0 and placement.size > 1 and not args.standalone:
        nodes, node_rank = placement.size, placement.rank
    host, port, serves = _rendezvous_address(args, nodes, placement)
    if args.rdzv_backend == "c10d" and not args.standalone:
        node_rank = None if placement is None else node_rank
    elif nodes > 1 or node_rank:
        serves = node_rank == 0
    if node_rank is not None and not 0 <= node_rank < nodes:
        raise ValueError(f"--node-rank {node_rank}: there are {nodes} nodes")
    nproc = determine_local_world_size(args.nproc_per_node)
    command, arguments = _command(args, runner)
    filtered = args.local_ranks_filter
    return LaunchPlan(
        prog=prog, command=command, arguments=arguments, local_rank_argument=not getattr(args, "use_env", True),
        nproc=nproc, nodes=nodes, node_rank=node_rank, host=host, port=port, serves=serves, run_id=args.rdzv_id,
        role=args.role, max_restarts=args.max_restarts, interval=args.monitor_interval,
        shutdown_timeout=args.shutdown_timeout, join_timeout=_join_timeout(args.rdzv_conf),
        signals=_signals(args.signals_to_handle),
        streams=Streams(
            stream_bits(args.redirects), stream_bits(args.tee), _ranks(filtered) if filtered else None
        ),
        folder=Path(tempfile.mkdtemp(prefix=f"{args.rdzv_id.replace(os.sep, '_')}_", dir=folder)),
        virtual_local_rank=args.virtual_local_rank,
    )  # fmt: skip


def determine_local_world_size(nproc_per_node: str) -> int:
    """Return the number of ranks on this node.

    Args:
        nproc_per_node: A number; "gpu"; "cpu"; or "auto", a rank per GPU, or per core without GPUs.

    Raises:
        ValueError: If it is none of these, or "gpu" without a GPU.
    """
    text = str(nproc_per_node)
    if text.isdigit() and int(text) > 0:
        return int(text)
    if text == "gpu" and not system.is_available():
        raise ValueError("Cuda is not available.")
    if text == "gpu" or (text == "auto" and system.is_available()):
        return system.device_count()
    if text in ("cpu", "auto"):
        return os.cpu_count() or 1
    raise ValueError(f"Unsupported nproc_per_node value: {nproc_per_node}")


def _check(args: argparse.Namespace) -> None:
    if args.rdzv_backend not in _BACKENDS:
        raise ValueError(f"--rdzv-backend {args.rdzv_backend}: there are {' and '.join(_BACKENDS)}")
    if args.max_restarts < 0:
        raise ValueError("--max-restarts must be 0 or more")
    if not args.monitor_interval >= 0:
        raise ValueError("--monitor-interval must be 0 or more")
    if args.shutdown_timeout < 0:
        raise ValueError("--shutdown-timeout must be 0 or more")
    if args.no_python and args.module:
        raise ValueError("Don't use both the '--no-python' flag and the '--module' flag at the same time.")
    if args.event_log_handler not in ("null", "console"):
        raise ValueError(f"--event-log-handler {args.event_log_handler}: there is null alone")


def _nodes(text: str) -> int:
    """Return the number of nodes from "2" or "2:2". A range is refused, because nodes cannot join or leave a run."""
    least, _, most = text.partition(":")
    try:
        found = {int(least), int(most or least)}
    except ValueError:
        raise ValueError(f'nnodes={text} is not in "MIN:MAX" format') from None
    if len(found) > 1:
        raise ValueError(
            f"--nnodes {text}: a run here has the nodes that it began with, so MIN and MAX must be one number; "
            "after a failure all of them restart (--max-restarts)"
        )
    if (nodes := found.pop()) < 1:
        raise ValueError("--nnodes must be 1 or more")
    return nodes


def _rendezvous_address(
    args: argparse.Namespace, nodes: int, placement: TaskPlacement | None
) -> tuple[str, int, bool | None]:
    """Return (host, port, whether this node serves; None: try)."""
    if args.standalone:
        if nodes > 1:
            raise ValueError(f"--standalone is one node, and --nnodes says {nodes}")
        return "localhost", 0, True
    if args.rdzv_endpoint:
        host, _, port = args.rdzv_endpoint.rpartition(":")
        if not port.isdigit():
            host, port = args.rdzv_endpoint, str(STATIC_PORT)
        here = nodes == 1 or _is_here(host, args.local_addr)
        return host, _port("--rdzv-endpoint", port), (None if nodes > 1 else True) if here else False
    host = args.master_addr
    if host == "127.0.0.1" and placement is not None and placement.first and nodes > 1:
        host = placement.first
    port = args.master_port
    if port is None:
        port = STATIC_PORT if nodes > 1 else 0
    return host, _port("--master-port", port), True


def _port(option: str, port: Any) -> int:
    text = str(port)
    if not (text.isascii() and text.isdigit() and int(text) <= _LAST_PORT):
        raise ValueError(f"{option}: a port is a number from 0 to {_LAST_PORT}, not {text!r}")
    return int(text)


def _is_here(host: str, local: str | None) -> bool:
    """Return True if an address belongs to this machine."""
    if host in ("localhost", "127.0.0.1", "::1", socket.gethostname(), socket.getfqdn(), local):
        return True
    try:
        addresses = {found[4][0] for found in socket.getaddrinfo(host, None)}
        ours = {found[4][0] for found in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return False
    return bool(addresses & ours)


def _command(args: argparse.Namespace, runner: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (program, arguments of the program)."""
    python = os.environ.get("PYTHON_EXEC", sys.executable)
    script, arguments = args.training_script, tuple(args.training_script_args)
    if args.run_path:
        return (python, "-u", "-c", _RUN_PATH, script), arguments
    if args.no_python:
        return (script,), arguments
    return (python, "-u", *runner, *(["-m"] if args.module else []), script), arguments


def _join_timeout(conf: str) -> timedelta:
    """Return the join timeout of --rdzv-conf. Raises ValueError if the text is not a list of pairs."""
    pairs = {}
    for pair in filter(None, conf.split(",")):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ValueError(
                "The rendezvous configuration string must be in format <key1>=<value1>,<key2>=<value2>,...,"
                f"<keyN>=<valueN>, got {pair!r}"
            )
        pairs[name.strip()] = value
    text = pairs.get("join_timeout", pairs.get("timeout", "600"))
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise ValueError(f"--rdzv-conf: a timeout is a number of seconds, not {text!r}") from None


def _signals(text: str) -> tuple[int, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in signal.Signals.__members__]
    if unknown:
        raise ValueError(f"--signals-to-handle: there is no signal {unknown[0]}")
    return tuple(signal.Signals[name] for name in names)


def _ranks(text: str) -> frozenset[int]:
    try:
        return frozenset(map(int, text.split(",")))
    except ValueError:
        raise ValueError(
            "--local_ranks_filter must be a comma-separated list of integers e.g. --local_ranks_filter=0,1,2"
        ) from None


def _omp_threads(nproc: int) -> dict[str, str]:
    """Return OMP_NUM_THREADS=1 for ranks that share a machine, because otherwise each rank would use all cores."""
    return {"OMP_NUM_THREADS": "1"} if nproc > 1 and "OMP_NUM_THREADS" not in os.environ else {}


explain_absent_names(globals(), "torch.distributed.run")


if __name__ == "__main__":
    main()
