"""torch._guards: questions of libraries about the modes that run."""

from __future__ import annotations

from typing import Any

from flambeau._subclasses.fake_tensor import FakeTensorMode, maybe_get_fake_mode
from flambeau.core.public_names import explain_absent_names
from flambeau.tensor import dispatch
from flambeau.utils._pytree import tree_leaves

__all__ = ["active_fake_mode", "detect_fake_mode"]


def active_fake_mode() -> FakeTensorMode | None:
    """Return the innermost mode of fake tensors that is entered; None if there is none."""
    return next((mode for mode in reversed(dispatch.local.modes) if isinstance(mode, FakeTensorMode)), None)


def detect_fake_mode(inputs: Any = None) -> FakeTensorMode | None:
    """Return the mode that is entered, or that of the first fake tensor among the inputs; None if there is none.

    Args:
        inputs: Values that may contain fake tensors.
    """
    found = [maybe_get_fake_mode(x) for x in tree_leaves(inputs)]
    return active_fake_mode() or next((mode for mode in found if mode is not None), None)


explain_absent_names(globals(), "torch._guards")
