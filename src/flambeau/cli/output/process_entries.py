"""`write_processes`: the screen of ranks and child processes: times, memory, and all races together."""

from __future__ import annotations

from typing import Any

from flambeau.cli.output.console import GREEN, Screen, time_text
from flambeau.cli.output.race_entries import write_races, write_uncertified
from flambeau.runtime.memory.allocator_statistics import format_size

_MOST = 8  # processes shown individually

Named = tuple[str, dict[str, Any]]
"""A process's name and a machine of it, as the report's JSON has it."""


def write_processes(named: list[Named], screen: Screen, failed: bool, each: str) -> None:
    """Print what processes did on their machines. `each` is the word for one process: "rank" or "process".

    For processes that failed or were ended, the certificate covers the part that ran.
    """
    _, first = named[0]
    devices = [device for _, machine in named for device in machine["devices"]]
    names = ", ".join(sorted({device["name"] for device in devices}))
    kind = (
        f"virtual: profile {first['profile']}, schedule {first['schedule']}" if first["profile"] else "real"
    )
    if devices:
        count = max(len(machine["devices"]) for _, machine in named)
        screen.entry("devices", f"{count} x {names} ({kind})")
    for name, machine in named[:_MOST]:
        screen.entry(name, f"{'' if len(name) < 10 else ' '}{_machine_text(machine)}")
    if len(named) > _MOST:
        rest = "ranks" if each == "rank" else "processes"
        screen.entry("", f"and {len(named) - _MOST} {rest} more (--report FILE has them all)")
    _write_races(named, screen, failed, each)


def _machine_text(machine: dict[str, Any]) -> str:
    parts = [] if machine["time_ns"] is None else [f"{time_text(machine['time_ns'])} simulated"]
    parts += [
        f"cuda:{device['index']} peak {format_size(device['peak_allocated'])} allocated, "
        f"{format_size(device['peak_reserved'])} reserved"
        for device in machine["devices"]
        if device["peak_reserved"]
    ]
    return "; ".join(parts) or (
        "used no device" if machine["devices"] else "ended before its report was whole"
    )


def _write_races(named: list[Named], screen: Screen, failed: bool, each: str) -> None:
    certificates = [(name, m["certificate"]) for name, m in named if m["certificate"] is not None]
    races = [{**race, "process": name} for name, certificate in certificates for race in certificate["races"]]
    if not certificates:
        screen.entry("races", "not detected; use --races warn or --races error")
    elif races:
        write_races(races, screen)
    elif all(certificate["race_free"] for _, certificate in certificates):
        until = " as far as they ran" if failed else ""
        screen.entry("races", f"Race-free under every schedule{until}, each {each} by itself", GREEN)
    else:
        write_uncertified(dict.fromkeys(text for _, c in certificates for text in c["violated"]), screen)
