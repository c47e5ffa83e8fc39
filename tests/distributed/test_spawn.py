"""multiprocessing.spawn beside PyTorch's: what runs, what ends whom, the texts of errors."""

from __future__ import annotations

import os
import pickle
import re
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import spawn_targets

import flambeau as torch
from flambeau import multiprocessing as module
from flambeau.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    spawn,
    start_processes,
)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_process_gets_its_number(tmp_path: Path) -> None:
    assert spawn(spawn_targets.leave_file, (str(tmp_path),), nprocs=2) is None
    found = {path.name: int(path.read_text()) for path in tmp_path.iterdir()}
    assert sorted(found) == ["0", "1"]
    assert len({*found.values(), os.getpid()}) == 3


def failure(call: Any) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def lines(error: Exception) -> list[str]:
    """Its text without the frames, which differ, and process ids."""
    return [line for line in re.sub(r"\d{3,}", "N", str(error)).splitlines() if not line.startswith("  ")]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("target, args", [("raise_in", (1,)), ("exit_in", (0, 5)), ("die_in", (1,))])
def test_the_first_failure_is_raised_as_by_pytorch(target: str, args: Any, start_method: str) -> None:
    from support import torch as oracle

    fn = getattr(spawn_targets, target)
    mine = failure(lambda: start_processes(fn, args, nprocs=2, start_method=start_method))
    assert not active_children(), "the others were ended"
    if start_method == "spawn":
        return
    theirs = failure(lambda: oracle.multiprocessing.start_processes(fn, args, nprocs=2, start_method="fork"))
    assert type(mine).__name__ == type(theirs).__name__
    assert lines(mine) == lines(theirs)
    assert mine.error_index == theirs.error_index  # type: ignore[attr-defined]
    again = pickle.loads(pickle.dumps(mine))
    assert (str(again), again.error_index, again.error_pid) == (str(mine), mine.error_index, mine.error_pid)  # type: ignore[attr-defined]
    if isinstance(mine, ProcessExitedException):
        assert (mine.exit_code, mine.signal_name) == (theirs.exit_code, theirs.signal_name)  # type: ignore[attr-defined]


def test_the_first_failure_in_time_is_raised_whoevers_process_ends_first(tmp_path: Path) -> None:
    """PyTorch raises that of the first process that ends."""
    with pytest.raises(ProcessRaisedException, match="ValueError: the reason") as caught:
        start_processes(
            spawn_targets.fail_one_after_the_other, (str(tmp_path),), nprocs=2, start_method="fork"
        )
    assert caught.value.error_index == 0


def test_a_context_can_be_joined_piece_by_piece(tmp_path: Path) -> None:
    context = start_processes(
        spawn_targets.leave_file, (str(tmp_path),), nprocs=2, join=False, start_method="fork"
    )
    assert context is not None
    processes = context.pids()
    folder = Path(context.error_files[0]).parent
    while not context.join(timeout=300):
        pass
    assert context.join(), "again is allowed"
    assert not any(map(alive, processes))
    del context
    assert not folder.exists(), "nothing is left behind"


def test_who_does_not_listen_is_killed(tmp_path: Path) -> None:
    context = start_processes(
        spawn_targets.stubborn, (str(tmp_path),), nprocs=2, join=False, start_method="fork"
    )
    assert context is not None
    with pytest.raises(ProcessRaisedException, match="from 0"):
        while not context.join(grace_period=0.1):
            pass
    assert not any(map(alive, context.pids()))


def test_other_start_methods_are_told_off_by_spawn(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="only supports start_method=spawn"):
        context = spawn(spawn_targets.leave_file, (str(tmp_path),), nprocs=1, join=False, start_method="fork")
    assert context is not None
    assert context.join(300)
    with pytest.warns(UserWarning, match="renamed to ProcessContext"):
        module.SpawnContext([], [])


def test_ranks_that_spawn_started_sum_their_tensors(tmp_path: Path) -> None:
    """The program of PyTorch's tutorial: gloo between spawned processes, tensors as arguments in shared memory."""
    results = torch.zeros(2).share_memory_()
    url = f"file://{tmp_path}/meeting"
    spawn(spawn_targets.sum_over_ranks, (2, url, torch.ones(3), results), nprocs=2)
    assert results.tolist() == [3.0, 3.0]


def test_virtual_gpus_of_spawned_ranks_meet(tmp_path: Path) -> None:
    """Ranks use the parent's GPUs; the error names the rank that failed, not those that waited for it."""
    with torch.virtual(devices=2), pytest.raises(ProcessRaisedException, match="from rank 1") as caught:
        spawn(spawn_targets.sum_on_gpus, (2, f"file://{tmp_path}/meeting"), nprocs=2)
    assert caught.value.error_index == 1
