"""Deadlock reports: the chain of waits, with the program's call sites, when the host waits and no command can
run.

Waits and records have call sites (`Command.site`). The first command of a queue blocks the rest of that
queue, so the report names only the first commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flambeau.core.callsite import caller, place

if TYPE_CHECKING:
    from flambeau.driver.virtual.scheduling.scheduler import Command, DeviceState, SimulatedStream

_MOST = 12  # queues that the report lists one by one


def deadlock(target: SimulatedStream | DeviceState | Command) -> str:
    """Return the report of a deadlock: the chain of waits from the host to the command that never runs, then other
    blocked queues.
    """
    head = f"deadlock: the host waits for {target} at {place(caller())}, and no command can run"
    return "\n  ".join([head, *_stuck(target)])


def waiting(target: SimulatedStream | DeviceState | Command) -> str:
    """Return the text about one rank for a report to which the caller adds the call site."""
    return "\n  ".join([f"the host waits for {target}, and no command can run", *_stuck(target)])


def asked_in_vain(target: SimulatedStream | DeviceState | Command, others: list[str]) -> str:
    """Return the report for a program that polls forever. `others` describes the other ranks."""
    head = f"deadlock: the program asks without end at {place(caller())} whether work is done, and no command can run"
    return "\n  ".join([head, *_stuck(target), *others])


def _stuck(target: SimulatedStream | DeviceState | Command) -> list[str]:
    chain, circle = _chain(target.head)
    devices = {head.stream.device: None for head in chain}
    stuck = chain | {head: None for device in devices for head in device.heads()}
    lines = [_describe_wait(head) for head in list(stuck)[:_MOST]]
    if circle is not None:
        lines.insert(
            min(len(chain), _MOST),
            f"and so back to {circle.stream}: they wait for each other in a circle",
        )
    if len(stuck) > _MOST:
        lines.append(f"and {len(stuck) - _MOST:,} streams more, which can run nothing either")
    return lines


def _chain(command: Command | None) -> tuple[dict[Command, None], Command | None]:
    """Return the first commands of the queues that wait for each other, and the command that closes a cycle."""
    chain: dict[Command, None] = {}
    while command is not None:
        head = command.head
        if head in chain:
            return chain, head
        chain[head] = None
        awaited = _first_unfinished_wait(head)
        # Any other command is in no queue.
        here = awaited is not None and (awaited.seq >= 0 or awaited.absent)
        command = awaited if here else None
    return chain, None


def _first_unfinished_wait(command: Command) -> Command | None:
    return next((other for other in command.waits if not other.done), None)


def _describe_wait(head: Command) -> str:
    return f"{_with_line(head)} waits for {head.absent or _with_line(_first_unfinished_wait(head))}"


def _with_line(command: Command | None) -> str:
    if command is None:
        return "something outside this driver"
    return f"{command} at {place(command.site)}" if command.site is not None else str(command)
