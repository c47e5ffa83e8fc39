"""Other processes and descriptors: what they have done by now depends on timing, so questions for it are named."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from types import ModuleType
from typing import Any

from flambeau.core.sites import Site
from flambeau.observe.handovers.listeners import Changes, Wrap, asker, listening

Args = tuple[Any, ...]
Options = dict[str, Any]


def changes(module: ModuleType) -> Changes:
    name = module.__name__
    if name == "multiprocessing.process":
        process = module.BaseProcess
        return {
            process: {
                "is_alive": _named("Process.is_alive()", _runs),
                "join": _named("Process.join(timeout)", _limited(0)),
                "exitcode": _named_property("Process.exitcode", _runs),
            }
        }
    if name == "multiprocessing.connection":
        return {
            module._ConnectionBase: {"poll": _named("Connection.poll()")},
            module: {"wait": _named("multiprocessing.connection.wait()")},
        }
    if name == "multiprocessing.queues":
        questions = {
            ask: _named(f"multiprocessing.Queue.{ask}()") for ask in ("qsize", "empty", "full", "get_nowait")
        }
        get = {"get": _named("multiprocessing.Queue.get with a timeout, or without a wait,", _does_not_wait)}
        empty = {"empty": _named("multiprocessing.SimpleQueue.empty()")}
        return {module.Queue: questions | get, module.SimpleQueue: empty}
    if name == "multiprocessing.synchronize":
        return {
            module.Event: {
                "is_set": _named("multiprocessing.Event.is_set()"),
                "wait": _named("multiprocessing.Event.wait(timeout)", _limited(0)),
            },
            module.Condition: {
                "wait": _named("multiprocessing.Condition.wait(timeout)", _limited(0)),
                "wait_for": _named("multiprocessing.Condition.wait_for(timeout)", _limited(1)),
            },
            module.SemLock: {"_make_methods": _make_methods},
        }
    if name == "multiprocessing.pool":
        return {
            module.ApplyResult: {
                "ready": _named("AsyncResult.ready()"),
                "successful": _named("AsyncResult.successful()"),
                "wait": _named("AsyncResult.wait(timeout)", _limited(0)),
                "get": _named("AsyncResult.get(timeout)", _limited(0)),
            },
            module.Pool: {"imap_unordered": _named("Pool.imap_unordered()")},
        }
    if name == "subprocess":
        return {
            module.Popen: {
                "poll": _named("Popen.poll()", lambda args, options: args[0].returncode is None),
                "wait": _named("Popen.wait(timeout)", _limited(0)),
                "communicate": _named("Popen.communicate(timeout)", _limited(1)),
            }
        }
    if name == "select":
        return {module: {"select": _named("select.select()")}}
    kinds = [kind for kind in vars(selectors).values() if isinstance(kind, type) and "select" in vars(kind)]
    return {
        kind: {"select": _named("select() of a selector")}
        for kind in kinds
        if kind is not selectors.BaseSelector
    }


def _always(args: Args, options: Options) -> bool:
    return True


def _runs(args: Args, options: Options) -> bool:
    """Return True of a process that was started, and not waited for."""
    return args[0]._popen is not None and args[0]._popen.returncode is None


def _limited(position: int) -> Callable[[Args, Options], bool]:
    """Return whether a method is called with a timeout, which is its argument at `position`."""

    def is_limited(args: Args, options: Options) -> bool:
        rest = args[1:]
        return (rest[position] if len(rest) > position else options.get("timeout")) is not None

    return is_limited


def _does_not_wait(args: Args, options: Options) -> bool:
    block = args[1] if len(args) > 1 else options.get("block", True)
    return not block or (args[2] if len(args) > 2 else options.get("timeout")) is not None


def _name(what: str, site: Site) -> None:
    for detector in listening():
        detector.findings.thread_asked(what, site)


def _named(what: str, depends: Callable[[Args, Options], bool] = _always) -> Wrap:
    """Name the program's calls of a function whose answer depends on timing, where `depends(args, options)` says so."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def told(*args: Any, **options: Any) -> Any:
            site = asker()
            if site is not None and depends(args, options):
                _name(what, site)
            return function(*args, **options)

        return told

    return wrap


def _named_property(what: str, depends: Callable[[Args, Options], bool]) -> Wrap:
    def wrap(original: property) -> property:
        def told(self: Any) -> Any:
            site = asker()
            if site is not None and depends((self,), {}):
                _name(what, site)
            return original.fget(self)  # type: ignore[misc]

        return property(told, doc=original.__doc__)

    return wrap


def _make_methods(make: Callable[..., None]) -> Callable[..., None]:
    """A lock between processes has its methods in the instance: name there who does not wait for it."""

    def told(self: Any) -> None:
        make(self)
        acquire = self.acquire
        self.acquire = lambda *args, **options: _named(
            "acquire() of a multiprocessing lock with a timeout, or without a wait,",
            lambda args, options: _does_not_wait((self, *args), options),
        )(acquire)(*args, **options)

    return told
