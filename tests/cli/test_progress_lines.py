"""Lines that show how far long work is: on a terminal only, after a second, and gone at the end."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from cli_kit import environment, program

import flambeau as torch
from flambeau.cli import snapshot_file
from flambeau.cli.main import main
from flambeau.core import status_line


class Terminal(io.StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which each look at it moves by half a second."""
    now = [100.0]

    def look() -> float:
        now[0] += 0.5
        return now[0]

    monkeypatch.setattr(status_line, "monotonic", look)
    monkeypatch.delenv("TERM", raising=False)
    return now


def test_a_meter_shows_share_rate_and_time_left(clock: list[float]) -> None:
    screen = Terminal()
    meter = status_line.Meter("work", 1000, "things", screen)
    meter.update(100)  # after half a second
    assert screen.getvalue() == ""
    meter.update(250)
    assert screen.getvalue() == "\rwork  25%, 250 of 1,000 things, 250 a second, 0:03 left"
    meter.clear()
    assert screen.getvalue().endswith("\r" + " " * 55 + "\r")


@pytest.mark.parametrize("dumb", [False, True])
def test_elsewhere_it_is_silent(clock: list[float], monkeypatch: pytest.MonkeyPatch, dumb: bool) -> None:
    if dumb:
        monkeypatch.setenv("TERM", "dumb")
    file = Terminal() if dumb else io.StringIO()
    meter = status_line.Meter("work", 1000, "things", file)
    assert list(meter.over(range(1000))) == list(range(1000))
    assert file.getvalue() == ""


def test_loads_and_replays_have_a_meter(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch.save([torch.ones(1 << 18) for _ in range(4)], tmp_path / "c.pt")
    with torch.virtual(devices=1):
        torch.cuda.memory._record_memory_history()
        for _ in range(2000):
            torch.ones(1, device="cuda")
        torch.cuda.memory._dump_snapshot(str(tmp_path / "s.pickle"))
    screen = Terminal()
    monkeypatch.setattr(snapshot_file, "_PART", 1000)
    monkeypatch.setattr(sys, "stderr", screen)
    torch.load(tmp_path / "c.pt")
    assert "torch.load  50%, 2 of 4 MiB, 2 a second, 0:01 left" in screen.getvalue()
    assert screen.getvalue().endswith(" \r")
    assert main(["memory", "replay", str(tmp_path / "s.pickle")]) == 0
    for title in ("read", "check", "replay"):
        assert f"\r{title} " in screen.getvalue()
    assert screen.getvalue().endswith(" \r")


def test_on_a_terminal_of_the_system_short_work_shows_nothing(tmp_path: Path) -> None:
    script = program(tmp_path, "import torch; torch.save(torch.ones(3), 'c.pt'); torch.load('c.pt')")
    controller, terminal = pty.openpty()
    with os.fdopen(controller, "rb", 0) as screen:
        subprocess.run(
            [sys.executable, "-m", "flambeau", "run", "--quiet", str(script)],
            stderr=terminal, cwd=tmp_path, env=environment(), check=True,
        )  # fmt: skip
        os.write(terminal, b"end")
        assert screen.read(100) == b"end"
    os.close(terminal)
