"""`detect_placement` reads the task number, number of tasks and first host that Slurm or mpirun has set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TaskPlacement:
    """Task `rank` of `size` tasks.

    Attributes:
        by: Name of the scheduler that started it.
        first: Host of task 0; "" if that is unknown.
    """

    rank: int
    size: int
    first: str
    by: str


_TASKS = (  # scheduler, variable of the rank, variable of the number of tasks
    ("Slurm", "SLURM_PROCID", "SLURM_NTASKS"),
    ("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MPICH", "PMI_RANK", "PMI_SIZE"),
)
# Variables that describe MPI tasks to a library: the launcher's ranks are not these tasks.
INNER = ("PMI_", "PMIX_", "OMPI_", "MV2_", "HYDI_", "MPI_LOCAL")


def detect_placement(environ: Mapping[str, str]) -> TaskPlacement | None:
    """Return the placement that a scheduler's environment variables describe; None outside of a scheduler's task.

    A shell of a Slurm job is not a task.
    """
    if "SLURM_PROCID" in environ and "SLURM_STEP_ID" not in environ:
        environ = {name: value for name, value in environ.items() if not name.startswith("SLURM_")}
    for by, rank, size in _TASKS:
        if rank in environ and size in environ:
            return TaskPlacement(int(environ[rank]), int(environ[size]), _first_host(environ), by)
    return None


def _first_host(environ: Mapping[str, str]) -> str:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if hosts := environ.get(name):
            return first_host(hosts)
    return ""


def first_host(hosts: str) -> str:
    """Return the first host of Slurm's list of hosts: "gpu007" for "gpu[007-012,20],other"."""
    stem, bracket, rest = re.match(r"([^,\[]*)(\[?)(.*)", hosts).groups()  # type: ignore[union-attr]
    if not bracket:
        return str(stem)
    inside, _, after = rest.partition("]")
    return f"{stem}{re.split('[-,]', inside)[0]}{after.partition(',')[0]}"
