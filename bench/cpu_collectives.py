"""Collectives of CPU tensors between processes: over TCP and MPI, compared with PyTorch's gloo.

`python bench/cpu_collectives.py [tcp] [mpi] [torch] [--ranks 2]`.

Each backend has separate processes. Times are those of rank 0, in microseconds: the median and the least of the
turns. A message goes to the other rank and back.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module

SIZES = {"4 B": (1, 1000), "64 KiB": (1 << 14, 500), "4 MiB": (1 << 20, 60), "64 MiB": (1 << 24, 12)}
ENGINES = {"tcp": ("flambeau", {"FLAMBEAU_GLOO": "tcp"}), "mpi": ("flambeau", {}), "torch": ("torch", {})}


def measure(turn: Callable[[], object], turns: int) -> tuple[float, float]:
    """Return the median and the least microseconds of a turn."""
    taken = []
    for _ in range(turns + 3):
        start = time.perf_counter()
        turn()
        taken.append(1e6 * (time.perf_counter() - start))
    return statistics.median(taken[3:]), min(taken[3:])


def worker(library: str) -> None:
    """Measure as one rank."""
    start = time.perf_counter()
    torch, dist = import_module(library), import_module(f"{library}.distributed")
    imported = time.perf_counter()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.barrier()
    lines = [
        f"start, without imports ({imported - start:.1f} s): {1e6 * (time.perf_counter() - imported):,.0f}"
    ]

    def message(x: object) -> None:
        if rank < 2:
            (dist.send, dist.recv)[rank](x, 1 - rank)
            (dist.recv, dist.send)[rank](x, 1 - rank)

    for size, (count, turns) in SIZES.items():
        x = torch.ones(count)
        for name, turn in (("all_reduce", dist.all_reduce), ("message", message)):
            median, least = measure(lambda turn=turn, x=x: turn(x), turns)  # type: ignore[misc]
            lines.append(f"{name} of {size}: {median:,.0f} (least {least:,.0f})")
            x.fill_(1)
            dist.barrier()
    median, least = measure(dist.barrier, 1000)
    if rank == 0:
        print("\n".join([*lines, f"barrier: {median:,.0f} (least {least:,.0f})"]), flush=True)
    dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engines", nargs="*", default=["tcp", "torch"], metavar="|".join(ENGINES))
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args()
    for engine in options.engines:
        library, more = ENGINES[engine]
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = str(listener.getsockname()[1])
        shared = {"WORLD_SIZE": str(options.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more}
        started = [
            subprocess.Popen(
                [sys.executable, __file__, "--worker", library], env=os.environ | shared | {"RANK": str(rank)},
                stdout=subprocess.PIPE, text=True,
            )
            for rank in range(options.ranks)
        ]  # fmt: skip
        said = [process.communicate()[0] for process in started]
        print(
            "\n".join(f"{engine}, {options.ranks} ranks, {line}" for line in said[0].splitlines()), flush=True
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2])
    else:
        main()
