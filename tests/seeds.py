"""`session_seed`: of the random programs of a session. Each day has its own, so that a failure repeats on every machine that day."""

from __future__ import annotations

import os
import zlib
from datetime import UTC, datetime

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"


def session_seed() -> int:
    """Return FLAMBEAU_HUNT_SEED; else that of the day (UTC), or of `make test-all`'s run, the same in all its processes."""
    given = os.environ.get("FLAMBEAU_HUNT_SEED")
    if given:
        return int(given)
    if EXHAUSTIVE:
        run = os.environ.setdefault("PYTEST_XDIST_TESTRUNUID", os.urandom(8).hex())
        return zlib.crc32(run.encode())
    return int(f"{datetime.now(UTC):%Y%m%d}")
