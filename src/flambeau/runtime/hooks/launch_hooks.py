"""Callbacks for launches of operators, which profilers use. Owner of the subscribers.

With a subscriber, calls use separate plans (see Note [The plan cache]) whose launches notify it. Without one, a
launch costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from flambeau.core.flags import flags
from flambeau.driver.protocol import Executable, Launcher
from flambeau.runtime.hooks.subscribers import Subscribers


class LaunchSubscriber(Protocol):
    """A subscriber to launches. `stream` is the launch's stream handle; `ptrs` are addresses of outputs and inputs."""

    def before(self, exe: Executable, stream: int, ptrs: Sequence[int], /) -> None: ...
    def after(self, exe: Executable, stream: int, /) -> None: ...
    def on_scope_begin(self, name: str, /) -> None:
        """Handle the beginning of a scope: later launches of this thread belong to it until `on_scope_end`."""

    def on_scope_end(self) -> None: ...


_recorders: Subscribers[LaunchSubscriber] = Subscribers()


def subscribe(recorder: LaunchSubscriber) -> None:
    """Call `recorder` for all later launches."""
    _recorders.add(recorder)
    flags.profiled = True


def unsubscribe(recorder: LaunchSubscriber) -> None:
    """Stop calling `recorder`."""
    _recorders.remove(recorder)
    flags.profiled = has_subscribers()


def has_subscribers() -> bool:
    """Return True if there is a subscriber."""
    return bool(_recorders.members)


@contextmanager
def within(name: str) -> Iterator[None]:
    """Report launches inside the block as part of `name`, a node of the autograd graph."""
    recorders = _recorders.members
    for recorder in recorders:
        recorder.on_scope_begin(name)
    try:
        yield
    finally:
        for recorder in reversed(recorders):
            recorder.on_scope_end()


def wrap_launcher(exe: Executable, launch: Launcher) -> Launcher:
    """Return a launch function that also notifies the subscribers."""

    def launch_and_notify(ptrs: Sequence[int], scalars: Sequence[Any], stream: int) -> None:
        recorders = _recorders.members
        for recorder in recorders:
            recorder.before(exe, stream, ptrs)
        try:
            launch(ptrs, scalars, stream)
        finally:
            for recorder in reversed(recorders):
                recorder.after(exe, stream)

    return launch_and_notify
