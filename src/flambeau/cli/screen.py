"""`write_screen`: what `flambeau run` says to a person after a program, on one screen."""

from __future__ import annotations

import os
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import TextIO

from flambeau.cli.report import DeviceReport, MachineReport, Recorder
from flambeau.core.sites import place, source
from flambeau.observe.reports import Access, Certificate, Race
from flambeau.runtime.statistics import format_size

WIDTH = 100
_MARGIN = 11  # of the column that labels stand in
_INNER = 20  # the same for entries within an entry
_KINDS = 4  # as many kinds of races are shown whole
_LIKE = 3  # as many further races of a kind are named
_BOLD, _DIM, RED, GREEN, _YELLOW = "1", "2", "1;31", "1;32", "1;33"


def write_screen(recorder: Recorder, file: TextIO, written: list[Path]) -> None:
    """Devices, simulated time, memory, races with their mends. In colour on a terminal (unless NO_COLOR)."""
    screen = Screen(file)
    screen.title("flambeau")
    if not recorder.machines:
        screen.line("The program used no CUDA device.")
    if recorder.children:
        screen.entry(
            "processes", f"{recorder.children} started by the program: what they did is not in this report"
        )
    for machine in recorder.machines:
        _write_machine(machine, screen)
    for path in written:
        screen.entry("written", str(path))
    screen.end()


class Screen:
    """Lines of at most WIDTH columns, labels on their left."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._colours = file.isatty() and not os.environ.get("NO_COLOR")

    def title(self, text: str) -> None:
        self.line(f"── {text} ".ljust(WIDTH, "─"), _DIM)

    def end(self) -> None:
        self.line("─" * WIDTH, _DIM)

    def line(self, text: str = "", style: str = "") -> None:
        print(f"\x1b[{style}m{text}\x1b[0m" if style and self._colours else text, file=self._file)

    def entry(self, label: str, text: str, style: str = "", margin: int = _MARGIN) -> None:
        """A label and its text, wrapped at `margin` beside it."""
        lines = wrap(text, WIDTH - margin, break_long_words=False, break_on_hyphens=False) or [""]
        for i, part in enumerate(lines):
            self.line((label if i == 0 else "").ljust(margin) + part, style)

    def detail(self, label: str, text: str, style: str = "") -> None:
        """An entry within an entry."""
        self.entry(" " * _MARGIN + label, text, style, _INNER)

    def code(self, text: str) -> None:
        """A line of the program: cut, never wrapped."""
        room = WIDTH - _INNER - 2
        self.line(" " * (_INNER + 2) + (text if len(text) <= room else f"{text[: room - 3]}..."), _BOLD)


def _write_machine(machine: MachineReport, screen: Screen) -> None:
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
        _write_races(machine.certificate.races, screen)
        if machine.token:
            screen.line()
            screen.entry("again", f"--schedule {_short(f'replay:{machine.token}')}")
    else:
        _write_certificate(machine.certificate, screen)


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


def _write_certificate(certificate: Certificate, screen: Screen) -> None:
    if certificate.race_free:
        screen.entry("races", "Race-free under every schedule, given that:", GREEN)
    else:
        screen.entry("races", "No race in this run, but not certified for every schedule:", _YELLOW)
    for text in certificate.assumptions if certificate.race_free else certificate.violated:
        screen.entry(" " * _MARGIN + "-", text, margin=_MARGIN + 2)


def _write_races(races: list[Race], screen: Screen) -> None:
    """One entry for each kind: what one missing call lets happen, at many lines and on many devices."""
    kinds = _kinds(races)
    n = len(races)
    of = f", of {len(kinds)} kind{'s' if len(kinds) > 1 else ''}" if len(kinds) < n else ""
    screen.entry("races", f"{n} race{'s' if n > 1 else ''} found{of}", RED)
    for number, kind in enumerate(kinds[:_KINDS], 1):
        screen.line()
        _write_kind(number, kind, screen)
    if len(kinds) > _KINDS:
        screen.line()
        screen.entry("", f"and {len(kinds) - _KINDS} kinds more (--report FILE has them all)")


def _write_kind(number: int, kind: list[Race], screen: Screen) -> None:
    race = kind[0]
    screen.entry(f"{number}.".rjust(_MARGIN - 2), _headline(race))
    for label, side in (("first", race.first), ("second", race.second)):
        screen.detail(label, f"{side.place}  {side.operator} on {side.stream or 'the host'} {side.kind} them")
        if text := source(side.site):
            screen.code(text)
    screen.detail("mend", race.mend.text, GREEN)
    if race.note:
        screen.detail("note", race.note.removeprefix("note:").strip())
    if made := _made(race):
        screen.detail("made", made)
    if len(kind) > 1:
        screen.detail("alike", _alike(kind[1:]))


def _made(race: Race) -> str:
    """Where the memory and the streams come from."""
    parts = [f"the memory at {place(race.allocated)}"] if race.allocated else []
    parts += [f"freed at {place(race.freed)}"] if race.freed else []
    streams = {side.stream: side.stream_site for side in (race.first, race.second)}
    parts += [f"{stream} at {place(site)}" for stream, site in streams.items() if site]
    return ", ".join(parts)


def _headline(race: Race) -> str:
    begin, end = race.range
    what = f"{end - begin:,} bytes of {race.device}"
    often = f" ({race.count:,} times)" if race.count > 1 else ""
    if race.reused:
        return f"{what} were freed and handed out again while a stream may still use them{often}"
    return f"Nothing orders these two uses of {what}{often}"


def _alike(races: list[Race]) -> str:
    named = [f"{r.first.place} with {r.second.place} on {r.device}" for r in races[:_LIKE]]
    rest = f", and {len(races) - _LIKE} more" if len(races) > _LIKE else ""
    return "; ".join(named) + rest


def _kinds(races: list[Race]) -> list[list[Race]]:
    """Races together that lie between streams made at the same lines and end by the same call."""
    order: dict[tuple[str, ...], int] = {}
    for race in races:
        order.setdefault(_kind(race), len(order))
    ranked = sorted(races, key=lambda race: order[_kind(race)])
    return [list(group) for _, group in groupby(ranked, key=_kind)]


def _kind(race: Race) -> tuple[str, ...]:
    return (race.mend.call, _stream(race.first), _stream(race.second), str(race.reused))


def _stream(side: Access) -> str:
    """What the streams of one line of the program have in common."""
    if side.stream_site is not None:
        return place(side.stream_site)
    return "the host" if side.stream is None else "a default stream"


def _short(text: str | None) -> str:
    text = text or ""
    return text if len(text) <= 60 else f"{text[:40]}... (whole: --report FILE)"


def time_text(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= size:
            return f"{ns / size:.3f} {unit}"
    return f"{ns} ns"
