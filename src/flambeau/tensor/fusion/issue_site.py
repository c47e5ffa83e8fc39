"""`run_at`: call a function as if the program's line did, so that reports name that line and not a later one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from flambeau.core.callsite import Site, line_of


def run_at(site: Site | None, function: Callable[..., Any], *args: Any) -> None:
    """Call `function(*args)` from a frame at `site`; without a site, from here.

    Observers find the line of a launch by the innermost frame of the program. A deferred launch is issued at a later
    line than the call that it belongs to.
    """
    if site is None:
        function(*args)
        return
    exec(
        _code_at(site[0].co_filename, line_of(site), site[0].co_name),
        {"launch": _launch, "values": (function, args)},
    )


def _launch(function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Call a launcher from two frames of this package: observers pass over as many as a call of `unary` adds."""
    _forward(function, args)


def _forward(function: Callable[..., Any], args: Sequence[Any]) -> None:
    function(*args)


@lru_cache(maxsize=4096)
def _code_at(filename: str, line: int, name: str) -> CodeType:
    """Return code that calls `launch(*values)` at a line of a file."""
    text = "\n" * (line - 1) + "launch(*values)"
    return compile(text, filename, "exec").replace(co_name=name, co_qualname=name)
