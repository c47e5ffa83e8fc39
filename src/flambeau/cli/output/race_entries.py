"""`write_races`: races in readable form, each kind once, with its lines and the call that fixes it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

from flambeau.cli.output.console import GREEN, MARGIN, RED, YELLOW, Screen

RaceFields = dict[str, Any]
"""A race as in the report's JSON (`race_fields`); with several processes, "process" names the one it is in."""

_KINDS = 4  # kinds of races that are shown in full
_LIKE = 3  # further races of a kind that are named


def write_uncertified(violated: Iterable[str], screen: Screen) -> None:
    """Print that no race was found, but that these assumptions do not hold."""
    screen.entry("races", "No race in this run, but not certified for every schedule:", YELLOW)
    screen.items(violated)


def write_races(races: list[RaceFields], screen: Screen) -> None:
    """Print one entry for each kind of race: all races that one missing call causes, on any lines, devices and
    ranks.
    """
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


def _write_kind(number: int, kind: list[RaceFields], screen: Screen) -> None:
    race, *others = kind
    same_lines = [other for other in others if "process" in other and _lines(other) == _lines(race)]
    elsewhere = [other for other in same_lines if other["process"] != race["process"]]
    screen.entry(f"{number}.".rjust(MARGIN - 2), _headline(race, elsewhere))
    for label in ("first", "second"):
        side = race[label]
        stream = side["stream"] or "the host"
        launched = f" (launched at {side['launched']})" if side["launched"] else ""
        where = f"{side['place']} {side['when']}".rstrip()
        screen.detail(label, f"{where}{launched}  {side['operator']} on {stream} {side['kind']} them")
        if side["source"]:
            screen.code(side["source"])
    _write_fix(race["fix"], screen)
    if race["note"]:
        screen.detail("note", race["note"].removeprefix("note:").strip())
    if created := _describe_creation(race):
        screen.detail("created", created)
    if rest := [other for other in others if other not in same_lines]:
        screen.detail("similar", _similar(rest))


def _write_fix(fix: dict[str, Any], screen: Screen) -> None:
    """Write where the lines go, and the lines as they can be pasted."""
    if not fix["code"]:
        screen.detail("fix", fix["text"], GREEN)
        return
    screen.detail("fix", f"{fix['where']}:", GREEN)
    for line in fix["code"].splitlines():
        screen.code(line)
    if fix["hint"]:
        screen.detail("", fix["hint"])


def _headline(race: RaceFields, elsewhere: list[RaceFields]) -> str:
    by_device: dict[str, list[RaceFields]] = {}
    for each in (race, *elsewhere):
        by_device.setdefault(each["device"], []).append(each)
    named = [_describe_device(device, races) for device, races in by_device.items()]
    rest = [f"{len(named) - _LIKE} devices more"] if len(named) > _LIKE else []
    what = f"{race['nbytes']:,} bytes of {_and(named[:_LIKE] + rest)}"
    if race["reused"]:
        return f"{what} were freed and allocated again while a stream may still use them"
    return f"Nothing orders these two uses of {what}"


def _describe_device(device: str, races: list[RaceFields]) -> str:
    """Return a device with its processes and the number of races there: `cuda:0 (on ranks 0 and 1, 230 times)`.

    The number is left out if each process has the race once.
    """
    count = sum(race["count"] for race in races)
    notes = [_on_processes(races)] if "process" in races[0] else []
    notes += [f"{count:,} times"] if count > len(races) else []
    return f"{device} ({', '.join(notes)})" if notes else device


def _and(texts: list[str]) -> str:
    """Return `a`, `a and b` or `a, b and c`."""
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def _describe_creation(race: RaceFields) -> str:
    """Return the call sites at which the memory and the streams were created."""
    parts = [f"the memory at {race['allocated']}"] if race["allocated"] else []
    parts += [f"freed at {race['freed']}"] if race["freed"] else []
    streams = {side["stream"]: side["stream_created"] for side in (race["first"], race["second"])}
    parts += [f"{stream} at {at}" for stream, at in streams.items() if at]
    return ", ".join(parts)


def _similar(races: list[RaceFields]) -> str:
    """Return further races of a kind: their lines, and the devices or ranks."""
    named: dict[tuple[str, str], list[RaceFields]] = {}
    for race in races:
        named.setdefault((_lines(race), "" if "process" in race else race["device"]), []).append(race)
    texts = [
        f"{lines} {f'on {device}' if device else _on_processes(on)}" for (lines, device), on in named.items()
    ]
    rest = f", and {len(texts) - _LIKE} more" if len(texts) > _LIKE else ""
    return "; ".join(texts[:_LIKE]) + rest


def _lines(race: RaceFields) -> str:
    return f"{race['first']['place']} with {race['second']['place']}"


def _on_processes(races: list[RaceFields]) -> str:
    """Return `on ranks 1 and 2`, or `on process 4711 (worker.py)`."""
    names = sorted({race["process"] for race in races}, key=lambda name: (len(name), name))
    kinds = {name.partition(" ")[0] for name in names}
    if len(names) > 1 and len(kinds) == 1:
        kind = "ranks" if kinds == {"rank"} else "processes"
        return f"on {kind} {_and([name.partition(' ')[2] for name in names])}"
    return f"on {_and(names)}"


def _kinds(races: list[RaceFields]) -> list[list[RaceFields]]:
    """Return the races grouped by kind: between streams created at equal lines, fixed by an equal call."""
    order: dict[tuple[str, ...], int] = {}
    for race in races:
        order.setdefault(_kind(race), len(order))
    ranked = sorted(races, key=lambda race: order[_kind(race)])
    return [list(group) for _, group in groupby(ranked, key=_kind)]


def _kind(race: RaceFields) -> tuple[str, ...]:
    return (race["fix"]["call"], _stream(race["first"]), _stream(race["second"]), str(race["reused"]))


def _stream(side: dict[str, Any]) -> str:
    """Return where a side of a race ran: its stream, by the line that created it, a default stream, or the host."""
    if side["stream_created"] is not None:
        return str(side["stream_created"])
    return "the host" if side["stream"] is None else "a default stream"
