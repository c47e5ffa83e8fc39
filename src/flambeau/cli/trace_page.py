"""The page of `flambeau trace`."""

from __future__ import annotations

from flambeau.core.errors import NotSupportedError
from flambeau.observe.trace import Trace


def page(trace: Trace, program: str) -> str:
    """The whole HTML page."""
    raise NotSupportedError("a trace as a page is not there yet: write it as .json")
