"""The process's machines: the machine in use, the context of each device, lazy initialization.

# Note [Machines]
At most one machine is in use. The environment's is opened on first use. `virtual(...)` opens another in its
place. Inside `with virtual(...)` the machine from before rests: its tensors cannot be used, and when the
block is left it is in use again as it was. A machine that a plain call made stays until the program ends or
the block around it does, so what it replaced is closed when it is first used. Real GPUs do not rest: while
they are open `virtual` is refused.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cache
from importlib import import_module
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from flambeau.core import errors
from flambeau.core.callsite import place, warn_program
from flambeau.core.device import CPU, META, device
from flambeau.core.flags import flags
from flambeau.driver.driver_registry import driver_versions, open_driver, why_no_gpu
from flambeau.driver.protocol import Driver
from flambeau.runtime import current
from flambeau.runtime.device_context import Context
from flambeau.runtime.devices import configuration
from flambeau.runtime.devices.machine import Machine, Watcher, visible_by_default
from flambeau.runtime.hooks import host_work
from flambeau.runtime.memory.host_allocator import HostAllocator
from flambeau.runtime.memory.pinned import NO_ACCELERATOR, PinnedAllocator
from flambeau.runtime.streams.stream import default_stream_of

if TYPE_CHECKING:
    from flambeau.observe.reports import Certificate


def _open_host() -> Context:
    context = Context(CPU, -1, open_driver("host"), 0)
    context.allocator = HostAllocator(context)
    context.default_stream = default_stream_of(context)
    return context


host: Context = _open_host()
_host_driver = host.driver
_at_rest = current.Selection([host.default_stream])  # the selection while no device is open
_closed_subscribers: list[Callable[[], None]] = []
_watchers: list[Watcher] = []
_deferred: list[Callable[[], None]] = []  # calls of `defer` that have not run yet
_lock = threading.RLock()
_machine: Machine | None = None
_meta: Context | None = None  # the meta device, once it is used
_contexts: list[Context] = []  # contexts of the machine in use, once it is initialized
_forked = False  # this process was forked from one whose machine was initialized
_warned = False  # True after the warning that CUDA_VISIBLE_DEVICES changed


def _open_meta() -> Context:
    """Open the meta device. It uses the CPU's stream, because no work is ever enqueued on it."""
    global _meta
    with _lock:
        if _meta is None:
            context = Context(META, -1, open_driver("meta"), 0)
            allocator = import_module("flambeau.runtime.memory.meta_allocator")
            context.allocator = allocator.MetaAllocator(host.default_stream)
            context.default_stream = host.default_stream
            _meta = context
    return _meta


def context_of(where: device) -> Context:
    """Return the context of a device, opened on first use. "cuda" without an index is the current device. Other
    kinds of devices raise as in PyTorch.

    Raises:
        RuntimeError: If there is no CUDA device, or the index is out of range.
    """
    if where is CPU:
        return host
    if where.type == "meta":
        return _meta or _open_meta()
    if where.type != "cuda":
        raise errors.absent_device(where.type)
    index = current.local.device if where.index is None else where.index
    return _contexts[index] if index < len(_contexts) else _open_context(index)


def resolve(where: device) -> device:
    """Return `where` with an index: "cuda" becomes the current CUDA device. The meta device has none."""
    if where.type == "meta":
        return META
    if where.type == "cuda" and where.index is None:
        return device("cuda", current.local.device)
    return where


def require_open(context: Context) -> None:
    """Raise RuntimeError unless the context is that of the CPU, of the meta device, or of the machine in use."""
    if context.index < 0 or (context.index < len(_contexts) and _contexts[context.index] is context):
        return
    raise RuntimeError(errors.FORKED if _forked else errors.MACHINE_CLOSED)


def on_close(closed: Callable[[], None]) -> None:
    """Register a function that is called whenever a machine closes or is suspended, to drop addresses and
    executables.
    """
    _closed_subscribers.append(closed)


def init() -> None:
    """Initialize CUDA: open the machine and create its contexts. Does nothing if CUDA is initialized.

    Raises:
        RuntimeError: If there is not a GPU, or this is a fork of an initialized process.
        ValueError: For a malformed environment variable.
    """
    if _contexts:
        return
    with _lock:
        if _contexts:
            return
        if _forked:
            raise RuntimeError(errors.FORKED)
        machine = _open_machine()
        if machine is None or not machine.visible:
            raise RuntimeError(_why_none(machine))
        machine.start(host.default_stream)
        flags.launch_blocking = configuration.launch_blocking()
        _enter(machine)
        if not machine.entered:
            _replace_outer(machine)
        with ExitStack() as calls:  # all run in their order, even if one raises
            for call in reversed(_deferred):
                calls.callback(call)
            _deferred.clear()


def defer(call: Callable[[], None]) -> None:
    """Call `call` now if CUDA is initialized, else as soon as it is."""
    with _lock:
        if _contexts:
            call()
        else:
            _deferred.append(call)


def watch(watcher: Watcher) -> None:
    """Notify `watcher` of each machine that opens or closes from now on."""
    _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Undo `watch`: `watcher` receives no further calls, not even for machines that are open."""
    _watchers.remove(watcher)


def close_all() -> list[Exception]:
    """Finish and close every machine. Returns the errors of work that no call has reported."""
    problems: list[Exception] = []
    with _lock:
        # the machines that a forked child inherited stay open here
        while _machine is not None and not _machine.closed:
            problems += _close(_machine)
    return problems


def pinned_allocator() -> PinnedAllocator:
    """Return the allocator of pinned host memory, of the machine in use.

    Raises:
        RuntimeError: If there is none.
    """
    if not is_available():
        raise RuntimeError(f"{NO_ACCELERATOR} {errors.HOW_TO_GET_VIRTUAL}")
    init()
    assert _machine is not None
    return _machine.pinned


def host_pinned(ptr: int, nbytes: int) -> bool:
    """Return True if the machine in use has page-locked all of these bytes, and there are any. Requires an initialized
    machine.
    """
    return bool(_contexts) and _contexts[0].driver.host_pinned(ptr, nbytes)


def is_initialized() -> bool:
    """Return True if CUDA is initialized: its devices are open."""
    return bool(_contexts)


def device_count() -> int:
    """Return the number of visible CUDA devices. Creates no context.

    Raises:
        ValueError: For a malformed environment variable.
    """
    machine = _open_machine()
    _warn_if_changed(machine)
    return 0 if machine is None else len(machine.visible)


def is_available() -> bool:
    """Return True if there is a CUDA device. Never raises: a malformed variable leads to a warning and False."""
    try:
        return device_count() > 0
    except (ValueError, RuntimeError, OSError) as error:
        warnings.warn(f"CUDA initialization: {error}", UserWarning, stacklevel=3)
        return False


def is_virtual() -> bool:
    """Return True if the CUDA devices are virtual GPUs. False where there are none."""
    machine = _open_machine()
    return machine is not None and machine.settings.driver == "virtual"


def contexts() -> list[Context]:
    """Return the contexts of the CUDA devices, which are initialized if necessary."""
    init()
    return list(_contexts)


def accelerator() -> Driver:
    """Return the driver of the CUDA devices, which are initialized if necessary."""
    init()
    return _contexts[0].driver


def is_forked() -> bool:
    """Return True if this process was forked from one whose machine was initialized."""
    return _forked


def machine_settings() -> configuration.Settings:
    """Return the settings of the machine in use, or those of the environment. Does not initialize CUDA."""
    machine = _open_machine()
    return configuration.from_environment() if machine is None else machine.settings


def started_at() -> str | None:
    """Return the call site that initialized CUDA; None if CUDA is not initialized."""
    site = None if _machine is None else _machine.started_at
    return None if site is None else place(site)


def bare_driver() -> Any:
    """Return the driver of the CUDA devices without observers. The devices are initialized if necessary."""
    init()
    assert _machine is not None
    return _machine.bare


class VirtualMachine:
    """Virtual GPUs that `flambeau.virtual` opened. At the end of a `with` block they are closed."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    @property
    def driver(self) -> Any:
        """Return the driver below all observers, for the trace hash and the like."""
        return self._machine.bare

    @property
    def closed(self) -> bool:
        return self._machine.closed

    def certificate(self) -> Certificate | None:
        """Return the certificate of the work enqueued on these devices so far; None if races are not checked.

        Commands count from when they are enqueued.
        """
        if self._machine is _machine and self._machine.visible and self._machine.settings.races != "off":
            init()
        detector = getattr(self._machine.driver, "detector", None)
        return None if detector is None else detector.certificate()

    def close(self) -> None:
        """Finish all work and close the devices; their tensors raise when they are used. The call is idempotent."""
        with _lock:
            _close(self._machine)

    def __enter__(self) -> VirtualMachine:
        if self._machine is not _machine:
            raise RuntimeError("these virtual GPUs have been closed, or others were opened after them")
        self._machine.entered = True
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        settings, state = self._machine.settings, "closed" if self.closed else "open"
        what = f"devices={settings.devices} profile={settings.profile} schedule={settings.schedule}"
        return f"<flambeau.virtual {what} {state}>"

    def _repr_html_(self) -> str | None:
        page = self._machine.page
        return None if page is None else page()


def virtual(
    devices: int | None = None,
    profile: str | None = None,
    schedule: str | None = None,
    races: str | None = None,
    poison: bool | None = None,
    data: bool | None = None,
    placement: str | None = None,
    strict: bool | None = None,
) -> VirtualMachine:
    """Open virtual GPUs in place of those in use. Arguments that are None take their value from the environment.

    Args:
        devices: How many (default 2); 0 means that CUDA is not available.
        profile: Which GPU they model, as "a100-40g" (default).
        schedule: "earliest" (default), "random:SEED", "adversarial:SEED", "pct:SEED:DEPTH" or "replay:TOKEN".
        races: "off" (default), "warn" or "error".
        poison: Fill fresh and freed memory with a pattern.
        data: False: shapes and times alone; no kernel runs, no memory is committed, and reading a value raises.
        placement: Which free block serves a request: "default", "pytorch" (the order of PyTorch's allocator) or
            "random:SEED". The results of a race-free program do not depend on it.
        strict: With races, what the host may do to pinned memory unseen withholds the certificate; by default it is
            named among the assumptions.

    Returns a context manager: leaving it closes the machine and resumes the former one. A plain call lasts until
    the next one. See Note [Machines].

    Raises RuntimeError while real GPUs are open; ValueError for a malformed argument.
    """
    global _forked
    settings = configuration.virtual_settings(
        devices, profile, schedule, races, poison, data, placement, strict
    )
    with _lock:
        if _machine is not None and _machine.settings.driver == "cuda" and _contexts:
            raise RuntimeError(
                "flambeau.virtual() was called while real GPUs are open; call it before first use"
            )
        machine = Machine(settings, _host_driver, _watchers)
        _forked = False  # a machine of this process's own
        machine.outer = None if _machine is None or _machine.closed else _machine
        _use(machine)
    return VirtualMachine(machine)


def _open_context(index: int) -> Context:
    """Return the context of a device that is not open yet: the slow part of `context_of`."""
    init()
    if not 0 <= index < len(_contexts):
        raise RuntimeError(errors.invalid_ordinal(index, len(_contexts)))
    return _contexts[index]


current.use(_at_rest)
current.opened_by(_open_context)


def _open_machine() -> Machine | None:
    """Return the machine in use. Without one, open the environment's machine; None if the environment requests none."""
    global _machine
    if _machine is None:
        with _lock:
            if _machine is None:
                _warn_of_unknown_variables()
                settings = configuration.from_environment()
                if settings.driver == "none" or (settings.driver == "cuda" and why_no_gpu()):
                    return None
                _machine = Machine(settings, _host_driver, _watchers)
    return _machine


@cache
def _warn_of_unknown_variables() -> None:
    """Warn once of variables that may be misspelled. Flambeau's commands report them themselves, and the parent of a
    process of `multiprocessing` has done so.

    If a filter makes the warning an error, the text is printed: `torch.cuda.is_available` never raises.
    """
    processes = sys.modules.get("multiprocessing.process")  # every child of `multiprocessing` has imported it
    is_child = processes is not None and processes.parent_process() is not None
    if is_child or any(name.startswith("flambeau.cli") for name in sys.modules):
        return
    for message in configuration.unknown_variables():
        try:
            warn_program(message, UserWarning)
        except UserWarning:
            print(f"flambeau: {message}", file=sys.stderr, flush=True)


def _use(machine: Machine | None) -> None:
    """Make a machine, or none, the one in use."""
    global _machine, _warned
    if _machine is not None:
        _machine.leave()
    _machine = machine
    _warned = False
    _enter(machine)


def _enter(machine: Machine | None) -> None:
    """Make the machine's contexts visible to every thread."""
    global _contexts
    started = machine is not None and machine.selection is not None
    host.driver = machine.host if machine is not None and started else _host_driver
    current.use(machine.selection if machine is not None and machine.selection is not None else _at_rest)
    _contexts = machine.contexts if machine is not None else []
    host_work.use(machine.host_charge if machine is not None and started else None)
    if machine is not None:
        machine.resume()
    for closed in _closed_subscribers:
        closed()


def _close(machine: Machine) -> list[Exception]:
    """Close a machine. If it is in use, its outer machine is resumed; otherwise it is removed from the suspended
    ones.

    What was opened inside a `with` block is closed with it.
    """
    if machine.closed:
        return []
    inner = list(takewhile(lambda m: m is not machine, _chain()))
    closing = [machine]
    if machine.entered or not inner:
        closing = [*inner, machine]
        _use(machine.outer)
    else:
        inner[-1].outer = machine.outer
    problems: list[Exception] = []
    # all steps run even if one raises, such as an observer's warning that is turned into an error
    with ExitStack() as all_of_them:
        for m in reversed(closing):
            all_of_them.callback(_close_into, problems, m)
    return problems


def _close_into(problems: list[Exception], machine: Machine) -> None:
    problems += machine.close()


def _chain() -> Iterator[Machine]:
    """Yield the machine in use and the suspended ones, innermost first."""
    machine = _machine
    while machine is not None:
        yield machine
        machine = machine.outer


def _replace_outer(machine: Machine) -> None:
    """Close the outer machines that no open `with` block will return to."""
    while (outer := machine.outer) is not None and not outer.entered:
        machine.outer = outer.outer
        outer.close()


def _why_none(machine: Machine | None) -> str:
    """Return why there is no device, with a suggestion for each setting that hides devices."""
    also = "" if visible_by_default() else f" {errors.UNSET_VISIBLE}"
    if machine is None:
        is_asked = configuration.from_environment().driver == "cuda"
        because = f"{'FLAMBEAU_DRIVER=cuda: ' if is_asked else ''}{why_no_gpu()}"
        advice = errors.VIRTUAL_INSTEAD if is_asked else errors.HOW_TO_GET_VIRTUAL
        return errors.no_nvidia_driver(because, driver_versions() != (None, None), advice + also)
    if machine.settings.driver == "virtual" and machine.settings.devices == 0:
        return errors.no_gpus("0 devices were requested", errors.MORE_DEVICES + also)
    return errors.no_gpus(f"CUDA_VISIBLE_DEVICES={machine.visible_text!r} leaves none", errors.UNSET_VISIBLE)


def _warn_if_changed(machine: Machine | None) -> None:
    global _warned
    if machine is None or not _contexts or _warned or configuration.visible_text() == machine.visible_text:
        return
    _warned = True
    warnings.warn(
        f"CUDA_VISIBLE_DEVICES was changed to {configuration.visible_text()!r} after CUDA was initialized with "
        f"{machine.visible_text!r}; the change has no effect in this process",
        UserWarning,
        stacklevel=4,
    )


def _after_fork() -> None:
    """Discard the parent's devices in a forked child, which cannot use them."""
    global _lock, _contexts, _forked
    _lock = threading.RLock()
    if not any(machine.contexts for machine in _chain()):
        return
    _forked = True
    for machine in _chain():
        machine.forget(errors.FORKED)
    _contexts = []
    host.driver = _host_driver
    current.use(_at_rest)
    host_work.use(None)
    for closed in _closed_subscribers:
        closed()


def close_quietly() -> None:
    """Finish and close every machine, ignoring errors of unfinished work."""
    with suppress(Exception):
        close_all()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close_quietly)
