"""The gallery of the site: ten bugs of StreamBugs, each with program, report, timeline and fix, from runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

BUGS = {  # pair -> title
    "default_reads_before_transfer": "A kernel reads a batch before its copy has finished",
    "double_buffer_refilled": "A double buffer is refilled too early",
    "output_dropped_while_copied": "Memory is reused while another stream reads it",
    "d2h_read_before_done": "The host reads a copy before it has finished",
    "event_waited_for_unrecorded": "A stream waits for an event that was never recorded",
    "optimizer_before_backward": "The optimizer runs before backward has finished",
    "grad_used_on_callers_stream": "A gradient is used on the wrong stream",
    "collective_input_recycled": "The input of a collective is reused too early",
    "peer_copy_into_busy_memory": "A copy between two GPUs overwrites memory in use",
    "graph_workspace_given_away": "A CUDA graph's workspace is given away",
}


class Run(NamedTuple):
    """The output and report of `flambeau run` for one half of a pair."""

    report: str
    diff: str
    picture: str


def pages(root: Path) -> dict[str, str]:
    """Return the gallery's pages and pictures by their paths in the site."""
    found, rows = {}, []
    for number, (name, title) in enumerate(BUGS.items(), 1):
        text = (root / "streambugs" / "pairs" / f"{name}.py").read_text("utf-8")
        buggy, fixed = (_run(root, name, text, half) for half in (False, True))
        if "races found" not in buggy.report and "race found" not in buggy.report:
            raise RuntimeError(f"the gallery's bug {name} is not reported:\n{buggy.report}")
        found[f"gallery/{name}.svg"] = buggy.picture
        found[f"gallery/{name}.md"] = _page(name, title, text, buggy, fixed)
        rows.append(f"| {number} | [{title}]({name}.md) | {_fact(text, 'Kind')} |")
    found["gallery/index.md"] = _index(rows)
    return found


def _index(rows: list[str]) -> str:
    return (
        "# Gallery of stream bugs\n\nThis gallery shows ten classic bugs of programs with several CUDA "
        "streams, for people "
        "who want to recognize them. Each page has the program, Flambeau's report, the timeline of the "
        "run and the fix. "
        "The programs are reduced from public bug reports and belong to [StreamBugs](../streambugs.md). "
        "All reports and "
        "pictures were made by runs on virtual GPUs while this site was built.\n\n| | bug | kind |\n| "
        "--- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


def _page(name: str, title: str, text: str, buggy: Run, fixed: Run) -> str:
    summary, code = re.fullmatch(r'"""(.*?)\n.*?"""\n+(.*)', text, re.S).groups()  # type: ignore[union-attr]
    thread = _fact(text, "Thread")
    parts = [
        f"---\nhide: [toc]\n---\n# {title}\n\n{summary}\n\n"
        f"Kind: {_fact(text, 'Kind')}. Reported in [{_short(thread)}]({thread}).\n",
        "## The program\n\n`program(False)` has the bug; `program(True)` is fixed.\n\n"
        + _block(code, "python"),
        "## The report\n\n" + _block(_races(buggy.report), "{ .text .report }"),
        "## The timeline\n\nTime runs to the right. Each lane is a stream; races are red.\n\n"
        f'<div class="timeline"><img src="{name}.svg" alt="Timeline of {name}: {title}"></div>\n',
        "## The fix\n\nThe program's own fix is the code under `if fixed:` (or `if not fixed:`).",
    ]
    if buggy.diff:
        parts.append(
            "Flambeau proposes these lines, as a diff for `git apply`:\n\n" + _block(buggy.diff, "diff")
        )
    parts.append("The report of the fixed program:\n\n" + _block(_races(fixed.report), "{ .text .report }"))
    return "\n".join(parts)


def _run(root: Path, name: str, text: str, fixed: bool) -> Run:
    """Run one half of a pair under `flambeau run`, in a folder with nothing else."""
    with TemporaryDirectory() as folder:
        program = Path(folder, f"{name}.py")
        program.write_text(f"{text}\n\nprogram(fixed={fixed})\n", "utf-8")
        command = [sys.executable, "-m", "flambeau", "run", "--schedule", "random:0", "--apply-fixes"]
        command += ["--picture", "run.svg", program.name]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("FLAMBEAU_")}
        environment |= {
            "PYTHONPATH": str(root / "src"),
            "COLUMNS": "78",
            "NO_COLOR": "1",
            "FLAMBEAU_DRIVER": "virtual",
        }
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed:\n{done.stdout}{done.stderr}")
        return Run(done.stderr, done.stdout.strip(), Path(folder, "run.svg").read_text("utf-8"))


def _races(report: str) -> str:
    """Return the part of a report that is about races."""
    part = re.search(r"^races .*?(?=^(?:written|─)|\Z)", report, re.S | re.M)
    return part[0] if part else report


def _fact(text: str, name: str) -> str:
    return re.search(rf"^{name}: (.*)$", text, re.M)[1]  # type: ignore[index]


def _short(thread: str) -> str:
    return re.sub(r"/(pull|issues)/", "#", thread.removeprefix("https://github.com/"))


def _block(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"
