"""`Finding`: a race, or a failure of an exploration, as tools for reviews show it: a kind, a line, a text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flambeau.report.document import Document, races_of


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind of findings. `id` never changes its meaning."""

    id: str
    name: str
    title: str
    help: str


MISSING_WAIT = Rule(
    "FLB001", "MissingWait", "Two streams use memory without an order",
    "Let the second stream wait for the first one: stream.wait_stream(other), or an event that is recorded after the "
    "first use and waited for before the second.",
)  # fmt: skip
MISSING_RECORD_STREAM = Rule(
    "FLB002", "MissingRecordStream", "Memory is reused while a stream may still use it",
    "Call tensor.record_stream(stream) for each stream that uses a tensor, except the one that allocated it, before "
    "the tensor is freed.",
)  # fmt: skip
MISSING_SYNCHRONIZE = Rule(
    "FLB003", "MissingSynchronize", "The host uses memory that a device may still use",
    "Let the host wait: synchronize the stream or the event of the asynchronous work before the memory is used.",
)  # fmt: skip
MISSING_WORK_WAIT = Rule(
    "FLB004", "MissingWorkWait", "The result of a collective is used without wait()",
    "Call wait() on the work that the collective returned before its tensors are used.",
)  # fmt: skip
ORDER_DEPENDENT = Rule(
    "FLB010", "OrderDependentResult", "The program gives another result in another legal order",
    "Order the two commands that the failing order swaps. The replay line repeats that order.",
)  # fmt: skip
NONDETERMINISTIC = Rule(
    "FLB011", "NondeterministicResult", "The program's result does not depend on the order alone",
    "Look for clocks, random numbers without a seed, host threads, times of events, memory statistics and addresses.",
)  # fmt: skip
FAILED = Rule(
    "FLB012", "FailedRun", "The explored program raises an error in the recorded order", "Fix the error first.",
)  # fmt: skip

RULES = (
    MISSING_WAIT, MISSING_RECORD_STREAM, MISSING_SYNCHRONIZE, MISSING_WORK_WAIT,
    ORDER_DEPENDENT, NONDETERMINISTIC, FAILED,
)  # fmt: skip
_BY_CALL = {
    "wait_stream": MISSING_WAIT, "record_stream": MISSING_RECORD_STREAM, "synchronize": MISSING_SYNCHRONIZE,
    "wait": MISSING_WORK_WAIT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Spot:
    """A line of a program: `file` is absolute, or a name such as `<string>`; "" if no line is known."""

    file: str
    line: int
    source: str = ""

    def relative(self, root: Path) -> str:
        """Return the file relative to a folder, with slashes; unchanged if it lies elsewhere."""
        if not os.path.isabs(self.file):
            return self.file
        below = os.path.relpath(self.file, root)
        return self.file if below.split(os.sep)[0] == os.pardir else below.replace(os.sep, "/")


@dataclass(frozen=True, slots=True)
class Finding:
    """A race or other result that a tool shows at a line.

    Attributes:
        spot: The line that it is shown at: the second use of the memory.
        before, after: The text about it, in two parts.
        other: The text between these, which stands for `other_spot`, the first use.
        fix: What to do about it.
        edits: The same as insertions: path, line (from 1), column (from 0) and text.
        count: How often it was found, in all processes.
        processes: The names of the processes that it was found in; none for the program's own.
    """

    rule: Rule
    spot: Spot
    before: str
    other: str
    other_spot: Spot
    after: str
    fix: str
    edits: tuple[dict[str, Any], ...] = ()
    count: int = 1
    processes: tuple[str, ...] = field(default=())

    @property
    def text(self) -> str:
        """Return the whole finding as one paragraph."""
        return f"{self.before}{self.other}{self.after}{self.where} Fix: {self.fix}"

    @property
    def where(self) -> str:
        return f" Found in {', '.join(self.processes)}." if self.processes else ""


def findings_of(document: Document) -> list[Finding]:
    """Return the findings of a report. Findings with equal lines in several processes are merged."""
    found: dict[tuple[Any, ...], Finding] = {}
    for finding in (*map(_of_race, races_of(document)), *_of_exploration(document)):
        key = (finding.rule, finding.spot, finding.other_spot, finding.before, finding.other)
        known = found.get(key)
        if known is not None:
            processes = tuple(dict.fromkeys([*known.processes, *finding.processes]))
            finding = replace(known, count=known.count + finding.count, processes=processes)
        found[key] = finding
    return list(found.values())


def _of_race(race: Document) -> Finding:
    first, second = race["first"], race["second"]
    rule = _BY_CALL.get(race["fix"]["call"], MISSING_WAIT)
    bytes_ = f"{race['nbytes']:,} bytes of {race['device']}"
    if race["reused"]:
        text = f" {second['kind']} {bytes_} that were freed and allocated again, while "
        after = f", which {first['kind']} them, may still run."
    else:
        text, after = f" {second['kind']} {bytes_} that ", f" {first['kind']}, and nothing orders the two."
    return Finding(
        rule,
        _spot(second),
        f"{_use(second)}{text}",
        _use(first),
        _spot(first),
        after,
        race["fix"]["text"],
        tuple(race["fix"].get("edits", ())),
        race["count"],
        (race["process"],) if race["process"] else (),
    )


def _use(side: Document) -> str:
    return f"{side['operator']} on {side['stream'] or 'the host'}"


def _spot(side: Document) -> Spot:
    return Spot(side["file"], side["line"], side["source"])


def _of_exploration(document: Document) -> Iterator[Finding]:
    exploration = document.get("exploration")
    if exploration is None:
        return
    nowhere = Spot("", 0)
    error = exploration["expected"]["error"]
    if error is not None:
        yield Finding(FAILED, nowhere, f"The recorded run raises {error}.", "", nowhere, "", FAILED.help)
    for failure in exploration["failures"]:
        outcome = failure["outcome"]["text"]
        if not failure["swaps"]:
            cause = failure["cause"] or "; ".join(failure["answers"])
            rule = NONDETERMINISTIC if failure["cause"] else ORDER_DEPENDENT
            yield Finding(rule, nowhere, f"The program {outcome}. {cause}.", "", nowhere, "", rule.help)
            continue
        swap = failure["swaps"][0]
        first, second = swap["second"], swap["first"]  # as requested: the failing order swaps them
        yield Finding(
            ORDER_DEPENDENT, _spot(second), f"The program {outcome} where {_use(second)} runs before ", _use(first),
            _spot(first), ".", f"{ORDER_DEPENDENT.help} Replay: {failure['replay']}", count=failure["count"],
        )  # fmt: skip
