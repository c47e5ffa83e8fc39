"""`write_screen`: what `flambeau run` says to a person after a program, on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import TextIO

from flambeau.cli.race_entries import write_races, write_uncertified
from flambeau.cli.report import DeviceReport, MachineReport, Recorder, race_fields
from flambeau.cli.screen import GREEN, Screen, time_text
from flambeau.observe.reports import Certificate
from flambeau.runtime.statistics import format_size


def write_screen(recorder: Recorder, file: TextIO, written: list[Path], failed: bool) -> None:
    """Devices, simulated time, memory, races with their fixes. In colour on a terminal (unless NO_COLOR).

    A program that failed proved something of what it did until then.
    """
    screen = Screen(file)
    screen.title("flambeau")
    if not recorder.machines:
        screen.line("The program used no CUDA device.")
    if recorder.children:
        screen.entry(
            "processes", f"{recorder.children} started by the program: what they did is not in this report"
        )
    for machine in recorder.machines:
        _write_machine(machine, screen, failed)
    for path in written:
        screen.entry("written", str(path))
    screen.end()


def _write_machine(machine: MachineReport, screen: Screen, failed: bool) -> None:
    names = ", ".join(sorted({device.name for device in machine.devices}))
    kind = (
        f"virtual: profile {machine.profile}, schedule {_short(machine.schedule)}"
        if machine.profile
        else "real"
    )
    screen.entry("devices", f"{len(machine.devices)} x {names} ({kind})")
    if machine.time_ns is not None:
        screen.entry("time", f"{time_text(machine.time_ns)} simulated")
    _write_memory(machine.devices, screen)
    if machine.certificate is None:
        screen.entry("races", "not looked for (--races warn or error does)")
    elif machine.certificate.races:
        write_races([race_fields(race) for race in machine.certificate.races], screen)
        if machine.token:
            screen.line()
            screen.entry("again", f"--schedule {_short(f'replay:{machine.token}')}")
    else:
        _write_certificate(machine.certificate, screen, failed)


def _write_memory(devices: list[DeviceReport], screen: Screen) -> None:
    label = "memory"
    for device in devices:
        if device.peak_reserved:
            peak = f"peak {format_size(device.peak_allocated)} allocated, {format_size(device.peak_reserved)} reserved"
            left = f"; {format_size(device.left_allocated)} never freed" if device.left_allocated else ""
            screen.entry(label, f"cuda:{device.index}  {peak}{left}")
            label = ""
    unused = ", ".join(f"cuda:{device.index}" for device in devices if not device.peak_reserved)
    if unused:
        screen.entry(label, f"{unused}  none used")


def _write_certificate(certificate: Certificate, screen: Screen, failed: bool) -> None:
    if certificate.race_free:
        until = " as far as it came" if failed else ""
        screen.entry("races", f"Race-free under every schedule{until}, given that:", GREEN)
        screen.items(certificate.assumptions)
    else:
        write_uncertified(certificate.violated, screen)


def _short(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= 60 else f"{text[:40]}... (whole: --report FILE)"
