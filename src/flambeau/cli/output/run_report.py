"""`write_screen`: the report of `flambeau run` after a program, on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from flambeau.cli.output.console import GREEN, Screen, error_text, time_text
from flambeau.cli.output.process_entries import write_processes
from flambeau.cli.output.race_entries import write_races, write_uncertified
from flambeau.report.document import Document, machines_of
from flambeau.runtime.memory.allocator_statistics import format_size

_HOST_BOUND = 0.1  # the host limits a program that waits for devices for a smaller share of its time
_TF32 = (
    "Products rounded float32 to TF32 (10 bits of mantissa), as the documentation has it. "
    "--float32-precision highest keeps all bits, as PyTorch 2.13 does."
)


def write_screen(document: Document, file: TextIO, written: list[Path], failed: bool) -> None:
    """Print devices, simulated time, memory, and races with their fixes, in colour where `has_colours`.

    If the program failed, the certificate covers the part that ran.
    """
    screen = Screen(file)
    screen.title("flambeau")
    processes = [(name, machine) for name, machine in machines_of(document) if name]
    if not document["machines"]:
        screen.line(f"The program {'itself ' if processes else ''}used no CUDA device.")
    for machine in document["machines"]:
        _write_machine(machine, screen, failed)
    if processes:
        count = len(document["processes"])
        screen.entry("processes", f"{count} that the program started used CUDA devices, too")
        write_processes(processes, screen, failed, "process")
    for path in written:
        screen.entry("written", str(path))
    screen.end()


def _write_machine(machine: dict[str, Any], screen: Screen, failed: bool) -> None:
    names = ", ".join(sorted({device["name"] for device in machine["devices"]}))
    kind = (
        f"virtual: profile {machine['profile']}, schedule {_short(machine['schedule'])}"
        if machine["profile"]
        else "real"
    )
    screen.entry("devices", f"{len(machine['devices'])} x {names} ({kind})")
    if machine["time_ns"] is not None:
        screen.entry("time", _simulated_time(machine["time_ns"], machine["host_wait_ns"]))
        if machine["time_error"]:
            screen.entry("", error_text(machine["time_error"]))
    if machine.get("rounds_to_tf32"):
        screen.entry("precision", _TF32)
    _write_memory(machine["devices"], screen)
    certificate = machine["certificate"]
    if certificate is None:
        screen.entry("races", "not detected; use --races warn or --races error")
    elif certificate["races"]:
        write_races(certificate["races"], screen)
        if machine["token"]:
            screen.line()
            screen.entry("replay", f"--schedule {_short('replay:' + machine['token'])}")
    else:
        _write_certificate(certificate, screen, failed)


def _simulated_time(time_ns: int, wait_ns: int | None) -> str:
    """Return the simulated time, and which of host and devices limits the program."""
    text = f"{time_text(time_ns)} simulated"
    if not time_ns or wait_ns is None:
        return text
    share = wait_ns / time_ns
    if share < _HOST_BOUND:
        return f"{text}, limited by the host, which waited for the GPUs {share:.0%} of the time"
    return f"{text}; the host waited for the GPUs {share:.0%} of the time"


def _write_memory(devices: list[dict[str, Any]], screen: Screen) -> None:
    label = "memory"
    for device in devices:
        if device["peak_reserved"]:
            allocated, reserved = [format_size(device[f"peak_{what}"]) for what in ("allocated", "reserved")]
            left = device["left_allocated"]
            leaked = f"; {format_size(left)} never freed" if left else ""
            peak = f"peak {allocated} allocated, {reserved} reserved{leaked}"
            screen.entry(label, f"cuda:{device['index']}  {peak}")
            label = ""
    unused = ", ".join(f"cuda:{device['index']}" for device in devices if not device["peak_reserved"])
    if unused:
        screen.entry(label, f"{unused}  none used")


def _write_certificate(certificate: dict[str, Any], screen: Screen, failed: bool) -> None:
    if certificate["race_free"]:
        until = " as far as it ran" if failed else ""
        screen.entry("races", f"Race-free under every schedule{until}, given that:", GREEN)
        screen.items(certificate["assumptions"])
    else:
        write_uncertified(certificate["violated"], screen)


def _short(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= 60 else f"{text[:40]}... (whole: --report FILE)"
