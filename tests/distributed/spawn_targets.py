"""What spawned processes run in the tests: they import it by name, so it imports little."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def leave_file(number: int, folder: str) -> None:
    Path(folder, str(number)).write_text(str(os.getpid()))


def raise_in(number: int, which: int) -> None:
    if number == which:
        raise ValueError(f"from {number}")
    time.sleep(600)


def exit_in(number: int, which: int, code: int) -> None:
    if number == which:
        sys.exit(code)
    time.sleep(600)


def die_in(number: int, which: int) -> None:
    if number == which:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def stubborn(number: int, folder: str) -> None:
    """Number 0 fails when number 1 has closed its ears."""
    if number == 0:
        while not Path(folder, "deaf").exists():
            time.sleep(0.01)
        raise ValueError("from 0")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(folder, "deaf").write_text("")
    time.sleep(600)


def fail_one_after_the_other(number: int, folder: str) -> None:
    """Number 0 fails first, and its process ends last."""
    from multiprocessing import util

    raised, gone = Path(folder, "raised"), Path(folder, "gone")
    if number == 1:
        _until(raised.exists)
        gone.write_text(str(os.getpid()))
        raise KeyError("because 0 is gone")
    util.Finalize(None, _wait_for_end_of, args=(raised, gone), exitpriority=0)
    raise ValueError("the reason")


def _wait_for_end_of(raised: Path, gone: Path) -> None:
    raised.touch()
    _until(gone.exists)
    process = gone.read_text() or gone.read_text()
    _until(lambda: not Path(f"/proc/{process}").exists())


def _until(found: Any) -> None:
    while not found():
        time.sleep(0.01)


def sum_over_ranks(number: int, size: int, url: str, weights: Any, results: Any) -> None:
    import flambeau as torch
    import flambeau.distributed as dist

    dist.init_process_group("gloo", init_method=url, rank=number, world_size=size)
    mine = weights * (number + 1)
    dist.all_reduce(mine)
    results[number] = torch.clone(mine[0])
    dist.barrier()
    dist.destroy_process_group()


def sum_on_gpus(number: int, size: int, url: str) -> None:
    import flambeau as torch
    import flambeau.distributed as dist

    torch.cuda.set_device(number)
    dist.init_process_group("nccl", init_method=url, rank=number, world_size=size)
    mine = torch.ones(3, device="cuda") * (number + 1)
    dist.all_reduce(mine)
    assert mine.tolist() == [size * (size + 1) / 2] * 3
    if number == 1:
        raise ValueError("from rank 1")
    dist.all_reduce(mine)
    torch.cuda.synchronize()
