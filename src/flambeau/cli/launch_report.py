"""What `flambeau launch` says after a run: the ranks on one screen, from the reports that each has written."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from flambeau.cli.race_entries import write_races, write_uncertified
from flambeau.cli.screen import GREEN, Screen, time_text
from flambeau.runtime.statistics import format_size

REPORT = "report.json"
_MOST = 8  # ranks shown one by one


def read_reports(folder: Path, first: int) -> list[dict[str, Any]]:
    """Of the last attempt, of this node's ranks from `first` on: each own report, with "rank" and "local_rank".

    Ranks that were ended have none.
    """
    attempts = sorted(folder.glob("attempt_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    found = []
    for path in sorted(
        attempts[-1].glob(f"*/{REPORT}") if attempts else (), key=lambda p: int(p.parent.name)
    ):
        with suppress(OSError, ValueError):  # it was ended while it wrote
            local_rank = int(path.parent.name)
            told = json.loads(path.read_text())
            found.append({"rank": first + local_rank, "local_rank": local_rank, **told})
    return found


def write_ranks(reports: list[dict[str, Any]], file: TextIO, written: list[Path], failed: bool) -> None:
    """Devices, times, memory and races of all ranks of this node. A rank's first machine stands for it.

    Ranks that failed, or were ended for it, proved something of what they did until then.
    """
    screen = Screen(file)
    screen.title("flambeau launch")
    used = [(report["rank"], report["machines"][0]) for report in reports if report["machines"]]
    if not used:
        screen.line("No rank used a CUDA device.")
    else:
        _write_machines(used, screen, failed)
    for path in written:
        screen.entry("written", str(path))
    screen.end()


def _write_machines(used: list[tuple[int, dict[str, Any]]], screen: Screen, failed: bool) -> None:
    _, first = used[0]
    names = ", ".join(sorted({device["name"] for _, machine in used for device in machine["devices"]}))
    kind = (
        f"virtual: profile {first['profile']}, schedule {first['schedule']}" if first["profile"] else "real"
    )
    screen.entry("devices", f"{len(first['devices'])} x {names} ({kind})")
    for rank, machine in used[:_MOST]:
        screen.entry(f"rank {rank}", _rank_text(machine))
    if len(used) > _MOST:
        screen.entry("", f"and {len(used) - _MOST} ranks more (--report FILE has them all)")
    _write_races(used, screen, failed)


def _rank_text(machine: dict[str, Any]) -> str:
    parts = [] if machine["time_ns"] is None else [f"{time_text(machine['time_ns'])} simulated"]
    parts += [
        f"cuda:{device['index']} peak {format_size(device['peak_allocated'])} allocated, "
        f"{format_size(device['peak_reserved'])} reserved"
        for device in machine["devices"]
        if device["peak_reserved"]
    ]
    return "; ".join(parts) or "used no device"


def _write_races(used: list[tuple[int, dict[str, Any]]], screen: Screen, failed: bool) -> None:
    certificates = [
        (rank, machine["certificate"]) for rank, machine in used if machine["certificate"] is not None
    ]
    races = [{**race, "rank": rank} for rank, certificate in certificates for race in certificate["races"]]
    if not certificates:
        screen.entry("races", "not looked for (--races warn or error does)")
    elif races:
        write_races(races, screen)
    elif all(certificate["race_free"] for _, certificate in certificates):
        until = " as far as they came" if failed else ""
        screen.entry("races", f"Race-free under every schedule{until}, each rank in itself", GREEN)
    else:
        write_uncertified(dict.fromkeys(text for _, c in certificates for text in c["violated"]), screen)
