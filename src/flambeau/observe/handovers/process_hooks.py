"""Hooks for queries of other processes and file descriptors, whose answers depend on timing."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from flambeau.core.callsite import Site
from flambeau.observe.handovers.listeners import Changes, Wrap, asker, listening

Args = tuple[Any, ...]
Options = dict[str, Any]


def changes(module: ModuleType) -> Changes:
    name = module.__name__
    if name == "multiprocessing.process":
        process = module.BaseProcess
        return {
            process: {
                "is_alive": _name_calls("Process.is_alive()", _runs),
                "join": _name_calls("Process.join(timeout)", _has_timeout(0)),
                "exitcode": _named_property("Process.exitcode", _runs),
            }
        }
    if name == "multiprocessing.connection":
        return {
            module._ConnectionBase: {"poll": _name_calls("Connection.poll()")},
            module: {"wait": _name_calls("multiprocessing.connection.wait()")},
        }
    if name == "multiprocessing.queues":
        questions = {
            ask: _name_calls(f"multiprocessing.Queue.{ask}()")
            for ask in ("qsize", "empty", "full", "get_nowait")
        }
        get = {
            "get": _name_calls("multiprocessing.Queue.get with a timeout, or without a wait,", _does_not_wait)
        }
        empty = {"empty": _name_calls("multiprocessing.SimpleQueue.empty()")}
        return {module.Queue: questions | get, module.SimpleQueue: empty}
    if name == "multiprocessing.synchronize":
        return {
            module.Event: {
                "is_set": _name_calls("multiprocessing.Event.is_set()"),
                "wait": _name_calls("multiprocessing.Event.wait(timeout)", _has_timeout(0)),
            },
            module.Condition: {
                "wait": _name_calls("multiprocessing.Condition.wait(timeout)", _has_timeout(0)),
                "wait_for": _name_calls("multiprocessing.Condition.wait_for(timeout)", _has_timeout(1)),
            },
            module.SemLock: {"_make_methods": _make_methods},
        }
    if name == "multiprocessing.pool":
        return {
            module.ApplyResult: {
                "ready": _name_calls("AsyncResult.ready()"),
                "successful": _name_calls("AsyncResult.successful()"),
                "wait": _name_calls("AsyncResult.wait(timeout)", _has_timeout(0)),
                "get": _name_calls("AsyncResult.get(timeout)", _has_timeout(0)),
            },
            module.Pool: {"imap_unordered": _name_calls("Pool.imap_unordered()")},
        }
    return _changes_outside_multiprocessing(module)


def _changes_outside_multiprocessing(module: ModuleType) -> Changes:
    if module.__name__ == "subprocess":
        return {
            module.Popen: {
                "poll": _name_calls("Popen.poll()", lambda args, options: args[0].returncode is None),
                "wait": _name_calls("Popen.wait(timeout)", _has_timeout(0)),
                "communicate": _name_calls("Popen.communicate(timeout)", _has_timeout(1)),
            }
        }
    if module.__name__ == "select":
        return {module: {"select": _name_calls("select.select()")}}
    assert module.__name__ == "selectors"
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and "select" in vars(kind)]
    return {
        kind: {"select": _name_calls("select() of a selector")}
        for kind in kinds
        if kind is not module.BaseSelector
    }


def _always(args: Args, options: Options) -> bool:
    return True


def _runs(args: Args, options: Options) -> bool:
    """Return True if the call starts a process and does not wait for it."""
    return args[0]._popen is not None and args[0]._popen.returncode is None


def _has_timeout(position: int) -> Callable[[Args, Options], bool]:
    """Return a predicate that is True if a method's arguments have a timeout, the argument at `position`."""

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


def _name_calls(what: str, depends: Callable[[Args, Options], bool] = _always) -> Wrap:
    """Return a wrapper that records the program's calls of a function if `depends(args, options)` is True."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **options: Any) -> Any:
            site = asker()
            if site is not None and depends(args, options):
                _name(what, site)
            return function(*args, **options)

        return wrapper

    return wrap


def _named_property(what: str, depends: Callable[[Args, Options], bool]) -> Wrap:
    def wrap(original: property) -> property:
        def wrapper(self: Any) -> Any:
            site = asker()
            if site is not None and depends((self,), {}):
                _name(what, site)
            return original.fget(self)  # type: ignore[misc]

        return property(wrapper, doc=original.__doc__)

    return wrap


def _make_methods(make: Callable[..., None]) -> Callable[..., None]:
    """Return a wrapper of `make`, which creates a lock's methods as instance attributes.

    It records calls of `acquire` that have a timeout or do not wait.
    """

    def wrapper(self: Any) -> None:
        make(self)
        acquire = self.acquire
        self.acquire = lambda *args, **options: _name_calls(
            "acquire() of a multiprocessing lock with a timeout, or without a wait,",
            lambda args, options: _does_not_wait((self, *args), options),
        )(acquire)(*args, **options)

    return wrapper
