"""`flambeau explore` in a process of its own: report, exit status, and a replay line that works as it stands."""

import re
import shlex
import subprocess
import sys
import types
from textwrap import dedent

import pytest
from cli_kit import environment, program

import flambeau as torch
from flambeau.cli import explore

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
    command = [sys.executable, "-m", "flambeau", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment(), cwd=folder, check=False
    )


@pytest.fixture
def folder(tmp_path):
    program(tmp_path, "ONE = 1.0", "helper.py")
    return tmp_path


def test_a_race_is_shown_and_its_line_replays_it(folder):
    program(folder, RACY.format(wait="pass"))
    done = flambeau(folder, "explore", "--schedules", "20", "program.py")
    assert done.returncode == 3, done.stderr
    assert "gives ('0.0\\n', 0)" in done.stdout and "recorded run: gives ('200.0\\n', 0)" in done.stdout
    assert re.search(r"'mul' of side stream 1 of cuda:0 at program.py:\d+ runs before", done.stdout), (
        done.stdout
    )
    assert "Fix: On side stream 1 of cuda:0" in done.stdout
    line = re.search(r"replay: flambeau (.*)", done.stdout)[1]
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
        assert done.returncode == 3 and done.stdout.startswith("3 schedules"), done.stdout + done.stderr
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
        (["--devices", "0", "helper.py"], "devices must be at least 1"),
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
    assert done.stdout.splitlines()[-1].startswith(
        "The same outcome in every legal order of these commands: all"
    )
    done = flambeau(tmp_path, "explore", "--schedules", "4", "--policy", "random", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    first, why, verdict = done.stdout.splitlines()[-3:]
    assert "conflicting pairs" not in first and first.startswith("4 schedules")
    assert why.startswith("each a run of the whole program")
    assert verdict.endswith("by the first run's certificate, in every legal order.")


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
    assert re.search(r"the recorded run raises RuntimeError: .*\(program.py:2\)\n", done.stdout), done.stdout


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
