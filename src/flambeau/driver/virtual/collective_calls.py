"""The driver's collective calls: the checks of each contribution and the command that a collective becomes.

Note [Collective instances] in collectives.py explains how contributions are paired.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence

from flambeau.core.callsite import caller
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.driver.collective_rules import check, spans
from flambeau.driver.protocol import Collective
from flambeau.driver.virtual.capture import Captures
from flambeau.driver.virtual.collectives.collectives import (
    CollectiveInstance,
    Member,
    Outside,
    VirtualCommunicators,
)
from flambeau.driver.virtual.command_effects import Contents
from flambeau.driver.virtual.scheduling.scheduler import SimulatedStream
from flambeau.driver.virtual.simulated_machine import SimulatedMachine, check_error
from flambeau.driver.virtual.streams import Queues


class Nccl:
    """The collectives of a machine. `outside` returns the transport to members in other processes, or None."""

    def __init__(
        self,
        machine: SimulatedMachine,
        queues: Queues,
        captures: Captures,
        contents: Contents,
        comms: VirtualCommunicators,
        outside: Callable[[], Outside | None],
    ) -> None:
        self._machine, self._queues, self._captures = machine, queues, captures
        self._contents, self._comms, self._outside = contents, comms, outside
        self._ids = itertools.count(1)

    # -- communicators ------------------------------------------------------------------------------------
    def new_id(self) -> bytes:
        self._machine.check_open()
        text = f"flambeau:{os.getpid()}:{self._machine.generation}:{next(self._ids)}"
        return text.encode().ljust(128, b"\0")

    def create(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int]],
        called: Sequence[int],
        name: str,
    ) -> list[int]:
        machine = self._machine
        brought = [(rank, next(machine.handles), machine.device(index).state) for rank, index in members]
        machine.core.now += machine.profile.costs.alloc_ns
        self._comms.outside = self._outside()
        return self._comms.create(unique, size, brought, called, name)

    def error(self, comm: int) -> str | None:
        member = self._comms.member(comm)
        error = member.state.error
        return member.comm.failed or (None if error is None else str(error))

    # -- calls --------------------------------------------------------------------------------------------
    def call(self, parts: Sequence[tuple[int, Collective, int]]) -> None:
        """Enqueue contributions (member, call, queue) as one group."""
        found = [
            (self._comms.member(comm), call, self._queues.stream(stream)) for comm, call, stream in parts
        ]
        for member, call, queue in found:
            self._check(member, call, queue)
        self._machine.core.now += self._machine.profile.costs.collective_ns
        self._comms.queue(found, self._meet, caller())

    def _check(self, member: Member, call: Collective, queue: SimulatedStream) -> None:
        """Raise DriverError if a contribution is invalid, regardless of other contributions."""
        if member.comm.failed is not None:
            raise DriverError(member.comm.failed)
        check_error(queue.device)
        if queue.device is not member.state:
            raise DriverError(
                f"{call.kind}: rank {member.rank} is cuda:{member.state.index}, stream {queue.handle} is "
                f"cuda:{queue.index}'s"
            )
        if queue in self._captures.of:
            raise NotSupportedError(f"{call.kind}: virtual GPUs capture no collectives into graphs")
        check(call, member.rank, member.comm.size)
        for access in spans(call, member.rank, member.comm.size):
            if access is not None and access[1]:
                owner = self._machine.require_memory(call.kind, *access)
                self._machine.check_reach(call.kind, queue.index, owner, *access)

    def _meet(self, meeting: CollectiveInstance) -> None:
        if meeting.absent:  # the communicator has failed
            return
        try:
            for error in [state.error for state in meeting.states if state.error is not None]:
                raise DriverError(str(error))
            self._contents.meet(meeting)
        # The error belongs to no single device, so it becomes an error of all devices that take part.
        except Exception as error:
            for state in meeting.states:
                if state.error is None:
                    state.error = DriverError(
                        f"NCCL error: remote process exited or there was a network error: {meeting}: {error}"
                    )
