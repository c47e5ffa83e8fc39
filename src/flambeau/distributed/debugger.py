"""`breakpoint`: a debugger on one rank while the other ranks wait."""

from __future__ import annotations

import logging
import sys
from datetime import timedelta
from pathlib import Path
from pdb import Pdb
from typing import Any

from flambeau.distributed.collectives.collectives import barrier
from flambeau.distributed.process_groups import get_rank
from flambeau.distributed.world import world

log = logging.getLogger("torch.distributed")


class _RankPdb(Pdb):
    """A debugger that reads the terminal, because ranks of a launcher have no standard input."""

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        usual = sys.stdin
        try:
            with Path("/dev/stdin").open() as sys.stdin:
                super().interaction(*args, **kwargs)
        finally:
            sys.stdin = usual


def breakpoint(rank: int = 0, skip: int = 0, timeout_s: float | None = 3600) -> None:
    """Start the debugger on one rank while the other ranks wait in a barrier. All ranks must call this.

    Args:
        skip: Ignore this many calls of each call site first.
        timeout_s: New timeout of all groups.
    """
    caller = sys._getframe(1)
    line = (caller.f_code.co_filename, caller.f_lineno)
    counts = world().breakpoints
    counts[line] = counts.get(line, 0) + 1
    if counts[line] <= skip:
        log.warning("Skip the breakpoint, counter=%d", counts[line])
        return
    if timeout_s is not None:
        for group in world().groups.values():
            group.set_timeout(timedelta(seconds=timeout_s))
    if get_rank() == rank:
        pdb = _RankPdb()
        pdb.message(
            f"\n!!! ATTENTION !!!\n\nType 'up' to get to the frame that called dist.breakpoint(rank={rank})\n"
        )
        pdb.set_trace()
    barrier()
