"""The state that the parts of a virtual driver share: profile, scheduler, devices, handles and addresses."""

from __future__ import annotations

import itertools
import uuid
from typing import NoReturn

from flambeau.core.errors import DriverError, HostMemoryError, InvalidAddressError, late
from flambeau.driver.virtual.device import VirtualDevice
from flambeau.driver.virtual.memory.arena import Arena, next_generation
from flambeau.driver.virtual.memory.host_budget import HostBudget
from flambeau.driver.virtual.memory.virtual_ipc import SharedPages
from flambeau.driver.virtual.profile import Profile
from flambeau.driver.virtual.scheduling.scheduler import DeviceState, Scheduler

_UUIDS = uuid.UUID("5a3c1d1e-6f0b-4c57-9d0c-0f1a6be0a11b")  # the namespace of UUIDs of simulated devices


class SimulatedMachine:
    """The virtual GPUs of one driver. All methods run under the driver's lock.

    Attributes:
        profile: The modelled GPU.
        core: The scheduler that runs the commands of all devices.
        devices: The devices.
        budget: Host memory that the devices' data may take; None if they have no data.
        handles: Source of handles of streams and events.
        generation: Identifies this machine's addresses among those of earlier machines.
        closed: True after `close`.
    """

    __slots__ = ("budget", "closed", "core", "devices", "generation", "handles", "profile")

    def __init__(
        self, devices: int, profile: Profile, core: Scheduler, poison: bool, budget: HostBudget | None
    ) -> None:
        self.profile = profile
        self.core = core
        self.handles = itertools.count(1)
        self.generation = next_generation()
        self.budget = budget
        self.devices = [self._open(i, poison) for i in range(devices)]
        self.closed = False

    def _open(self, index: int, poison: bool) -> VirtualDevice:
        profile = self.profile
        arena = Arena(self.generation, index, profile.memory, profile.reserved, poison, self.budget)
        return VirtualDevice(index, arena, next(self.handles), profile.sms)

    def close(self) -> None:
        for device in self.devices:
            device.arena.discard()
            if device.shared_pages is not None:
                device.shared_pages.shut()
        self.closed = True
        self.devices = []

    # -- looking things up ------------------------------------------------------------------------------
    def check_open(self) -> None:
        if self.closed:
            raise DriverError("the virtual machine has been closed")

    def device(self, index: int) -> VirtualDevice:
        self.check_open()
        if not 0 <= index < len(self.devices):
            raise DriverError(
                f"CUDA error: invalid device ordinal: {index}; there are {len(self.devices)} devices"
            )
        return self.devices[index]

    def unknown(self, what: str, handle: int) -> NoReturn:
        self.check_open()
        raise DriverError(
            f"CUDA error: invalid resource handle: {handle} is no {what} of this machine, or destroyed"
        )

    def uuid_of(self, index: int) -> uuid.UUID:
        return uuid.uuid5(_UUIDS, f"{self.profile.name}/{index}")

    def shared_pages(self, device: VirtualDevice) -> SharedPages:
        """Return the memory that a device shares with other processes."""
        if device.shared_pages is None:
            device.shared_pages = SharedPages(device.arena, self.uuid_of(device.index).bytes)
        return device.shared_pages

    # -- addresses --------------------------------------------------------------------------------------
    def owner(self, what: str, ptr: int, nbytes: int) -> VirtualDevice:
        """Return the device that an address belongs to.

        Args:
            what: The call, for the error.
            ptr: The address.
            nbytes: The number of bytes that the call accesses there, for the error.

        Raises:
            InvalidAddressError: If the address belongs to no device of this machine.
        """
        self.check_open()
        generation, index = ptr >> 48, (ptr >> 40 & 255) - 1
        if generation == self.generation and 0 <= index < len(self.devices):
            return self.devices[index]
        where = f"{what}: {nbytes} bytes at {ptr:#x}: the address "
        if generation == 0:
            raise InvalidAddressError(
                where + "is none of a virtual device's; host memory crosses as HostMemory"
            )
        if generation < self.generation:
            raise InvalidAddressError(
                where + f"is of cuda:{index} of a machine that was opened before this one"
            )
        raise InvalidAddressError(where + "is of no device of this machine")

    def range(self, what: str, ptr: int, nbytes: int) -> VirtualDevice:
        """Return the device that owns the bytes, all of which must be allocated."""
        device = self.owner(what, ptr, nbytes)
        device.arena.check(what, ptr, nbytes)
        return device

    def require_memory(self, what: str, ptr: int, nbytes: int) -> VirtualDevice:
        """Return the device that owns the bytes, for a command that accesses them.

        Raises:
            InvalidAddressError: If the bytes are not allocated.
            HostMemoryError: If the host has no memory for them.
        """
        device = self.owner(what, ptr, nbytes)
        device.arena.reach(what, ptr, nbytes)
        return device

    def check_reach(self, what: str, index: int, owner: VirtualDevice, ptr: int, nbytes: int) -> None:
        """Raise InvalidAddressError if kernels of device `index` cannot access the owner's memory."""
        if owner.index != index and owner.index not in self.devices[index].peers:
            raise InvalidAddressError(
                f"{what}: {nbytes} bytes at {ptr:#x} are cuda:{owner.index}'s, and cuda:{index} has no peer "
                "access to them; enable it (peer_enable) or copy them first"
            )


def check_error(state: DeviceState) -> None:
    """Raise a device's error, if it has one. All are sticky but a shortage of the host's memory."""
    if isinstance(state.error, HostMemoryError):
        error, state.error = state.error, None
        state.drop_pending()
        raise late(HostMemoryError(str(error))) from error.__cause__
    if state.error is not None:
        # The error gets no local name here: a frame that holds its error keeps all calling frames alive.
        raise _error_of(state, state.error) from state.error.__cause__


def _error_of(state: DeviceState, first: DriverError) -> DriverError:
    error = late(type(first)(str(first)))
    error.known, state.was_reported = state.was_reported, True
    return error
