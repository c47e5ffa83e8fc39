"""Ranks that are processes: programs started side by side, as a user's shell would."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warm_start import Fork

HERE = Path(__file__).parent
SOURCES = Path(__file__).parents[2] / "src"


@dataclass
class Said:
    """What one process left: its exit status and its texts."""

    status: int
    out: str
    err: str


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def environment(**more: str) -> dict[str, str]:
    """A clean one: no rank of an outer run, one thread for BLAS."""
    outer = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_",
        "GROUP_",
        "ROLE_",
        "MASTER_",
        "TORCHELASTIC",
        "PMI",
        "SLURM",
        "OMPI",
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
    return {
        **kept, "PYTHONPATH": str(SOURCES), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "error", **more,
    }  # fmt: skip


def start(*command: str, **more: str) -> subprocess.Popen[str] | Fork:
    from warm_start import start_python  # here, as ranks that import this module do not have it

    return start_python(*command, env=environment(**more))


def finish(process: subprocess.Popen[str] | Fork, timeout: float = 300) -> Said:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {timeout} s:\n{out}\n{err}") from None
    return Said(process.returncode, out, err)


def run_ranks(size: int, *command: str, **more: str) -> list[Said]:
    """Start a program `size` times with the environment of env://; what each said."""
    port = str(free_port())
    places = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(size)]
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, **more}
    started = [start(*command, **place, **shared) for place in places]
    return [finish(process) for process in started]
