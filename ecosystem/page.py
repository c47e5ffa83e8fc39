"""Writer of docs/ecosystem.md, the page of results of public packages on Flambeau.

python -m ecosystem.page > docs/ecosystem.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ecosystem.__main__ import RESULTS, read_requirements
from ecosystem.suites import COUNTS, KINDS
from tools.pages.markdown_lines import wrap

HEADER = """# Ecosystem

<!-- Written by ecosystem.page from ecosystem/results.json; do not edit. -->

This page lists public packages that are written for PyTorch and their results on Flambeau. It is
for users who want to know whether their program's packages work, and for contributors who look for
what is missing. The packages are unmodified and PyTorch is not installed with them.

Each package has programs of 20 to 60 lines in `ecosystem/programs` that do its main job: train,
generate, fit, write and read. Each ends with a check that can fail. The programs pass on PyTorch's
CPU build. On Flambeau they run on virtual GPUs with race detection, and pass only if they used one.

```
make ecosystem                                        # builds the environment and runs all programs
python -m ecosystem --only gpytorch --tracebacks      # one package, in an environment that has it
python -m ecosystem --reference PYTHON                # also runs the programs on that PyTorch
```

The versions are pinned in `ecosystem/requirements.txt`. Times are of the whole process, imports
included: "CPU" is the time that the processor worked, "wall" the time that passed. The ratio is
Flambeau's CPU time divided by PyTorch's. "none" in the column of races means that the run is
certified race-free under every schedule; "no certificate" means that no race was found and an
assumption of the certificate does not hold, for example because the program reads memory that was
never written. timm and torchvision are not listed: torchvision needs PyTorch's C++ library, and
timm needs torchvision.

## Results
"""


SUITES = """
## The packages' own tests

Parts of packages' own test suites, which need minutes and no download, on Flambeau with two
virtual GPUs and on PyTorch's CPU build. `ecosystem/suites.toml` names the parts. gpytorch's run
without TF32 rounding. Its six failures and that of opt_einsum are tests that do nothing, or
something else, without a GPU. gpytorch's move priors to the GPU: two use attributes that the
classes lack. Three of the other four stop on PyTorch's meta device in the same way; in the fourth,
LKJ's, `eta` stays on the CPU there. opt_einsum's expects that arrays share the memory of cached
tensors, as on the CPU alone; it passes with `--devices 0`. zuko's failure is also PyTorch's.

```
python -m ecosystem.suites FOLDER --python PYTHON --reference PYTHON   # FOLDER has the unpacked sources
```

| package | tests of | date | passed | PyTorch's | failed | PyTorch's | skipped | PyTorch's |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def write_page(results: dict[str, Any], suites: dict[str, Any]) -> str:
    """Return the page of documents as ecosystem/results.json and ecosystem/suites.json have them."""
    rows = results["rows"]
    passed = sum(row["flambeau"]["passed"] for row in rows)
    packages = {row["package"] for row in rows}
    whole = packages - {row["package"] for row in rows if not row["flambeau"]["passed"]}
    facts = [
        f"- Result: {passed} of {len(rows)} programs pass; every program passes for {len(whole)} of "
        f"{len(packages)} packages.",
        f"- Date: {' to '.join(sorted({row['date'] for row in rows}))}",
        f"- Machine: {results['machine']}",
        f"- Software: Flambeau as `{results['flambeau']}`, PyTorch {results['pytorch'] or 'not run'}, "
        f"Python {results['python']}",
        *[wrap(f"- Note: {note}", indent="  ") for note in results.get("notes", ())],
    ]
    lines = [
        HEADER,
        *facts,
        "",
        "| package | version | program | result | races | CPU, s | PyTorch's | ratio | wall, s | PyTorch's |",
        "|" + " --- |" * 10,
    ]
    return "\n".join([*lines, *map(write_row, rows), *write_failures(rows), *write_suites(suites)]) + "\n"


def write_suites(suites: dict[str, Any]) -> list[str]:
    """Return the section on packages' own tests."""
    versions = read_requirements()
    lines = SUITES.split("\n")
    for package, suite in suites.items():
        pairs = [str(suite[side][kind]) for kind in KINDS for side in ("flambeau", "pytorch")]
        lines.append(
            f"| {package} {versions[package]} | {suite['source']} | {suite['date']} | {' | '.join(pairs)} |"
        )
    return lines


def write_row(row: dict[str, Any]) -> str:
    """Return the line of one program."""
    flambeau, reference = row["flambeau"], row["reference"]
    compared = flambeau["passed"] and reference and reference["passed"]
    cells = [
        row["package"],
        row["version"],
        f"[{row['program'].split('/')[1].removesuffix('.py')}](../ecosystem/programs/{row['program']})",
        ("passes" if flambeau["passed"] else "**fails**")
        + (f" with `{row['options']}`" if row["options"] else ""),
        flambeau["races"],
        f"{flambeau['cpu_seconds']:.1f}",
        f"{reference['cpu_seconds']:.1f}" if compared else "",
        f"{flambeau['cpu_seconds'] / reference['cpu_seconds']:.2f}" if compared else "",
        f"{flambeau['seconds']:.1f}",
        f"{reference['seconds']:.1f}" if compared else "",
    ]
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def write_failures(rows: list[dict[str, Any]]) -> list[str]:
    """Return the section of failures, empty if all programs pass."""
    failed = [row for row in rows if not row["flambeau"]["passed"]]
    if not failed:
        return []
    return ["", "## Failures", ""] + [
        f"- {Path(row['program']).stem}: `{row['flambeau']['error'].strip()}`" for row in failed
    ]


if __name__ == "__main__":
    sys.stdout.write(write_page(json.loads(RESULTS.read_text()), json.loads(COUNTS.read_text())))
