"""Run every pair on virtual GPUs: is the bug found in one run, is the fixed program certified, do values go wrong?"""

from __future__ import annotations

import argparse
import gc
import json
import linecache
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from runpy import run_path
from tempfile import TemporaryDirectory
from typing import Any

from flambeau.cli import import_hook
from flambeau.observe.reports import Certificate, Race
from flambeau.report.fix_diff import apply_edits
from flambeau.runtime import system
from flambeau.testing.explore import explore

PAIRS = Path(__file__).parent / "pairs"
ANSWERS = Path(__file__).parent / "gpu.json"
SCHEDULE, SCHEDULES = "random:0", 20
ROUNDS = 3  # of inserting what reports propose: a race may hide another
FACTS = ("Kind: ", "Thread: ", "Limit: ")

HEAD = """# StreamBugs: the scorecard

This page shows which real stream bugs Flambeau finds, for people who compare race detectors.
`streambugs/pairs/` holds {count} bugs of public programs, each as a buggy and a fixed program of
under 30 lines, with the thread that reports it.

```
python -m streambugs                            # runs every pair on virtual GPUs
python -m streambugs --page > docs/streambugs.md
```

**Found {found} of {count}, named {named}, missed {missed}. {alarms} false alarms on {count} fixed
programs, {certified} of them certified race-free under every schedule. With the proposed lines
inserted, {repaired} of these {found} buggy programs have no race.**

## How to read the table

Each program runs once on virtual GPUs, under `random:0`, with race detection.

| column | meaning |
|---|---|
| Found | "yes": the buggy program is reported. "named": the certificate names the lines of the view, the \
copy and the wait among its [assumptions](determinism.md#pinned-memory-and-views), and `--strict` withholds \
it. The host reads a copy's target too early through a NumPy view, and such a read cannot be seen |
| Wrong values | the number of different outcomes, in addition to the expected one, in up to {schedules} \
orders |
| Fixed | the report of the fixed program: "certified", "no race" (without certificate), or "false alarm" |
| Proposed fix | the call that the report proposes, and whether a race remains with the proposed lines \
inserted (`flambeau run --apply-fixes` prints them as a diff) |
| PyTorch's sanitizer, On a GPU | answers on a GPU for the buggy and the fixed program |

- A bug without wrong values is still a race. If the host's access races with a copy, a virtual GPU
  gives the same wrong bytes in every order, because it runs copies when the host waits. In other
  bugs, none of the explored orders changes a value.
- In the IPC programs another stream of the same process opens the handle, so both sides are seen.
  In two processes each sees only itself. Because memory leaves the process, their fixed programs
  get "no race" without a certificate.
- `bench/races.py` measures the detector's cost per operation.

{gpu}

## Results

| Bug | Kind | Thread | Found | Races | Wrong values | Fixed | Proposed fix |{columns}
|---|---|---|---|---|---|---|---|{rules}
"""

NOT_YET = """PyTorch's CUDA sanitizer needs a GPU: `bench/streambugs_gpu.py` runs the corpus under it, and under
Flambeau over the real driver. There are no results yet."""

GPU = """`bench/streambugs_gpu.py` ran {count} of these programs under PyTorch {torch} with its CUDA
sanitizer, and under Flambeau over the real driver. CUDA does not allow a process to open its own
handles, so PyTorch cannot run the IPC programs.

Machine: {gpus} {gpu}.

| | bugs reported | false alarms | `a + b`, without detection | with detection |
|---|---|---|---|---|
| PyTorch's CUDA sanitizer | {sanitizer} of {count} | {alarms} | {torch_us:.1f} us | {sanitizer_us:.1f} us |
| Flambeau | {flambeau} of {count} | {flambeau_alarms} | {flambeau_us:.1f} us | {races_us:.1f} us |"""


@dataclass
class Score:
    """The result of a run for one pair.

    Attributes:
        races: Number of races that the buggy half's report has.
        wrong: Number of outcomes of the buggy half in other orders that differ from the expected one.
        fixed: Report of the fixed half.
        agrees: True if every order of the fixed half gives the same outcome.
        proposed: The calls that the buggy half's report proposes.
        repaired: True if the buggy half has no races with the proposed lines inserted.
        named: True if the pair states a limit, and its buggy half is certified, but not with `--strict`.
    """

    name: str
    kind: str
    thread: str
    races: int
    wrong: int
    fixed: Certificate
    agrees: bool
    proposed: str
    repaired: bool
    named: bool = False

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
        found = "yes" if self.found else "named" if self.named else "**no**"
        link = f"[{self.name}](../streambugs/pairs/{self.name}.py)"
        repair = f"{self.proposed}: {'no race' if self.repaired else 'still races'}" if self.races else "-"
        cells = (link, self.kind, f"[{place}]({self.thread})", found, self.races, self.wrong, fixed, repair)
        return f"| {' | '.join(map(str, cells))} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m streambugs", description=__doc__)
    parser.add_argument("--page", action="store_true", help="print the scorecard as Markdown")
    parser.add_argument("pairs", nargs="*", help="names of pairs; all of them by default")
    options = parser.parse_args(arguments)
    import_hook.install()
    gc.freeze()  # what is imported stays: explorations collect garbage before they begin
    scores = [
        score(path) for path in sorted(PAIRS.glob("*.py")) if not options.pairs or path.stem in options.pairs
    ]
    print(page(scores) if options.page else table(scores))
    return 0 if all((s.found or s.named) and not s.alarm and s.agrees for s in scores) else 1


def score(path: Path) -> Score:
    module = run_path(str(path))
    program, text = module["program"], module["__doc__"]
    facts = dict(line.split(": ", 1) for line in text.splitlines() if line.startswith(FACTS))
    buggy, fixed = certificate(partial(program, False)), certificate(partial(program, True))
    explored = [explore(partial(program, half), SCHEDULES, shrink=False) for half in (False, True)]
    wrong = explored[0].outcomes - 1
    named = "Limit" in facts and buggy.race_free and not certificate(partial(program, False), True).race_free
    proposed = ", ".join(dict.fromkeys([f"`{race.fix.call}`" for race in buggy.races]))
    return Score(
        path.stem, facts["Kind"], facts["Thread"], len(buggy.races), wrong, fixed, explored[1].ok, proposed,
        is_repaired(path, buggy.races), named,
    )  # fmt: skip


def is_repaired(path: Path, races: Sequence[Race]) -> bool:
    """Return True if the buggy half has races, and none with the lines inserted that its reports propose."""
    text = path.read_text()
    with TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        for _ in range(ROUNDS if races else 0):
            edits = [edit for race in races for edit in race.fix.edits]
            text = "".join(apply_edits(text.splitlines(keepends=True), edits))
            copy.write_text(text)
            linecache.checkcache(str(copy))
            races = certificate(partial(run_path(str(copy))["program"], False)).races
            if not races:
                return True
    return False


def certificate(program: Any, strict: bool = False) -> Certificate:
    """Return what one run under the corpus's schedule proves."""
    with system.virtual(devices=2, schedule=SCHEDULE, races="warn", strict=strict):
        program()
        driver: Any = system.accelerator()
        for index in range(2):
            driver.device_sync(index)
        found: Certificate = driver.detector.certificate()
        return found


def gpu_answers() -> dict[str, Any] | None:
    """Return the results that `bench/streambugs_gpu.py` printed on a machine with GPUs."""
    return json.loads(ANSWERS.read_text()) if ANSWERS.exists() else None


def gpu_text(answers: dict[str, Any]) -> str:
    def said(tool: str, half: str) -> int:
        return sum(pair[half] == "reported" for pair in answers[tool].values())

    cost = {tool: each["us"] for tool, each in answers["cost"].items()}
    return GPU.format(
        **{key: answers[key] for key in ("gpus", "gpu", "torch")}, count=len(answers["sanitizer"]),
        sanitizer=said("sanitizer", "buggy"), alarms=said("sanitizer", "fixed"), flambeau=said("flambeau", "buggy"),
        flambeau_alarms=said("flambeau", "fixed"), sanitizer_us=cost["sanitizer"], torch_us=cost["torch_off"],
        races_us=cost["flambeau"], flambeau_us=cost["flambeau_off"],
    )  # fmt: skip


def gpu_cells(answers: dict[str, Any], name: str) -> str:
    pairs = [
        answers[tool].get(name, {"buggy": "not run", "fixed": "not run"})
        for tool in ("sanitizer", "flambeau")
    ]
    return "".join([f" {pair['buggy']} / {pair['fixed']} |" for pair in pairs])


def table(scores: list[Score]) -> str:
    lines = [
        f"{s.name:36} {s.races} races, {s.wrong} wrong outcomes; fixed: {str(s.fixed).splitlines()[0]}"
        for s in scores
    ]
    return "\n".join([*lines, summary(scores)])


def summary(scores: list[Score]) -> str:
    found, named, alarms = (
        sum(s.found for s in scores), sum(s.named for s in scores), sum(s.alarm for s in scores)
    )  # fmt: skip
    return f"{found} of {len(scores)} found, {named} named, {alarms} false alarms"


def page(scores: list[Score]) -> str:
    answers = gpu_answers()
    head = HEAD.format(
        count=len(scores), schedules=SCHEDULES, found=sum(s.found for s in scores),
        named=sum(s.named for s in scores), missed=sum(not (s.found or s.named) for s in scores),
        alarms=sum(s.alarm for s in scores),
        certified=sum(s.fixed.race_free for s in scores), repaired=sum(s.repaired for s in scores),
        gpu=gpu_text(answers) if answers else NOT_YET,
        columns=" PyTorch's sanitizer | On a GPU |" if answers else "", rules="---|---|" if answers else "",
    )  # fmt: skip
    return head + "\n".join(s.row + (gpu_cells(answers, s.name) if answers else "") for s in scores)


if __name__ == "__main__":
    sys.exit(main())
