"""Run every pair on virtual GPUs: is the bug found in one run, is the fixed program certified, do values go wrong?"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from runpy import run_path
from typing import Any

from flambeau.cli import finder
from flambeau.observe.reports import Certificate
from flambeau.runtime import system
from flambeau.testing.explore import explore

PAIRS = Path(__file__).parent / "pairs"
SCHEDULE, SCHEDULES = "random:0", 20

HEAD = """# StreamBugs: the scorecard

`streambugs/pairs/` holds {count} bugs of public programs, each as a buggy and a fixed program of under 30 lines, with
the thread that reports it. Each half runs once on virtual GPUs, under `random:0`, with the race detector on; "wrong
values" counts the different outcomes, beside the expected one, that the explorer then sees in up to {schedules} orders.
This page is written by `python -m streambugs --page > docs/streambugs.md`; a test compares it.

**Found {found} of {count}, missed {missed}; {alarms} false alarms on {count} fixed programs, {certified} of them
certified race-free under every schedule.**

A bug without wrong values is still a race. Where the host's own access races with a copy, a virtual GPU gives the same
wrong bytes in every order, for it runs a copy when the host waits; elsewhere the order happens not to show.

What the detector costs per operation is measured by `bench/races.py`. PyTorch's CUDA sanitizer needs a GPU and has not
been run on the corpus yet. Lifetimes of interprocess (IPC) memory are not in it: virtual GPUs have no IPC.

| Bug | Kind | Thread | Found | Races | Wrong values | Fixed |
|---|---|---|---|---|---|---|
"""


@dataclass
class Score:
    """One pair. `wrong` counts other outcomes of the buggy half than its first; `fixed` is the fixed half's report."""

    name: str
    kind: str
    thread: str
    races: int
    wrong: int
    fixed: Certificate
    agrees: bool

    @property
    def found(self) -> bool:
        return self.races > 0

    @property
    def alarm(self) -> bool:
        return bool(self.fixed.races)

    @property
    def row(self) -> str:
        place = (
            self.thread.removeprefix("https://github.com/").replace("/pull/", "#").replace("/issues/", "#")
        )
        fixed = "false alarm" if self.alarm else "certified" if self.fixed.race_free else "no race"
        found = "yes" if self.found else "**no**"
        link = f"[{self.name}](../streambugs/pairs/{self.name}.py)"
        return f"| {link} | {self.kind} | [{place}]({self.thread}) | {found} | {self.races} | {self.wrong} | {fixed} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m streambugs", description=__doc__)
    parser.add_argument("--page", action="store_true", help="print the scorecard as Markdown")
    parser.add_argument("pairs", nargs="*", help="names of pairs; all of them by default")
    options = parser.parse_args(arguments)
    finder.install()
    scores = [
        score(path) for path in sorted(PAIRS.glob("*.py")) if not options.pairs or path.stem in options.pairs
    ]
    print(page(scores) if options.page else table(scores))
    return 0 if all(s.found and not s.alarm and s.agrees for s in scores) else 1


def score(path: Path) -> Score:
    module = run_path(str(path))
    program, text = module["program"], module["__doc__"]
    facts = dict(line.split(": ", 1) for line in text.splitlines() if line.startswith(("Kind: ", "Thread: ")))
    buggy, fixed = certificate(partial(program, False)), certificate(partial(program, True))
    explored = [explore(partial(program, half), SCHEDULES, shrink=False) for half in (False, True)]
    wrong = explored[0].outcomes - 1
    return Score(path.stem, facts["Kind"], facts["Thread"], len(buggy.races), wrong, fixed, explored[1].ok)


def certificate(program: Any) -> Certificate:
    """What one run under the corpus's schedule proves."""
    with system.virtual(devices=2, schedule=SCHEDULE, races="warn"):
        program()
        driver: Any = system.accelerator()
        for index in range(2):
            driver.device_sync(index)
        found: Certificate = driver.detector.certificate()
        return found


def table(scores: list[Score]) -> str:
    lines = [
        f"{s.name:36} {s.races} races, {s.wrong} wrong outcomes; fixed: {str(s.fixed).splitlines()[0]}"
        for s in scores
    ]
    return "\n".join([*lines, summary(scores)])


def summary(scores: list[Score]) -> str:
    found, alarms = sum(s.found for s in scores), sum(s.alarm for s in scores)
    return f"{found} of {len(scores)} found, {alarms} false alarms"


def page(scores: list[Score]) -> str:
    head = HEAD.format(
        count=len(scores), schedules=SCHEDULES, found=sum(s.found for s in scores),
        missed=sum(not s.found for s in scores), alarms=sum(s.alarm for s in scores),
        certified=sum(s.fixed.race_free for s in scores),
    )  # fmt: skip
    return head + "\n".join(s.row for s in scores)


if __name__ == "__main__":
    sys.exit(main())
