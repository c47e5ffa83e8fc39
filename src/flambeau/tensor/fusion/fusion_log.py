"""The log of fused kernels: `FLAMBEAU_LOGS=fusion` writes to stderr what was fused, and why a group was issued."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from flambeau.core.callsite import Site, place
from flambeau.tensor.fusion.fused_plans import Recipe, describe


def is_on() -> bool:
    """Return True if the environment asks for the log."""
    return "fusion" in os.environ.get("FLAMBEAU_LOGS", "").split(",")


def write(
    context: Any, recipe: Recipe, sites: Sequence[Site | None], why: str, alone: str, is_fused: bool
) -> None:
    """Write one line for a group that was issued.

    Args:
        context: The device.
        recipe: The calls.
        sites: Where the program made them.
        why: What needed the group.
        alone: Why its calls were launched one by one; "" if nothing spoke for that.
        is_fused: True if it was one kernel.
    """
    shape = list(recipe.outputs()[0].shape)
    how = (
        "one kernel"
        if is_fused
        else f"{len(recipe.calls)} kernels ({alone or 'the fused one is being compiled'})"
    )
    calls = describe(recipe, ["" if site is None else place(site) for site in sites])
    print(f"fusion: {context.device} {shape}: {how} of {calls}; issued because: {why}", file=sys.stderr)
