"""What the commands print where a terminal or its encoding is limited: colours, ASCII, pipes whose reader has gone."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import environment, program

from flambeau.cli.output import console
from flambeau.cli.output.console import RED, Screen
from flambeau.cli.output.race_entries import write_races

RACY = """
    import torch
    torch.cuda.memory._record_memory_history()
    side = torch.cuda.Stream()
    größe = torch.zeros(100, device="cuda")
    größe.fill_(1.0)
    with torch.cuda.stream(side):
        y = größe * 2
    torch.cuda.synchronize()
    torch.cuda.memory._dump_snapshot("s.pickle")
"""
COMMANDS = [
    "run --races error --apply-fixes racy.py",
    "explore racy.py",
    "memory s.pickle -o ä.html",
    "memory replay s.pickle",
    "launch --nproc-per-node 1 racy.py",
    "doctor",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("terminals")
    program(path, RACY, "racy.py")
    subprocess.run(
        [sys.executable, "-m", "flambeau", "run", "--quiet", "racy.py"],
        cwd=path, env=environment(), check=True,
    )  # fmt: skip
    program(path, "for i in range(10_000): print(i)", "noisy.py")
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_ascii_suffices(folder: Path, command: str) -> None:
    plain = environment(PYTHONIOENCODING="ascii", FLAMBEAU_KERNEL_CACHE=str(folder / "ä"))
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", *command.split()], capture_output=True, cwd=folder, env=plain
    )
    for text in (done.stdout.decode("ascii"), done.stderr.decode("ascii")):
        assert "UnicodeEncodeError" not in text and "\\u2500" not in text
    found_a_race = "explore" in command or "--races error" in command
    assert done.returncode == (3 if found_a_race else 0), done.stderr


@pytest.mark.parametrize(
    ("command", "broken"),
    [
        *[
            (command, "stdout")
            for command in [*COMMANDS[:-2], COMMANDS[-1], "run noisy.py", "launch noisy.py", "--help"]
        ],
        ("run racy.py", "stderr"),
    ],
)
def test_a_reader_that_has_gone_ends_the_command_quietly(folder: Path, command: str, broken: str) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    other = "stderr" if broken == "stdout" else "stdout"
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", *command.split()],
        cwd=folder, env=environment(PYTHONUNBUFFERED=""), text=True, **{broken: writes, other: subprocess.PIPE},
    )  # fmt: skip
    os.close(writes)
    remaining = done.stderr if broken == "stdout" else done.stdout
    assert "BrokenPipe" not in remaining and "Broken pipe" not in remaining
    assert done.returncode == 141


@pytest.mark.parametrize("command", ["run -c print(1)", "explore racy.py", "doctor", "--version"])
def test_a_full_disk_or_a_closed_output_has_no_traceback(folder: Path, command: str) -> None:
    """Full, stdout is an error in one line; closed, it is silent, as Python's."""
    shell = shlex.join([sys.executable, "-m", "flambeau", *command.split()])
    usual = 3 if "explore" in command else 0
    for closed, status in ((">/dev/full", 1), (">&-", usual), (">&- 2>&-", usual)):
        done = subprocess.run(
            f"{shell} {closed}", shell=True, cwd=folder, capture_output=True, text=True,
            env=environment(PYTHONUNBUFFERED=""),
        )  # fmt: skip
        assert done.returncode == status and "Traceback" not in done.stderr, (closed, done.stderr)
        assert ("can't write to stdout: No space left" in done.stderr) == (status == 1), closed


def test_a_report_is_as_wide_as_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "columns_of", lambda file: 50)
    monkeypatch.delenv("TERM", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    for file, width in ((Terminal(), 50), (io.StringIO(), 100)):
        screen = Screen(file)
        screen.title("flambeau")
        screen.entry("races", "word " * 50)
        screen.end()
        assert max(map(len, file.getvalue().splitlines())) == width


@pytest.mark.parametrize(
    ("occurrences", "text"),
    [
        ([("cuda:0", 0, 1)], "cuda:0 (on rank 0)"),
        ([("cuda:0", 0, 1), ("cuda:0", 1, 1)], "cuda:0 (on ranks 0 and 1)"),
        ([("cuda:0", 0, 2), ("cuda:0", 1, 1)], "cuda:0 (on ranks 0 and 1, 3 times)"),
        ([("cuda:0", 0, 1), ("cuda:1", 1, 1)], "cuda:0 (on rank 0) and cuda:1 (on rank 1)"),
        ([("cuda:0", rank, 1) for rank in range(3)], "cuda:0 (on ranks 0, 1 and 2)"),
        (
            [(f"cuda:{rank}", rank, 1) for rank in range(5)],
            "cuda:0 (on rank 0), cuda:1 (on rank 1), cuda:2 (on rank 2) and 2 devices more",
        ),
    ],
)
def test_a_race_of_several_ranks_names_devices_once(
    monkeypatch: pytest.MonkeyPatch, occurrences: list[tuple[str, int, int]], text: str
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    side = {
        "place": "a.py:1", "stream": None, "stream_created": None, "launched": "", "when": "", "operator": "add",
        "kind": "reads", "source": "",
    }  # fmt: skip
    fix = {"call": "wait_stream", "code": "", "text": "wait"}
    race = {
        "nbytes": 8,
        "reused": False,
        "first": side,
        "second": side,
        "fix": fix,
        "note": "",
        "allocated": "",
        "freed": "",
    }
    file = Terminal()
    write_races(
        [race | {"device": device, "process": f"rank {rank}", "count": n} for device, rank, n in occurrences],
        Screen(file),
    )
    assert f"Nothing orders these two uses of 8 bytes of {text} first a.py:1" in " ".join(
        file.getvalue().split()
    )


class Terminal(io.StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("file", "variables", "coloured"),
    [
        (Terminal, {}, True),
        (io.StringIO, {}, False),
        (io.StringIO, {"FORCE_COLOR": "1"}, True),
        (io.StringIO, {"FORCE_COLOR": ""}, False),
        (Terminal, {"NO_COLOR": "1"}, False),
        (Terminal, {"NO_COLOR": ""}, True),
        (Terminal, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (Terminal, {"TERM": "dumb"}, False),
        (Terminal, {"TERM": "dumb", "FORCE_COLOR": "1"}, True),
    ],
)
def test_colours_follow_the_environment(
    monkeypatch: pytest.MonkeyPatch, file: type[io.StringIO], variables: dict[str, str], coloured: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    written = file()
    Screen(written).line("text", RED)
    assert written.getvalue() == ("\x1b[1;31mtext\x1b[0m\n" if coloured else "text\n")
