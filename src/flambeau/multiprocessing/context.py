"""The contexts of the standard library (fork, spawn, forkserver) with our queues and processes.

# Note [Virtual GPUs of children]
A process that is started afresh opens its own devices, as its environment says. Where `flambeau.virtual` chose them
in the parent, the child opens the same before it unpickles its arguments, which may lie on them; unless it has made
a choice itself by then.
"""

from __future__ import annotations

from multiprocessing import context as standard
from multiprocessing import get_start_method
from typing import Any

from flambeau.multiprocessing.queue import JoinableQueue, Queue
from flambeau.runtime import system
from flambeau.runtime.devices import configuration


class _Like:
    """A prefix of data that is pickled for a child: when it is unpickled, it opens virtual GPUs like the parent's."""

    def __reduce__(self) -> Any:
        settings = system.machine_settings()
        chosen = settings.driver == "virtual" and settings != configuration.from_environment()
        return _open_like, ((settings,) if chosen else ())


def _open_like(settings: configuration.Settings | None = None) -> None:
    """Open virtual GPUs like the parent's. See Note [Virtual GPUs of children]."""
    if (
        settings is not None
        and system.machine_settings() == configuration.from_environment()
        and not system.is_initialized()
    ):
        system.virtual(
            settings.devices,
            settings.profile,
            settings.schedule,
            settings.races,
            settings.poison,
            settings.data,
        )


def _rebuilt(_: None, kind: Any, state: Any) -> Any:
    made = object.__new__(kind)
    put = getattr(made, "__setstate__", made.__dict__.update)
    put(state)
    return made


class _Process:
    """A process that starts with a new interpreter: see Note [Virtual GPUs of children]."""

    def __reduce__(self) -> Any:
        return _rebuilt, (_Like(), type(self), self.__getstate__())  # in this order


class Process(_Process, standard.Process):
    """A process of the start method that is chosen when it starts."""


class SpawnProcess(_Process, standard.SpawnProcess):
    """A process of the spawn context."""


class ForkServerProcess(_Process, standard.ForkServerProcess):
    """A process of the forkserver context."""


class _Context:
    """The common part of the package's process contexts."""

    def Queue(self, maxsize: int = 0) -> Any:  # noqa: N802
        """Return a queue of messages between processes. See `queue.py`."""
        return Queue(maxsize, ctx=self.get_context())

    def JoinableQueue(self, maxsize: int = 0) -> Any:  # noqa: N802
        """Return a queue that can be joined. See `queue.py`."""
        return JoinableQueue(maxsize, ctx=self.get_context())

    def get_context(self, method: str | None = None) -> Any:
        """Return the context of a start method, or this one. Raises ValueError if there is no such method."""
        return self if method is None else get_context(method)


class ForkContext(_Context, standard.ForkContext):
    """The context of processes that begin as copies of this one. They cannot use CUDA if this process used it."""


class SpawnContext(_Context, standard.SpawnContext):
    """A context whose processes start with a new interpreter."""

    Process = SpawnProcess  # type: ignore[assignment]


class ForkServerContext(_Context, standard.ForkServerContext):
    """A context whose processes are forks of a server process, which started with a new interpreter."""

    Process = ForkServerProcess  # type: ignore[assignment]


_CONTEXTS: dict[str, Any] = {
    "fork": ForkContext(), "spawn": SpawnContext(), "forkserver": ForkServerContext(),
}  # fmt: skip


def get_context(method: str | None = None) -> Any:
    """Return the context of a start method; with None, of the method that `set_start_method` selected.

    Raises:
        ValueError: If there is none such.
    """
    method = get_start_method() if method is None else method
    if method not in _CONTEXTS:
        raise ValueError(f"cannot find context for {method!r}")
    return _CONTEXTS[method]
