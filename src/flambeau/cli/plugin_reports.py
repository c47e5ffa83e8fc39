"""Reports of the pytest plugin for tests on virtual GPUs: races, JUnit properties, files.

A test's report carries what was found about it as `report.flambeau`, from the process that ran it to the one that
reports: with pytest-xdist these are two.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from flambeau.cli.environment import why_not_writable
from flambeau.report.document import Document, head, write_document
from flambeau.report.github_annotations import source_root, wants_annotations, write_annotations
from flambeau.runtime.devices import configuration

WITHOUT_TORCH = (
    "virtual GPUs: this environment has no PyTorch; with `pytest --virtual-gpus=2`, "
    "`import torch` finds Flambeau"
)
AGAIN = "same race"  # the category of tests that fail by a race which is already reported


class Reports:
    """The plugin of the reporting process, which collects the races of each test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._root = source_root()
        self._races: dict[
            tuple[str, str], str
        ] = {}  # (test, race) -> the schedule under which it was reported
        self._tests: list[Document] = []
        self._lines: list[str] = []  # lines about written files
        self._counts: dict[str, int] = {}
        self._fixes: dict[str, dict[str, None]] = {}  # test -> the fixes of its races, each once
        self._lacks_torch = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Any:
        """Process a report before pytest counts it."""
        self._take(report)
        return (yield)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._lacks_torch |= report.failed and lacks_torch(str(report.longrepr))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        again = getattr(report, "flambeau", {}).get("again")
        return (AGAIN, "r", f"SAME RACE as under {again}") if again is not None else None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._lines = self._write(int(exitstatus))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in (*self._summary(), *self._lines):
            terminalreporter.write_line(line)
        if wants_annotations() and self._tests:
            terminalreporter.ensure_newline()
            write_annotations(self._document(0), terminalreporter._tw._file, self._root)

    def _take(self, report: pytest.TestReport) -> None:
        """Add the findings of a test's process. A race that was reported under another schedule is not a failure."""
        self._lacks_torch |= report.failed and lacks_torch(str(report.longrepr))
        found: dict[str, Any] | None = getattr(report, "flambeau", None)
        if found is None:
            return
        if found["fixes"]:
            self._fixes.setdefault(found["name"], {}).update(dict.fromkeys(found["fixes"]))
        for name in found["counts"]:
            self._counts[name] = self._counts.get(name, 0) + 1
        if report.failed and found["race"] is not None:
            first = self._races.setdefault((found["name"], found["race"]), found["schedule"])
            if first != found["schedule"]:
                found["again"] = first
                report.outcome, report.longrepr = "passed", None
                self._counts[AGAIN] = self._counts.get(AGAIN, 0) + 1
                return
        if found["document"] is not None:
            self._tests.append({**found["document"], "outcome": report.outcome})

    def _document(self, status: int) -> Document:
        return {**head("pytest", status), "tests": self._tests, "counts": self._counts}

    def _write(self, status: int) -> list[str]:
        """Write the requested files. Returns the lines to print about them."""
        lines = []
        for option, write in (("gpu_report", write_document), ("gpu_sarif", self._write_sarif)):
            name = self._config.getoption(option)
            if name is not None:
                try:
                    write(self._document(status), Path(name))
                    lines.append(f"virtual GPUs: wrote {name}")
                except OSError as error:
                    lines.append(f"virtual GPUs: can't write {name}: {error.strerror}")
        return lines

    def _summary(self) -> list[str]:
        """Return the number of tests that ran on virtual GPUs, and a line for each test that has races."""
        counts = self._counts
        if not counts:
            if self._lacks_torch:
                return [WITHOUT_TORCH]
            text = "no test had any; --virtual-gpus=N gives each test N of them"
            return [f"virtual GPUs: {text}"] if _asks_in_vain(self._config) else []
        text = f"virtual GPUs: {counts.get('runs', 0)} tests and schedules"
        if counts.get("certified"):
            text += f", {counts['certified']} of them not run: the first run of the test was certified"
        if counts.get("racy"):
            text += f", {counts['racy']} with races (shown by -rA; --gpu-races=error makes them failures)"
        unknown = [f"virtual GPUs: {message}" for message in configuration.unknown_variables()]
        return [text, *unknown, *[_fix_line(name, list(fixes)) for name, fixes in self._fixes.items()]]

    def _write_sarif(self, document: Document, path: Path) -> None:
        import_module("flambeau.report.sarif").write_sarif(document, path, self._root)


def add_options(group: pytest.OptionGroup) -> None:
    group.addoption("--gpu-report", metavar="FILE", help="write what was found on virtual GPUs as JSON")
    group.addoption("--gpu-sarif", metavar="FILE", help="write races as SARIF, for GitHub code scanning")


def check_options(config: pytest.Config) -> None:
    """Refuse files that cannot be written before any test runs."""
    for option in ("gpu_report", "gpu_sarif"):
        name = config.getoption(option)
        if name is not None and (why := why_not_writable(Path(name))):
            raise pytest.UsageError(f"--{option.replace('_', '-')}: can't write {name!r}: {why}")


def lacks_torch(text: str) -> bool:
    """Return True if an error's text says that PyTorch is not installed."""
    return "ModuleNotFoundError: No module named 'torch" in text or text.startswith("No module named 'torch")


def _fix_line(name: str, fixes: list[str]) -> str:
    more = f" (and {len(fixes) - 1} more)" if len(fixes) > 1 else ""
    test = name.replace("[-", "[").replace("[]", "")  # removes the schedule from the test's name
    return f"RACE {test} - {' '.join(fixes[0].split())}{more}"


def reports_here(config: pytest.Config) -> bool:
    """Return True in the process that reports: not in a worker of pytest-xdist."""
    return not hasattr(config, "workerinput")


def set_properties(item: pytest.Item, races: str | None, replay: str | None) -> None:
    """Put the report and the replay line into JUnit's XML, as properties of the test."""
    properties = {"flambeau_races": races, "flambeau_replay": replay}
    item.user_properties += [(name, text) for name, text in properties.items() if text is not None]


def _asks_in_vain(config: pytest.Config) -> bool:
    """Return True if options of virtual GPUs were passed that no test has used."""
    given = [config.getoption(name) for name in ("gpu_schedules", "gpu_schedule", "gpu_profile", "gpu_races")]
    return given != [1, None, None, "error"]
