"""`Executor`: runs one program on new virtual GPUs. `Execution`: its output, and the detector's reports."""

from __future__ import annotations

import inspect
import linecache
import marshal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import flambeau as torch
from flambeau.core.callsite import Site, line_of
from flambeau.observe.reports import Edit
from flambeau.report.fix_diff import apply_edits
from flambeau.runtime import system
from flambeau.testing.soundness.programs import Program, Where

FILE, OTHER_FILE = "program.py", "other_program.py"  # the latter with other statements between the steps
_NOTHING: Mapping[Where, str] = {}
PLACEMENTS = ("default", "pytorch", "random:1", "random:2")
HAS_PLACEMENTS = "placement" in inspect.signature(system.virtual).parameters


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of a run: its output or exception, a hash of its trace, and with races on the certificate."""

    outcome: bytes
    error: str
    trace: str
    certificate: Any
    graph: Any = None


class Executor:
    """The runner of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.source, places = program.script()
        self._places = {FILE: places}
        self._lines = self.source.splitlines(keepends=True)
        self.lines = {place: number for number, place in enumerate(places, 1) if place is not None}
        self._code = compile(self.source, FILE, "exec", dont_inherit=True)
        self._known: dict[Site, int] = {}  # lines of call sites

    def run(
        self,
        schedule: str = "earliest",
        races: str = "off",
        placement: str = "default",
        record: bool = False,
        after: Mapping[Where, str] = _NOTHING,
    ) -> Execution:
        """Run the program once. `after` adds statements after some of its steps, see `Program.script`."""
        code = self._code
        if after:
            text, self._places[OTHER_FILE] = self.program.script(after)
            code = compile(text, OTHER_FILE, "exec", dont_inherit=True)
        return self._run(code, schedule, races, placement, record)

    def run_edited(self, edits: Iterable[Edit]) -> Execution:
        """Insert text into the program permanently, and run it with race detection."""
        self._lines = apply_edits(self._lines, edits)
        self.source = "".join(self._lines)
        self._code = compile(self.source, FILE, "exec", dont_inherit=True)
        return self._run(self._code, "earliest", "warn", "default", False)

    def run_waiting(self, steps: Iterable[int] | None = None, **options: Any) -> Execution:
        """Run it with a wait for the devices after some steps, by default all: that is the order of the program."""
        numbers = range(len(self.program.steps)) if steps is None else steps
        return self.run(after=self.program.waits(numbers), **options)

    def _run(self, code: Any, schedule: str, races: str, placement: str, record: bool) -> Execution:
        linecache.cache[FILE] = (len(self.source), None, self._lines, FILE)
        options = {"placement": placement} if HAS_PLACEMENTS else {}
        printed: list[bytes] = []
        names = {"__name__": "program", "print": lambda *values: printed.append(marshal.dumps(values))}
        with torch.virtual(2, "a100-40g", schedule, races, **options) as machine:
            graph, problem = machine.driver.record() if record else None, ""
            try:
                with _torch(), _threads_that_fail(names) as failed:
                    exec(code, names)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            problem = failed[0] if failed else problem
            driver: Any = system.accelerator()
            certificate = driver.detector.certificate() if races != "off" else None
            names.clear()
            trace = machine.driver.trace_hash()
        return Execution(b"".join(printed) or problem.encode(), problem, trace, certificate, graph)

    def place(self, site: Site) -> Where | None:
        """Return the step of a call site of the latest run; None for a line that no step wrote."""
        places = self._places.get(site[0].co_filename)
        if places is None:
            return None
        if site not in self._known:
            self._known[site] = line_of(site)
        return places[self._known[site] - 1]


class _torch:
    """A context manager inside which `import torch` imports Flambeau."""

    def __enter__(self) -> None:
        self._before = sys.modules.get("torch")
        sys.modules["torch"] = torch

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            del sys.modules["torch"]
        else:
            sys.modules["torch"] = self._before


@contextmanager
def _threads_that_fail(names: dict[str, Any]) -> Iterator[list[str]]:
    """Collect the errors of threads that fail inside the block, and release threads that wait for them."""
    failed: list[str] = []

    def failure(args: threading.ExceptHookArgs) -> None:
        failed.append(f"{args.exc_type.__name__}: {args.exc_value} (in a thread)")
        for _ in range(100):
            names["back"].put(None)

    before, threading.excepthook = threading.excepthook, failure
    try:
        yield failed
    finally:
        threading.excepthook = before
