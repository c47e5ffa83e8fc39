"""What tests of the command line share: `flambeau run` in a process of its own, its report read back."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from typing import Any

from warm_start import run_module

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@dataclass
class Done:
    """A program that has ended."""

    status: int
    out: str
    err: str
    file: Path

    @cached_property
    def report(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())

    @property
    def machine(self) -> dict[str, Any]:
        """The report on the only machine."""
        (machine,) = self.report["machines"]
        return machine

    @property
    def certificate(self) -> dict[str, Any]:
        return self.machine["certificate"]


def environment(**changes: str) -> dict[str, str]:
    """This process's, without wishes of ours for devices, with `src` on the path."""
    wishes = {name for name in os.environ if name.startswith(("FLAMBEAU_", "CUDA_VISIBLE"))}
    kept = {k: v for k, v in os.environ.items() if k not in wishes - {"FLAMBEAU_KERNEL_CACHE"}}
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    return kept | {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"} | changes


def flambeau_run(
    folder: Path, *arguments: object, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Done:
    """`flambeau run --report FILE ...` with the report in `folder`."""
    report = folder / "report.json"
    done = run_module(
        "flambeau", "run", "--report", report, *arguments, env=environment(**env or {}), cwd=cwd or folder
    )
    return Done(done.returncode, done.stdout, done.stderr, report)


def program(folder: Path, text: str, name: str = "program.py") -> Path:
    """A script with this text."""
    path = folder / name
    path.write_text(dedent(text))
    return path
