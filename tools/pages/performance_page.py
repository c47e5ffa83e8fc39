"""Writer of docs/performance.md, the page of benchmark results.

    python -m tools.pages.performance_page bench/results > docs/performance.md

Each file of the folder is one table with its machine, date and command. A new measurement replaces the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.pages.markdown_lines import wrap

HEADER = """# Performance

<!-- Written by tools.pages.performance_page; do not edit. -->

This page shows what Flambeau's operations cost, next to PyTorch and other libraries. It is for
users who choose a library and for contributors who change a hot path. Each table names its machine,
date and command. To reproduce one:

```
make bench                                   # benchmarks that need no GPU
python -m bench                              # lists all benchmarks
python -m bench operators -- --driver cuda   # one, on a machine with a GPU and PyTorch
```

A run writes its figures, with machine and date, to `bench/results/runs/NAME.json`. Ratios are
Flambeau's time divided by the other time, so smaller is better. To add a measurement, edit its file
in `bench/results` and write this page again with
`python -m tools.pages.performance_page bench/results > docs/performance.md`.

## Overview

| what | compared with | ratio | section |
| --- | --- | --- | --- |
"""
SECTIONS = (
    "Host time without a GPU",
    "CPU operators and training",
    "NVIDIA H100",
    "NVIDIA H200",
    "NVIDIA H200, several GPUs",
    "Memory",
    "Import and start",
    "Simulation and exploration",
    "Several processes",
)
"""Sections of the page, in order."""


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return the results of a folder in the page's order.

    Args:
        folder: Folder of JSON files, one for each table.
    """
    results = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(results, key=lambda result: (SECTIONS.index(result["section"]), result["order"]))


def write_page(results: Sequence[dict[str, Any]]) -> str:
    """Return the page: an overview of ratios, then a table for each result."""
    overview = [
        f"| {what} | {other} | {ratio} | {_link(result['section'])} |\n"
        for result in results
        for what, other, ratio in result["summary"]
    ]
    parts = [HEADER + "".join(overview)]
    for section in SECTIONS:
        parts.append(f"## {section}\n")
        parts += [write_result(result) for result in results if result["section"] == section]
    return "\n".join(parts)


def write_result(result: dict[str, Any]) -> str:
    """Return one result: its conditions, its table and its notes."""
    command = f"`{result['command']}`" if result["command"] else "no script in the repository"
    facts = {key: result[key] for key in ("machine", "date", "software")} | {"command": command}
    columns = result["columns"]
    lines = [f"### {result['title']}\n", wrap(result["what"]), ""]
    lines += [f"- {key.capitalize()}: {value}" for key, value in facts.items()]
    lines += ["", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    lines += [f"| {' | '.join(map(_cell, row, result['formats']))} |" for row in result["rows"]]
    if result["notes"]:
        lines += ["", *[wrap(f"- {note}", indent="  ") for note in result["notes"]]]
    return "\n".join(lines) + "\n"


def _link(section: str) -> str:
    return f"[{section}](#{section.lower().replace(',', '').replace(' ', '-')})"


def _cell(value: Any, form: str) -> str:
    return value if isinstance(value, str) else format(value, form)


def main(arguments: Sequence[str]) -> int:
    """Write the page of the folder that the only argument names."""
    (folder,) = arguments
    sys.stdout.write(write_page(read_results(Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
