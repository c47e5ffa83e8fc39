"""Launches of kernels and host functions on virtual GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.callsite import caller
from flambeau.core.errors import DriverError
from flambeau.core.host.host_memory import require_space
from flambeau.driver.protocol import Launch
from flambeau.driver.virtual import cost
from flambeau.driver.virtual.capture import Captures
from flambeau.driver.virtual.command_effects import Contents
from flambeau.driver.virtual.executable import VirtualExecutable
from flambeau.driver.virtual.host_time import HostClock
from flambeau.driver.virtual.scheduling import scheduler
from flambeau.driver.virtual.scheduling.driver_lock import Gate
from flambeau.driver.virtual.scheduling.scheduler import UNLIMITED, Command
from flambeau.driver.virtual.simulated_machine import SimulatedMachine, check_error
from flambeau.driver.virtual.streams import Queues


class Launches:
    """The launches of a machine. `launch` takes the driver's lock itself, because callers bind it directly."""

    def __init__(
        self,
        machine: SimulatedMachine,
        lock: Gate,
        queues: Queues,
        captures: Captures,
        contents: Contents,
        host: HostClock,
    ) -> None:
        self._machine, self._lock, self._queues, self._captures = machine, lock, queues, captures
        self._core, self._profile, self._streams = machine.core, machine.profile, queues.streams
        self._run, self._host = contents.launch, host

    def load(self, launch: Launch, index: int) -> VirtualExecutable:
        self._machine.device(index)
        require_space(f"cuda:{index}: '{launch.kernel.name}'")
        profile = self._profile
        launch = launch.with_(capability=(profile.major, profile.minor))
        return VirtualExecutable(launch, index, profile, self._machine.owner, self._host.costs)

    def launch(
        self, exe: VirtualExecutable, ptrs: Sequence[int], scalars: Sequence[Any], stream: int
    ) -> None:
        with self._lock:
            queue = self._streams.get(stream) or self._queues.stream(stream)
            index = queue.index
            if exe.index != index:
                raise DriverError(
                    f"launch: '{exe.name}' was loaded for cuda:{exe.index}, stream {stream} is cuda:{index}'s"
                )
            if queue.device.error is not None:
                check_error(queue.device)
            machine = self._machine
            device = machine.devices[index]
            first, end = device.arena.hot
            for ptr, span in zip(ptrs, exe.spans, strict=True):
                if (ptr < first or ptr + span > end) and span:
                    owner = machine.require_memory(exe.name, ptr, span)
                    machine.check_reach(exe.name, index, owner, ptr, span)
            if exe.copies and machine.budget is not None:
                machine.budget.require(exe.name, index, exe.copies)
            work = exe.work if exe.cycles is None else cost.cycles_ns(exe.cycles(scalars), self._profile)
            command = Command(
                scheduler.KERNEL, exe.name, queue, exe.nbytes, device.processors, exe.sms, exe.start_ns,
                work, self._run, (exe, ptrs, scalars), exe.code,
            )  # fmt: skip
            if exe.may_fail:
                command.site = caller(1)
            core = self._core
            host = self._host
            core.now += host.library_launch if host.library_calls else exe.host_ns
            if self._captures.of:
                self._queues.enqueue(command)
            else:
                core.enqueue(command)

    def host_call(self, call: Callable[[], None], stream: int) -> None:
        queue = self._queues.ready(stream)
        costs = self._profile.costs
        self._core.now += self._host.costs.calls["host_call"]
        name = getattr(call, "__qualname__", "host function")
        self._queues.put(scheduler.HOST_CALL, name, queue, 0, UNLIMITED, costs.host_call_ns, 0, call, ())
