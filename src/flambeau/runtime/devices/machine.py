"""`Machine`: an opened accelerator driver and the contexts of its visible devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Protocol

from flambeau import observe
from flambeau.core import errors
from flambeau.core.callsite import Site, caller, warn_program
from flambeau.core.device import device
from flambeau.core.meta import Meta, set_aside, take_up
from flambeau.driver.driver_registry import open_driver
from flambeau.driver.protocol import Driver
from flambeau.runtime import current
from flambeau.runtime.device_context import Context
from flambeau.runtime.devices import configuration
from flambeau.runtime.devices.configuration import Settings
from flambeau.runtime.hooks import launch_deferral
from flambeau.runtime.hooks.host_work import Charge
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_config import from_environment
from flambeau.runtime.memory.blocks import Pool
from flambeau.runtime.memory.pinned import PinnedAllocator
from flambeau.runtime.streams.stream import Stream, default_stream_of
from flambeau.runtime.streams.stream_order import StreamClocks
from flambeau.runtime.streams.wait_reason import wait_reason

_NOT_EXPANDABLE = (
    "expandable_segments not supported on cuda:{}: it has no virtual-memory calls; segments have fixed sizes"
)


class Watcher(Protocol):
    """A subscriber that reports on machines, such as the command line."""

    def before_open(self, machine: Machine) -> None:
        """Handle that the machine's driver is open and no context exists yet. The watcher may wrap `machine.driver`."""

    def after_open(self, machine: Machine) -> None:
        """Handle that the machine's contexts exist and no work was enqueued yet."""

    def before_close(self, machine: Machine) -> None:
        """Handle that the machine is about to close. Its work has finished or was interrupted; contexts and driver
        still work.
        """


class Machine:
    """A driver with its devices, opened with `settings`. `start` creates the contexts on first use.

    `visible` holds the driver's index of each CUDA device. A context of ours costs no driver call but that for
    the default stream's handle: a driver makes its native context when a call first needs one.
    """

    pinned: PinnedAllocator  # set by `start`

    def __init__(self, settings: Settings, host: Driver, watchers: Sequence[Watcher]) -> None:
        self.settings = settings
        self.host = host
        self.observers = watchers
        self.driver = self.bare = _open(settings)  # observers wrap `driver`
        self.visible_text = configuration.visible_text()
        self.visible = _visible(self.driver, self.visible_text)
        self.contexts: list[Context] = []
        self.selection: current.Selection | None = None
        self.started_at: Site | None = None  # the call site that initialized CUDA
        self.closed = False
        self.entered = False  # True inside `with`: leaving it resumes the outer machine
        self.outer: Machine | None = None
        self.page: Callable[[], str] | None = None  # the HTML that a notebook shows for the machine
        self._metas: list[Meta] = []
        self._watch = ExitStack()
        if settings.races != "off":  # synchronization of host threads before the first call counts, too
            self._watch.enter_context(import_module("flambeau.observe.handovers").watch())

    def start(self, host_stream: Stream) -> None:
        """Create the contexts. If races are to be found, their driver is wrapped in observers."""
        if self.settings.races != "off":
            self.driver, self.host = observe.attach_detector(
                self.driver,
                self.host,
                races=self.settings.races,
                visible=self.visible,
                strict=self.settings.strict,
                select=_selection,
            )
        for watcher in self.observers:
            watcher.before_open(self)
        self.started_at = caller()
        contexts = []
        policy, orders = from_environment(), StreamClocks()
        self.pinned = PinnedAllocator(self.driver, policy.pinned_cap, orders)
        for index, driver_index in enumerate(self.visible):
            context = Context(device("cuda", index), index, self.driver, driver_index, orders)
            if self.settings.driver == "virtual":
                context.clock = self.bare.time_ns  # type: ignore[attr-defined]
            if policy.expandable and not self.driver.range_page(driver_index):
                warn_program(_NOT_EXPANDABLE.format(index), UserWarning)
            context.allocator = allocator = CachingAllocator(context, policy, self.settings.placement)
            allocator.oom_advice = _suggest_settings
            context.default_stream = default_stream_of(context)
            contexts.append(context)
        self.selection = current.Selection([*[c.default_stream for c in contexts], host_stream])
        self.contexts = contexts
        for watcher in self.observers:
            watcher.after_open(self)

    @property
    def host_charge(self) -> Charge | None:
        """Return the subscriber that counts host work; None if the machine does not simulate the host's time."""
        return getattr(self.bare, "host_work", None)

    def leave(self) -> None:
        """Suspend the machine: its objects raise until `resume`."""
        launch_deferral.settle("other devices are opened")
        self._metas = set_aside()
        for context in self.contexts:
            context.rest(errors.MACHINE_CLOSED)

    def resume(self) -> None:
        """Resume the suspended machine."""
        take_up(self._metas)
        self._metas = []
        for context in self.contexts:
            context.resume()

    def close(self) -> list[Exception]:
        """Finish all work and free everything. Returns the errors of work that no call has reported."""
        if self.closed:
            return []
        launch_deferral.settle("the devices are closed")
        self.closed = True
        # this also runs after an interrupt, or if an observer's warning is turned into an error
        with ExitStack() as then:
            then.callback(self._watch.close)
            then.callback(self.driver.close)
            then.callback(self.forget, errors.MACHINE_CLOSED)
            then.callback(self._notify_observers)
            return self._finish()

    def _notify_observers(self) -> None:
        if self.contexts:
            for watcher in self.observers:
                watcher.before_close(self)

    def _finish(self) -> list[Exception]:
        problems: list[Exception] = []
        with wait_reason(str, "the machine is closed: its last work is waited for"):
            for context in self.contexts:
                try:
                    self.driver.device_sync(context.driver_index)
                except RuntimeError as error:
                    if not getattr(error, "known", False):  # otherwise a call has already reported the error
                        problems.append(error)
        return problems

    def forget(self, why: str) -> None:
        """Close the contexts without calling the driver, as a forked child must."""
        self.closed = True
        if self.contexts:
            self.pinned.close()
        for context in self.contexts:
            allocator = context.allocator
            if isinstance(allocator, CachingAllocator) and allocator.recording is not None:
                allocator.recording.end()
            context.close(why)


def _selection() -> tuple[int, tuple[int, ...]]:
    """Return this thread's current device, and the handles of each device's current stream."""
    return current.local.device, tuple([stream.handle for stream in current.local.streams[:-1]])


def _suggest_settings(allocator: CachingAllocator, pool: Pool, size: int) -> str:
    """Return the OOM suggestion of a failed request. The module is imported here because it is seldom needed."""
    found: str = import_module("flambeau.runtime.memory_reports.oom_advice").suggest_settings(
        allocator, pool, size
    )
    return found


def _open(settings: Settings) -> Driver:
    if settings.driver == "cuda":
        return open_driver("cuda", kernel_cache=configuration.kernel_cache())
    chosen = {"devices": settings.devices, "profile": settings.profile, "schedule": settings.schedule}
    if settings.poison is not None:
        chosen["poison"] = settings.poison
    try:
        return open_driver(settings.driver if settings.data else "shapes", **chosen)
    except (ValueError, OSError) as error:
        if not settings.said:
            raise
        raise ValueError(f"{error} (the environment says {', '.join(settings.said)})") from None


def _visible(driver: Driver, text: str | None) -> list[int]:
    """Return the driver's index of each CUDA device. CUDA itself leaves out real devices that a program must not
    see.
    """
    if driver.name == "cuda":
        return list(range(driver.device_count()))
    return configuration.visible_devices(text, _uuids(driver))


def visible_by_default() -> int:
    """Return the number of virtual GPUs that a program without options sees: CUDA_VISIBLE_DEVICES may hide some."""
    driver = open_driver("virtual", devices=configuration.DEVICES, profile=configuration.PROFILE)
    try:
        return len(_visible(driver, configuration.visible_text()))
    finally:
        driver.close()


def _uuids(driver: Driver) -> list[str]:
    """Return each device's UUID in the form that CUDA_VISIBLE_DEVICES uses."""
    uuids = [driver.device_properties(i).uuid for i in range(driver.device_count())]
    return [uuid if uuid.startswith("GPU-") else f"GPU-{uuid}" for uuid in uuids]
