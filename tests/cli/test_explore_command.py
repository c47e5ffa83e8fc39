"""`flambeau explore` in a process of its own: report, exit status, and a replay line that works as it stands."""

import io
import re
import shlex
import subprocess
import sys
import types
from textwrap import dedent

import pytest
from cli_kit import environment, program
from warm_start import run_module

import flambeau as torch
from flambeau.cli import explore, progress
from flambeau.cli.main import main
from flambeau.testing.exploration import Exploration
from flambeau.testing.outcome import Outcome

RACY = """
    import helper, torch
    side = torch.cuda.Stream()
    x = torch.zeros(100, device="cuda")
    torch.cuda.synchronize()
    x.fill_(helper.ONE)
    {wait}
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.synchronize()
    print(y.sum().item())
"""


def flambeau(folder, *arguments):
    return run_module("flambeau", *arguments, env=environment(), cwd=folder)


def words(text):
    """A report without its line breaks."""
    return " ".join(text.split())


@pytest.fixture
def folder(tmp_path):
    program(tmp_path, "ONE = 1.0", "helper.py")
    return tmp_path


def test_a_race_is_shown_and_its_line_replays_it(folder):
    program(folder, RACY.format(wait="pass"))
    done = flambeau(folder, "explore", "--schedules", "20", "program.py")
    assert done.returncode == 3, done.stderr
    assert "gives ('0.0\\n', 0)" in done.stdout and "recorded run: gives ('200.0\\n', 0)" in done.stdout
    assert re.search(r"'mul' of side stream 1 of cuda:0 at program.py:\d+ runs before", done.stdout)
    assert "side.wait_stream(torch.cuda.default_stream())" in done.stdout and "0x" not in done.stdout
    assert re.search(r"replay, with mul at program.py:\d+ before fill_ at program.py:\d+:\n", done.stdout)
    line = re.search(r"replay, .*:\n +flambeau (.*)", done.stdout)[1]
    again = flambeau(folder, *shlex.split(line))
    assert again.stdout == "0.0\n", again.stderr


def test_parts_of_the_standard_library_that_a_run_brought_know_each_other_in_the_next(folder):
    program(
        folder,
        """
        import io, multiprocessing.connection
        from multiprocessing.reduction import ForkingPickler
        ForkingPickler(io.BytesIO()).dump(multiprocessing.Pipe()[0])
        print("sent")
        """,
    )
    done = flambeau(folder, "explore", "--schedules", "3", "program.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_installed_packages_are_not_loaded_twice_and_the_programs_own_are(folder):
    """What is compiled refuses that; the program's modules, and users of torch, begin anew."""
    (folder / "mine.py").write_text("runs = []\n")
    program(
        folder,
        """
        import numpy.fft, mine
        from sklearn.datasets import load_digits
        mine.runs.append(len(load_digits().data))
        print(mine.runs)
        """,
    )
    done = flambeau(folder, "explore", "--schedules", "3", "program.py")
    assert done.returncode == 0 and "every legal order" in done.stdout, done.stdout + done.stderr


def test_installed_users_of_torch_begin_anew(monkeypatch):
    monkeypatch.setattr(explore.site, "getsitepackages", lambda: ["/site"])
    names = {"lamps", "plain", "mine"}
    for name in names:
        module = types.ModuleType(name)
        module.__file__ = f"/{'home' if name == 'mine' else 'site'}/{name}.py"
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["lamps"].Linear = torch.nn.Linear
    explore._forget(names, "")
    assert names & sys.modules.keys() == {"plain"}
    explore._forget({"plain"}, "plain")  # it is the program
    assert "plain" not in sys.modules


def test_how_many_orders_and_which_may_stand_last(folder):
    program(folder, "import sys\n" + dedent(RACY.format(wait="sys.argv[1:] == ['-x'] or sys.exit(7)")))
    said = "is this command's own"
    for last in (["--schedules", "3", "--policy", "random"], ["--policy=random", "--schedules=3"]):
        done = flambeau(folder, "explore", "program.py", "-x", *last)
        assert done.returncode == 3 and "explored   3 schedules" in done.stdout, done.stdout + done.stderr
        assert done.stderr.count(said) == 2 and "program.py -x\n" in done.stdout
    done = flambeau(folder, "explore", "--schedules", "3", "program.py", "-x", "--schedules", "2")
    assert done.returncode == 7 and said not in done.stderr


def test_a_fixed_program_is_proved(folder):
    program(folder, RACY.format(wait="side.wait_stream(torch.cuda.current_stream())"))
    done = flambeau(folder, "explore", "--schedules", "1000", "program.py")
    assert done.returncode == 0, done.stderr
    assert "every legal order" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["none.py"], "can't open"),
        (["--policy", "best", "helper.py"], "policy 'best'"),
        (["--schedules", "0", "helper.py"], "schedules must be at least 1"),
        (["--devices", "0", "helper.py"], "--devices must be at least 1"),
        (["--seed", "-1", "helper.py"], "seed must be at least 0"),
    ],
)
def test_what_cannot_be_explored_is_refused(folder, arguments, why):
    done = flambeau(folder, "explore", *arguments)
    assert done.returncode == 2 and why in done.stderr


def test_the_exit_status_is_the_programs_own_where_nothing_is_wrong(folder):
    program(folder, "import sys; print('done'); sys.exit(5)")
    assert flambeau(folder, "explore", "program.py").returncode == 5


def test_polls_of_the_runtime_leave_the_first_runs_certificate(tmp_path):
    script = program(
        tmp_path,
        """
        import torch
        side = torch.cuda.Stream()
        for i in range(3):
            x = torch.full((1000,), float(i), device="cuda")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = x * 2
            x.record_stream(side)
            del x
        side.synchronize()
        print(y[0].item())
        """,
    )
    done = flambeau(tmp_path, "explore", "--schedules", "4", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict    The same outcome in every legal order of these commands: all" in done.stdout
    done = flambeau(tmp_path, "explore", "--schedules", "4", "--policy", "random", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    report = words(done.stdout)
    assert "conflicting pairs" not in report and "explored 4 schedules" in report
    assert "each a run of the whole program" in report
    assert "by the first run's certificate, in every legal order." in report


def test_standard_output_is_what_programs_know(folder):
    program(
        folder,
        """
        import sys, torch
        sys.stdout.reconfigure(line_buffering=True)
        print("a", end="")
        sys.stdout.buffer.write(b"b\\xff\\n")
        """,
    )
    done = flambeau(folder, "explore", "program.py")
    assert done.returncode == 0 and "The same outcome" in done.stdout, done.stdout + done.stderr


def test_what_differs_in_a_long_output_is_told(folder):
    program(folder, "for i in range(40):\n    print('epoch', i)\n" + dedent(RACY.format(wait="pass")))
    done = flambeau(folder, "explore", "--schedules", "20", "program.py")
    assert "  first difference: item 0, line 41, '0.0\\n' for '200.0\\n'\n" in done.stdout, done.stdout


def test_an_error_is_told_with_its_line(folder):
    program(folder, "import torch\ntorch.ones(2, device='cuda') + torch.ones(3, device='cuda')\n")
    done = flambeau(folder, "explore", "program.py")
    assert done.returncode == 3
    assert re.search(r"the recorded run raises RuntimeError: .*\(program.py:2\)", words(done.stdout)), (
        done.stdout
    )


def test_processes_that_the_program_starts_are_named(folder):
    program(
        folder,
        """
        import torch, torch.multiprocessing as mp
        def work(rank):
            torch.ones(3, device="cuda")
        if __name__ == "__main__":
            mp.spawn(work)
        """,
    )
    done = flambeau(folder, "explore", "program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The program starts processes: what they do was neither" in done.stdout


def test_an_interrupt_shows_where_the_program_was(folder):
    program(folder, "import torch\ntorch.ones(2, device='cuda')\nraise KeyboardInterrupt\n")
    done = flambeau(folder, "explore", "program.py")
    assert done.returncode == 130
    assert re.fullmatch(
        r"Traceback .*\n  File \".*program.py\", line 3, in <module>\n    raise KeyboardInterrupt\nKeyboardInterrupt\n",
        done.stderr,
    ), done.stderr


# -- progress, budgets, ends ------------------------------------------------------------------------------

COUNTED = """
    import os, signal, torch
    from pathlib import Path
    counter = Path("runs")
    run = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(run + 1))
    side = torch.cuda.Stream()
    x = torch.zeros(100, device="cuda")
    torch.cuda.synchronize()
    for i in range(6):
        x.add_(1)
        with torch.cuda.stream(side):
            x.mul_(2)
    torch.cuda.synchronize()
    {then}
    print(x[0].item())
"""


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("run == 4 and os.kill(os.getpid(), signal.SIGINT)", 130),
        ("run == 4 and os.kill(os.getpid(), signal.SIGTERM)", 143),
        (
            "\n    try:\n        run == 4 and os.kill(os.getpid(), signal.SIGINT)\n    except KeyboardInterrupt: print('saved')",
            130,
        ),
    ],
)
def test_a_signal_leaves_the_report_of_what_was_explored(folder, then, status):
    """Also where the program catches it: its run was cut short, so what it printed is no outcome."""
    program(folder, COUNTED.format(then=then))
    done = flambeau(folder, "explore", "--schedules", "200", "program.py")
    assert done.returncode == status, done.stdout + done.stderr
    assert "ended early: it was interrupted" in done.stdout and "saved" not in done.stdout
    assert "2 races found" in done.stdout and "replay, with " in done.stdout
    assert "Traceback" not in done.stderr


def test_the_first_race_and_the_first_failure_are_shown_at_once(folder):
    program(folder, COUNTED.format(then="run == 20 and os._exit(9)"))
    done = flambeau(folder, "explore", "--schedules", "1000", "program.py")
    assert done.returncode == 9 and not done.stdout
    shown = re.findall(r"found in run (\d+) of the program; the exploration continues ─+\n(\w+)", done.stderr)
    assert [what for _, what in shown] == ["races", "failure"] and int(shown[1][0]) < 10, done.stderr


def test_a_time_budget_is_taken_and_may_stand_last(folder):
    program(folder, COUNTED.format(then="pass"))
    done = flambeau(folder, "explore", "--policy", "random", "program.py", "--time", "0.5s")
    assert done.returncode == 3 and "ended early: the 0.5 s" in done.stdout, done.stdout


@pytest.mark.parametrize("text", ["0s", "5 minutes", "-3s", "s", "1d", ""])
def test_what_is_no_duration_is_refused(text, capsys):
    with pytest.raises(SystemExit) as end:
        main(["explore", f"--time={text}", "helper.py"])
    assert end.value.code == 2 and "is not a duration; write 60s, 5m or 1h" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("5m", 300), ("1h", 3600)])
def test_durations_are_in_seconds_minutes_or_hours(text, seconds):
    assert explore._seconds(text) == seconds


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    return now


def found(**numbers):
    return Exploration(Outcome(), **numbers)


def test_progress_on_a_terminal_is_one_line(clock, monkeypatch):
    monkeypatch.delenv("TERM", raising=False)
    screen = Terminal()
    shown = progress.Progress(screen, 1000, None)
    shown.update(found(schedules=1, runs=1))
    assert screen.getvalue() == ""
    clock[0] += 10
    shown.update(found(schedules=250, runs=40))
    shown.update(found(schedules=251, runs=41))
    assert screen.getvalue() == "\rexplore  25%, 250 of 1,000 schedules, 40 runs, 4.0 a second, 0:30 left"
    shown.clear()
    assert screen.getvalue().endswith("\r" + " " * 70 + "\r")
    shown.clear()
    assert screen.getvalue().count("\r") == 3


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_progress_elsewhere_is_a_line_every_ten_seconds(clock, monkeypatch, kind):
    monkeypatch.setenv("TERM", "dumb")
    file = kind()
    shown = progress.Progress(file, None, 7200)
    for _ in range(25):
        clock[0] += 1
        shown.update(found(schedules=int(clock[0]), runs=5))
    shown.clear()
    first, second = file.getvalue().splitlines()
    assert first == "explore   0%, 110 schedules, 5 runs, 0.5 a second, 1:59:50 left"
    assert second.startswith("explore   0%, 120 schedules") and "\r" not in file.getvalue()


def test_progress_follows_the_budget_that_ends_first(clock):
    file = io.StringIO()
    shown = progress.Progress(file, 1000, 40)
    clock[0] += 20
    shown.update(found(schedules=100, runs=5))
    assert "explore  50%" in file.getvalue() and "0:20 left" in file.getvalue()


def test_hidden_devices_are_a_wrong_command_line(folder):
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", "explore", "helper.py"],
        capture_output=True, text=True, timeout=300, env=environment(CUDA_VISIBLE_DEVICES=""), cwd=folder,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("flambeau explore: No CUDA GPUs are available: CUDA_VISIBLE_DEVICES=''")
    assert done.stderr.count("\n") == 1
