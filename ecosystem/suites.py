"""Runs packages' own tests on Flambeau and on PyTorch's CPU build, and counts the results.

    python -m ecosystem.suites FOLDER --python PYTHON --reference PYTHON [--only einops]

FOLDER has the packages' sources, unpacked (`pip download --no-binary :all:` and tar, or a checkout). PYTHON has the
packages without PyTorch, the reference has PyTorch. Both have pytest. Only the tests are copied from the sources, so
that the installed packages run. The counts go into ecosystem/suites.json, and `make docs` writes them into
docs/ecosystem.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ecosystem.__main__ import ENVIRONMENT, FLAMBEAU, FOLDER

COUNTS = FOLDER / "suites.json"
KINDS = ("passed", "failed", "skipped")


def read_suites() -> dict[str, dict[str, Any]]:
    """Return the suites by package, as ecosystem/suites.toml has them."""
    return tomllib.loads((FOLDER / "suites.toml").read_text())


def run_suite(command: Sequence[str], suite: dict[str, Any], sources: Path, path: str) -> dict[str, str]:
    """Run a suite and return its results: test -> "passed", "failed" or "skipped".

    Args:
        command: The interpreter, with options that run the module pytest.
        suite: The suite's table of ecosystem/suites.toml.
        sources: Folder of the packages' sources.
        path: Value of PYTHONPATH.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name in suite["tests"]:
            source, target = sources / suite["source"] / name, Path(folder, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        report = Path(folder, "report.xml")
        arguments = [*suite.get("arguments", suite["tests"]), "-q", "-p", "no:cacheprovider"]
        programs = f"{Path(command[0]).parent}{os.pathsep}{os.environ['PATH']}"  # some tests start "python"
        variables = {"PYTHONPATH": path, "PATH": programs}
        environment = os.environ | ENVIRONMENT | suite.get("environment", {}) | variables
        subprocess.run(
            [*command, "-m", "pytest", *arguments, f"--junitxml={report}"], cwd=folder, env=environment
        )
        return read_results(report)


def read_results(report: Path) -> dict[str, str]:
    """Return the results of a report in JUnit's format: test -> kind; errors count as failures."""
    results = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tags = {child.tag for child in case}
        kind = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        results[f"{case.get('classname')}::{case.get('name')}"] = kind
    return results


def count(results: dict[str, str]) -> dict[str, int]:
    """Return the number of tests of each kind."""
    return {kind: list(results.values()).count(kind) for kind in KINDS}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites, write their counts, and print the tests that pass on PyTorch alone.

    Returns:
        The number of these tests, at most 125.
    """
    parser = argparse.ArgumentParser(prog="python -m ecosystem.suites", description=__doc__.split("\n")[0])
    parser.add_argument("sources", type=Path, metavar="FOLDER", help="folder of the packages' sources")
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter with the packages, without PyTorch"
    )
    parser.add_argument("--reference", required=True, metavar="PYTHON", help="interpreter with PyTorch, too")
    parser.add_argument(
        "--only", nargs="+", metavar="PACKAGE", help="packages to run; the others keep their counts"
    )
    options = parser.parse_args(arguments)
    lost = []
    for package, suite in read_suites().items():
        if options.only and package not in options.only:
            continue
        sources, more = options.sources.absolute(), os.environ.get("ECOSYSTEM_PATH", "")
        theirs = run_suite([options.reference], suite, sources, more)
        source = f"{FOLDER.parent / 'src'}{os.pathsep}{more}"
        ours = run_suite([options.python, *FLAMBEAU], suite, sources, source)
        lost += [
            f"{package}: {test}"
            for test, kind in theirs.items()
            if kind == "passed" != ours.get(test, "failed")
        ]
        counts = json.loads(COUNTS.read_text()) if COUNTS.exists() else {}
        counts[package] = {
            "source": suite["source"],
            "date": datetime.now(UTC).date().isoformat(),
            "flambeau": count(ours),
            "pytorch": count(theirs),
        }
        COUNTS.write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
    print("\n".join([f"{len(lost)} tests pass on PyTorch alone", *lost]))
    return min(len(lost), 125)


if __name__ == "__main__":
    sys.exit(main())
