"""The effects of commands on the memory of virtual devices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from flambeau.core.host.array_grants import ask_before_arrays
from flambeau.core.host.errstate import Quiet
from flambeau.core.host_arrays import bytes_at
from flambeau.driver.collective_rules import perform
from flambeau.driver.protocol import HostMemory
from flambeau.driver.virtual.collectives.collectives import CollectiveInstance
from flambeau.driver.virtual.executable import VirtualExecutable
from flambeau.driver.virtual.memory.arena import Arena
from flambeau.driver.virtual.simulated_machine import SimulatedMachine


class Contents:
    """The effects of commands on device memory. With `poison`, memory without contents is filled with poison."""

    moves = True  # subclasses without data set False

    def __init__(self, machine: SimulatedMachine, poison: bool) -> None:
        self._machine = machine
        self._poison = poison
        self._quiet = Quiet()
        budget = machine.budget
        self._asking = (
            self._quiet if budget is None else Quiet(partial(ask_before_arrays, budget.grant_array))
        )

    def launch(self, exe: VirtualExecutable, ptrs: Sequence[int], scalars: Sequence[Any]) -> None:
        if self._poison:
            self._touch(ptrs, exe.spans)
        if exe.run_at is not None:
            places = [found[ptr] for found, ptr in zip(exe.addresses, ptrs, strict=True)]
            exe.run_at(places, scalars)
            return
        arrays = [windows[ptr] for windows, ptr in zip(exe.windows, ptrs, strict=True)]
        inputs: list[Any] = arrays[exe.outputs :]
        for place, value in zip(exe.scalars, scalars, strict=True):
            inputs.insert(place, value)
        quiet = self._asking if exe.is_large else self._quiet
        quiet.run(exe.body, arrays[: exe.outputs], inputs)

    def _touch(self, ptrs: Sequence[int], spans: Sequence[int]) -> None:
        for ptr, span in zip(ptrs, spans, strict=True):
            if span:
                self._machine.owner("launch", ptr, span).arena.touch(ptr, span)

    def copy_in(self, arena: Arena, target: int, source: HostMemory) -> None:
        _announce(source)
        np.copyto(_window(arena, target, source.nbytes), bytes_at(source.ptr, source.nbytes))

    def copy_out(self, target: HostMemory, arena: Arena, source: int) -> None:
        _announce(target)
        np.copyto(bytes_at(target.ptr, target.nbytes), _window(arena, source, target.nbytes))

    def copy(self, to: Arena, target: int, origin: Arena, source: int, nbytes: int) -> None:
        np.copyto(_window(to, target, nbytes), _window(origin, source, nbytes))

    def fill(self, arena: Arena, target: int, byte: int, nbytes: int) -> None:
        _window(arena, target, nbytes)[...] = byte

    def meet(self, meeting: CollectiveInstance) -> None:
        perform(meeting.calls, self.numbers, meeting.theirs)

    def numbers(self, ptr: int, nbytes: int) -> np.ndarray[Any, Any]:
        """Return the device memory that a collective reads or writes, as an array."""
        return _window(self._machine.owner("collective", ptr, nbytes).arena, ptr, nbytes)


def _announce(memory: HostMemory) -> None:
    if memory.watch is not None:
        memory.watch.about_to_use(memory)


def _window(arena: Arena, ptr: int, nbytes: int) -> np.ndarray[Any, Any]:
    if arena.poison:
        arena.touch(ptr, nbytes)
    return arena.bytes[ptr - arena.base : ptr - arena.base + nbytes]
