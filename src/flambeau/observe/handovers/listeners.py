"""The attached race detectors, and the hooks in the standard library and in autocast. This module owns both.

A module is patched when it is loaded: immediately, or when the program imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

from flambeau.core.callsite import Site, is_program, is_standard, is_standard_file
from flambeau.observe.detector import Detector

Wrap = Callable[[Any], Any]
"""A function that returns a replacement for an object of the standard library, which also reports to
detectors.
"""

Changes = dict[Any, dict[str, Wrap]]
"""The replacements in one module: class or module -> name -> wrapper."""

Replacement = tuple[Any, str, Any, Any]
"""(owner, name, old, new): an attribute of a class or module, and its value before and after the replacement."""

T = TypeVar("T")

_MODULES = {  # module that is patched -> module of this package with its `changes(module)`
    "threading": "thread_hooks", "queue": "queues", "concurrent.futures": "future_hooks",
    "concurrent.futures.thread": "pools", "asyncio": "loops", "subprocess": "process_hooks",
    "select": "process_hooks", "selectors": "process_hooks", "multiprocessing.process": "process_hooks",
    "multiprocessing.connection": "process_hooks", "multiprocessing.queues": "process_hooks",
    "multiprocessing.synchronize": "process_hooks", "multiprocessing.pool": "process_hooks",
    "flambeau.tensor.autocast": "casts",
}  # fmt: skip
_HERE = os.path.dirname(__file__) + os.sep
_listeners: list[ref[Detector]] = []
_process: list[Detector] = []  # for `watch_process`
_early: list[Detector] = []  # detectors without a machine, which observe host threads until a machine exists
_originals: dict[tuple[Any, str], Any] = {}
# Modules of sys.modules that are not the program's; each is examined only once.
_foreign: dict[str, ModuleType] = {}
_notes: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def listen(detector: Detector) -> None:
    """Notify `detector` from now on, while it lives."""
    _listeners.append(ref(detector, _remove))
    _install()
    detector.before_certificate = _complete
    detector.threads.on_action = act


def act() -> None:
    """Note that this thread affects others by another way than a message: see Note [Host threads]."""
    for detector in listening():
        detector.threads.act()


def _complete(detector: Detector) -> None:
    """Complete what a detector knows of the host's threads before it makes its certificate.

    The polls of threads that still run are reported as unanswered. What threads did before the detector was attached
    is added.
    """
    name_open_questions = import_module(f"{__package__}.thread_hooks").name_open_questions
    name_open_questions(detector)
    for early in _early:
        name_open_questions(early)
        detector.findings.take_up(early.findings)


def forget(detector: Detector) -> None:
    """Stop notifying a detector. The call is idempotent."""
    _remove(ref(detector))


def listening() -> list[Detector]:
    return [detector for each in list(_listeners) if (detector := each()) is not None]


@contextmanager
def watch() -> Iterator[None]:
    """Record the synchronization of host threads before a machine has a detector, so that certificates cover it."""
    early = _begin_watch()
    try:
        yield
    finally:
        _end_watch(early)


def watch_process() -> None:
    """Record host threads as `watch` does until `unwatch_process` or the end of the process. The call is idempotent."""
    if not _process:
        # Not an entered `watch`: the interpreter would close that after it has cleared this module.
        _process.append(_begin_watch())


def unwatch_process() -> None:
    """Undo `watch_process`. The call is idempotent."""
    while _process:
        _end_watch(_process.pop())


def _begin_watch() -> Detector:
    early = Detector("warn")
    _early.append(early)
    listen(early)
    return early


def _end_watch(early: Detector) -> None:
    _early.remove(early)
    forget(early)


def _remove(gone: ref[Detector]) -> None:
    for each in [each for each in _listeners if each == gone]:
        _listeners.remove(each)
    _uninstall()


def notes_of(thing: Any, kind: Callable[[], T]) -> T:
    """Return the data of class `kind` that is attached to an object of the standard library, creating it if missing."""
    found = _notes.get(thing)
    if found is None:
        found = _notes.setdefault(thing, kind())
    return found


def find_notes(thing: Any) -> Any:
    """Return the data that is attached to an object; None if there is none."""
    return _notes.get(thing)


def all_noted(kind: type[T]) -> Sequence[tuple[Any, T]]:
    return [(thing, notes) for thing, notes in list(_notes.items()) if isinstance(notes, kind)]


def asker(depth: int = 1) -> Site | None:
    """Return the call site `depth` frames above the caller of this function; None if the frame does not belong to the
    program.
    """
    frame = sys._getframe(depth + 1)
    return (frame.f_code, frame.f_lasti) if is_program(frame.f_code) else None


def beyond_standard() -> Site | None:
    """Return the call site of the program from which the caller was called, directly or through the standard library.

    None if the call is Flambeau's.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        is_standard(frame.f_code) or frame.f_code.co_filename.startswith(_HERE)
    ):
        frame = frame.f_back
    return (frame.f_code, frame.f_lasti) if is_program(frame.f_code) else None


# -- changing the standard library ---------------------------------------------------------------------------


def _install() -> None:
    if _finder in sys.meta_path:
        return
    sys.meta_path.insert(0, _finder)
    _change([sys.modules[name] for name in _MODULES if name in sys.modules])


def _uninstall() -> None:
    if _listeners or _finder not in sys.meta_path:
        return
    sys.meta_path.remove(_finder)
    _replace([(owner, name, getattr(owner, name), former) for (owner, name), former in _originals.items()])
    _originals.clear()


def _change(modules: Sequence[ModuleType]) -> None:
    replacements: list[Replacement] = []
    for module in modules:
        ours = import_module(f"{__package__}.{_MODULES[module.__name__]}")
        for owner, names in ours.changes(module).items():
            for name, wrap in names.items():
                original = vars(owner)[name]
                _originals[owner, name] = original
                changed = wrap(original)
                if isinstance(original, FunctionType):
                    changed = wraps(original)(changed)
                replacements.append((owner, name, original, changed))
    _replace(replacements)


def _replace(replacements: Sequence[Replacement]) -> None:
    """Replace attributes of modules, also in the program's modules that have imported them."""
    for owner, name, _, after in replacements:
        setattr(owner, name, after)
    imported = {
        id(before): after for owner, _, before, after in replacements if isinstance(owner, ModuleType)
    }
    if not imported:
        return
    for key, module in list(sys.modules.items()):
        if _foreign.get(key) is module:
            continue
        if not _is_of_program(module):
            _foreign[key] = module
        elif not imported.keys().isdisjoint(map(id, list(vars(module).values()))):
            for name, value in list(vars(module).items()):
                if id(value) in imported:
                    setattr(module, name, imported[id(value)])


def _is_of_program(module: ModuleType) -> bool:
    """Return True if a module belongs to the program."""
    if not isinstance(module, ModuleType):
        return False
    name, file = module.__name__, getattr(module, "__file__", None)
    if name.partition(".")[0] in ("flambeau", "torch"):
        return False
    if file is None:
        return name == "__main__"
    return "-packages" not in file and not is_standard_file(file)


class _Finder(MetaPathFinder):
    """An import hook that patches modules as soon as they are imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Changed(spec.loader)
        return spec


class _Changed(Loader):
    """A loader that patches a module after loading it. The module's `__loader__` stays the original one."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        if _finder in sys.meta_path:
            _change([module])


_finder = _Finder()
