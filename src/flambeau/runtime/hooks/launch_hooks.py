"""Launches of operators, told to profilers. Owner of who is told.

While somebody is, calls use plans of their own (see Note [The plan cache]), whose launches tell; otherwise a launch
costs what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from flambeau.core.flags import flags
from flambeau.driver.api import Executable, Launcher


class Recorder(Protocol):
    """`stream` is the handle that the launch goes to, `ptrs` are the addresses of outputs and inputs."""

    def before(self, exe: Executable, stream: int, ptrs: Sequence[int], /) -> None: ...
    def after(self, exe: Executable, stream: int, /) -> None: ...
    def on_scope_begin(self, name: str, /) -> None:
        """What is launched from now on, in this thread, is part of this, until `on_scope_end`."""

    def on_scope_end(self) -> None: ...


_recorders: tuple[Recorder, ...] = ()


def subscribe(recorder: Recorder) -> None:
    """Tell `recorder` of each launch from now on."""
    global _recorders
    _recorders = (*_recorders, recorder)
    flags.profiled = True


def unsubscribe(recorder: Recorder) -> None:
    """Tell it no more."""
    global _recorders
    _recorders = tuple([other for other in _recorders if other is not recorder])
    flags.profiled = bool(_recorders)


def heard() -> bool:
    """Return True if anybody is told."""
    return bool(_recorders)


@contextmanager
def within(name: str) -> Iterator[None]:
    """What is launched inside is part of `name`, a function of the tape."""
    recorders = _recorders
    for recorder in recorders:
        recorder.on_scope_begin(name)
    try:
        yield
    finally:
        for recorder in reversed(recorders):
            recorder.on_scope_end()


def told(exe: Executable, launch: Launcher) -> Launcher:
    """Return a launch that tells."""

    def launch_and_tell(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        recorders = _recorders
        for recorder in recorders:
            recorder.before(exe, stream, ptrs)
        try:
            launch(ptrs, scalars, stream)
        finally:
            for recorder in reversed(recorders):
                recorder.after(exe, stream)

    return launch_and_tell
