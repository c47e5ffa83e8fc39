"""`flambeau run`: the program sees what it would see under Python, and its exit status is its own."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest
from cli.cli_kit import environment, flambeau_run, program

from flambeau import version
from flambeau.cli import run
from flambeau.cli.main import main
from flambeau.runtime.devices import configuration

DEFAULTS = {
    "FLAMBEAU_VIRTUAL_DEVICES": "2", "FLAMBEAU_VIRTUAL_PROFILE": "a100-40g", "FLAMBEAU_RACES": "warn",
}  # fmt: skip

RACE = """
import torch
s = torch.cuda.Stream()
a = torch.zeros(100, device='cuda')
with torch.cuda.stream(s):
    b = a + 1
"""


@pytest.mark.parametrize(
    "text, status, said",
    [
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit('no luck')", 1, "no luck\n"),
        ("raise SystemExit(300)", 300 & 0xFF, ""),
        ("x = 1", 0, ""),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
    ],
)
def test_the_exit_status_is_the_programs(tmp_path, text, status, said):
    done = flambeau_run(tmp_path, "--quiet", program(tmp_path, text))
    assert done.status == status
    assert done.err.endswith(said)
    assert done.report["exit_status"] == status


def test_an_exception_shows_the_programs_frames_alone(tmp_path):
    script = program(tmp_path, "import torch\ndef f(a):\n    return a @ a\nf(torch.ones(2, 3))\n")
    done = flambeau_run(tmp_path, "--quiet", script)
    assert done.status == 1
    assert done.err.startswith("Traceback (most recent call last):\n")
    frames = [line.strip() for line in done.err.splitlines() if line.startswith("  File ")]
    assert frames == [f'File "{script}", line 4, in <module>', f'File "{script}", line 3, in f']
    assert done.err.splitlines()[-1].startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied")


def test_what_the_package_caught_within_is_no_part_of_a_traceback(tmp_path):
    script = program(
        tmp_path,
        """
        import torch
        def fail():
            raise ValueError("b")
        ours = "def find(fail):\\n  try:\\n    [].pop()\\n  except IndexError:\\n    fail()\\n"
        exec(compile(ours, torch.__file__.replace("__init__", "found"), "exec"))
        try:
            {}["a"]
        except KeyError:
            find(fail)
        """,
    )
    done = flambeau_run(tmp_path, "--quiet", script)
    assert "KeyError: 'a'\n\nDuring handling" in done.err, done.err
    assert done.err.endswith("ValueError: b\n")
    assert "IndexError" not in done.err
    assert "IndexError" in flambeau_run(tmp_path, "--quiet", "--full-traceback", script).err


def test_an_exception_in_a_thread_shows_the_programs_frames_alone(tmp_path):
    script = program(
        tmp_path,
        """
        import threading, torch
        threads = [threading.Thread(target=f) for f in (lambda: torch.ones(2) @ torch.ones(3), exit)]
        for thread in threads:
            thread.start()
            thread.join()
        """,
    )
    done = flambeau_run(tmp_path, "--quiet", script)
    assert done.status == 0
    assert done.err.startswith("Exception in thread Thread-1 (<lambda>):\nTraceback"), done.err
    assert done.err.count("Exception in thread") == 1
    assert "flambeau/" not in done.err.replace(str(tmp_path), "")


def test_full_traceback_shows_flambeaus_frames_too(tmp_path):
    script = program(tmp_path, "import torch\ntorch.ones(2, 3) @ torch.ones(2, 3)\n")
    done = flambeau_run(tmp_path, "--quiet", "--full-traceback", script)
    assert "flambeau/tensor/call.py" in done.err


def test_chained_errors_are_shown_with_their_own_frames(tmp_path):
    script = program(
        tmp_path,
        """
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise KeyError('b') from error
        """,
    )
    done = flambeau_run(tmp_path, "--quiet", script)
    assert done.status == 1
    assert "ZeroDivisionError" in done.err and "direct cause" in done.err and "KeyError: 'b'" in done.err
    assert "flambeau" not in done.err.replace(str(tmp_path), "")


def test_a_syntax_error_names_the_line(tmp_path):
    done = flambeau_run(tmp_path, "--quiet", program(tmp_path, "x = (\n"))
    assert done.status == 1
    assert 'program.py", line 1' in done.err and "SyntaxError" in done.err


def test_the_programs_own_hook_sees_its_error(tmp_path):
    script = program(
        tmp_path,
        """
        import sys
        sys.excepthook = lambda kind, error, trace: print('hook', kind.__name__)
        raise ValueError
        """,
    )
    done = flambeau_run(tmp_path, "--quiet", script)
    assert (done.status, done.out, done.err) == (1, "hook ValueError\n", "")


def test_a_script_that_does_not_exist(tmp_path):
    done = flambeau_run(tmp_path, "nothing.py")
    assert done.status == 2
    assert "can't open file 'nothing.py'" in done.err and "Traceback" not in done.err


def test_a_report_that_cannot_be_written_is_refused_before_the_program_runs(tmp_path):
    script = program(tmp_path, "print('ran')")
    done = flambeau_run(tmp_path, "--trace", tmp_path / "none" / "trace.json", script)
    assert (done.status, done.out) == (2, "")


@pytest.mark.parametrize("option", ["--trace", "--picture", "--report"])
def test_a_folder_is_no_report(tmp_path, option):
    done = flambeau_run(tmp_path, option, tmp_path, program(tmp_path, "print('ran')"))
    assert (done.status, done.out) == (2, "")
    assert done.err == f"flambeau run: can't write {str(tmp_path)!r}: it is a folder\n"


def test_one_file_cannot_hold_two_reports(tmp_path):
    options = ["--trace", tmp_path / "out", "--picture", tmp_path / "out"]
    done = flambeau_run(tmp_path, *options, program(tmp_path, "print('ran')"))
    assert (done.status, done.out) == (2, "")
    assert done.err == f"flambeau run: can't write {str(tmp_path / 'out')!r}: it is asked for twice\n"


@pytest.mark.parametrize("end", ["sys.stdout.close()", "sys.stdout = None", "os.close(1)"])
def test_a_program_may_end_without_its_output(tmp_path, end):
    done = flambeau_run(tmp_path, program(tmp_path, f"import os, sys\n{end}\nsys.exit(4)\n"))
    assert done.status == done.report["exit_status"] == 4
    assert "Traceback" not in done.err and "used no CUDA device" in done.err


def test_a_folder_is_no_program(tmp_path):
    done = flambeau_run(tmp_path, tmp_path)
    assert done.status == 2
    assert done.err == f"flambeau run: can't open file {str(tmp_path)!r}: it is a folder\n"


def test_a_report_that_cannot_be_written_in_the_end_is_said_and_the_others_are_written(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    script = program(tmp_path, f"import os; os.rmdir({str(folder)!r})")
    done = flambeau_run(tmp_path, "--trace", folder / "trace.json", script)
    assert done.status == 1 and done.report["exit_status"] == 1
    assert "can't write" in done.err and "No such file or directory" in done.err
    assert (
        "Traceback" not in done.err and "report.json" in done.err and "trace.json" in done.err.splitlines()[0]
    )


def test_the_program_sees_its_name_file_and_arguments(tmp_path):
    script = program(
        tmp_path,
        """
        import sys, os
        print(__name__, sys.argv[1:], sys.argv[0] == __file__, sys.path[0] == os.path.dirname(__file__))
        import __main__
        print(__main__.__dict__ is globals())
        """,
    )
    done = flambeau_run(tmp_path, "--quiet", script, "--devices", "7", "-m", "x")
    assert done.out.splitlines() == ["__main__ ['--devices', '7', '-m', 'x'] True True", "True"]


def test_a_module_runs_with_dash_m(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    program(package, "import sys; print(__name__, sys.argv[1:], __package__)", "__main__.py")
    program(package, "import package.__main__", "__init__.py").write_text("")
    done = flambeau_run(tmp_path, "--quiet", "-m", "package", "a", "-b")
    assert (done.status, done.out) == (0, "__main__ ['a', '-b'] package\n")


def test_a_module_that_does_not_exist(tmp_path):
    done = flambeau_run(tmp_path, "--quiet", "-m", "no_such_module")
    assert done.status == 1 and "No module named no_such_module" in done.err
    done = flambeau_run(tmp_path, "--quiet", "-m", "no_such_package.module")
    assert done.status == 1 and "No module named 'no_such_package'" in done.err
    assert "File" not in done.err  # neither this command's frames nor importlib's


def test_a_program_may_come_through_a_pipe(tmp_path):
    read, write = os.pipe()
    os.write(write, b"import torch; print(torch.cuda.device_count())")
    os.close(write)
    command = [sys.executable, "-m", "flambeau", "run", "--quiet", f"/dev/fd/{read}"]
    done = subprocess.run(
        command, capture_output=True, text=True, pass_fds=[read], env=environment(), cwd=tmp_path, check=False
    )
    os.close(read)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_a_program_that_may_not_be_read(tmp_path, monkeypatch, capsys):
    """As the system says; root, who may read everything, included."""
    script = program(tmp_path, "print('ran')")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != script)
    assert main(["run", str(script)]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"flambeau run: can't open file {str(script)!r}: permission denied\n")


def test_the_command_says_its_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"flambeau {version.flambeau}\n"


def test_exit_functions_of_the_program_run_while_its_devices_are_open(tmp_path):
    script = program(
        tmp_path,
        """
        import atexit, torch
        a = torch.ones(3, device='cuda')
        atexit.register(lambda: print(a.sum().item()))
        """,
    )
    done = flambeau_run(tmp_path, "--quiet", script)
    assert (done.status, done.out, done.err) == (0, "3.0\n", "")


def test_threads_are_waited_for(tmp_path):
    script = program(
        tmp_path,
        """
        import threading, torch
        main = threading.main_thread()
        def work():
            while not done: pass
            print(torch.ones(2, device='cuda').sum().item())
        done = []
        threading.Thread(target=work).start()
        done.append(1)
        """,
    )
    assert flambeau_run(tmp_path, "--quiet", script).out == "2.0\n"


# -- races ---------------------------------------------------------------------------------------------


def test_a_race_error_ends_with_3(tmp_path):
    done = flambeau_run(tmp_path, "--races", "error", program(tmp_path, RACE))
    assert done.status == 3
    assert "\ntorch.RaceError: " in done.err
    assert len(done.certificate["races"]) == 1


VIEWED = """
    import torch
    h = torch.zeros(64).pin_memory()
    v = h.numpy()
    x = h.to("cuda", non_blocking=True)
    WRITE
"""


def test_strict_withholds_a_certificate_that_leans_on_views(tmp_path):
    text = (
        "nothing writes pinned memory through the array of numpy() at program.py:4 between the copy at program.py:5 and "
        "the end of the program"
    )
    path = program(tmp_path, VIEWED.replace("WRITE", ""))
    done = flambeau_run(tmp_path, path)
    assert done.certificate["race_free"] and text in done.certificate["assumptions"]
    for options, env in ((["--strict"], {}), ([], {"FLAMBEAU_STRICT": "1"})):
        done = flambeau_run(tmp_path, *options, path, env=env)
        assert not done.certificate["race_free"] and done.status == 0
        assert done.certificate["violated"] == [f"it cannot be seen that {text}"]
    assert (
        "FLAMBEAU_STRICT='yes': must be one of 0, 1"
        in flambeau_run(tmp_path, path, env={"FLAMBEAU_STRICT": "yes"}).err
    )


def test_a_race_that_shows_at_the_end_of_the_program_ends_with_3(tmp_path):
    done = flambeau_run(tmp_path, "--races", "error", program(tmp_path, VIEWED.replace("WRITE", "v[:] = 1")))
    (race,) = done.certificate["races"]
    assert done.status == 3 and race["first"]["place"] == "program.py:5"
    assert race["fix"]["where"] == "After program.py:5 insert"
    assert "before the host writes there, which it did afterwards" in race["fix"]["hint"]


def test_a_caught_race_error_still_ends_with_3(tmp_path):
    text = RACE.replace(
        "    b = a + 1", "    try:\n        a + 1\n    except RuntimeError:\n        print('caught')"
    )
    done = flambeau_run(tmp_path, "--races", "error", program(tmp_path, text + "raise SystemExit(0)"))
    assert (done.status, done.out) == (3, "caught\n")


def test_races_of_a_machine_of_the_programs_own_count_as_it_says(tmp_path):
    own = "import torch\nwith torch.virtual(devices=1, races='{}'):\n    try:\n{}\n    except torch.RaceError: pass\n"
    body = "\n".join(f"        {line}" for line in RACE.splitlines() if line and "import" not in line)
    for races, option, status in (("error", "off", 3), ("warn", "error", 0)):
        done = flambeau_run(tmp_path, "--races", option, program(tmp_path, own.format(races, body)))
        assert (done.status, done.machine["races"]) == (status, races), done.err
        assert len(done.certificate["races"]) == 1


def test_a_race_under_warn_is_said_once_and_keeps_the_status(tmp_path):
    done = flambeau_run(tmp_path, program(tmp_path, RACE))
    assert done.status == 0
    assert "RaceWarning" not in done.err
    assert done.err.count("wait_stream") == 1
    assert "1 race found" in done.err


def test_one_missing_call_is_one_kind(tmp_path):
    text = RACE + "    c = a + 2\n    d = a + 3\n"
    done = flambeau_run(tmp_path, program(tmp_path, text))
    assert "3 races found, of 1 kind\n" in done.err
    assert done.err.count("wait_stream") == 1
    assert len(done.certificate["races"]) == 3


def test_the_screen_fits(tmp_path):
    many = "\n".join(f"with torch.cuda.stream(s):\n    {'b' * 90}{i} = a + {i}" for i in range(20))
    streams = "\n".join(
        f"t{i} = torch.cuda.Stream()\nwith torch.cuda.stream(t{i}): a.mul_(2)" for i in range(9)
    )
    done = flambeau_run(tmp_path, program(tmp_path, RACE + many + "\n" + streams))
    lines = done.err.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 70


def test_the_token_shown_runs_the_same_order_again(tmp_path):
    script = program(tmp_path, RACE)
    first = flambeau_run(tmp_path, "--schedule", "random:5", script)
    token, hashed = first.machine["token"], first.machine["trace_hash"]
    assert f"replay     --schedule replay:{token}\n" in first.err
    first.file.unlink()
    again = flambeau_run(tmp_path, "--schedule", f"replay:{token}", script)
    assert again.machine["trace_hash"] == hashed
    assert again.machine["time_ns"] > 0
    first.file.unlink()
    last = flambeau_run(tmp_path, script, "x", "--schedule", f"replay:{token}")
    assert last.machine["trace_hash"] == hashed and "the last --schedule is this command's own" in last.err


def test_a_programs_own_schedule_is_its_own(tmp_path):
    script = program(tmp_path, "import sys; print(sys.argv[1:])")
    for schedule in ("cosine", "random:5"):
        done = flambeau_run(tmp_path, script, "--schedule", schedule)
        assert done.out == f"['--schedule', '{schedule}']\n"
    last = ["--schedule", "replay:x"]
    assert flambeau_run(tmp_path, "--schedule", "earliest", script, *last).out == f"{last}\n"


def test_a_token_of_another_program_is_refused(tmp_path):
    long = program(tmp_path, "import torch\nx = torch.ones(3, device='cuda')\nx.add_(1)\n")
    token = flambeau_run(tmp_path, "--schedule", "random:5", long).machine["token"]
    for text, why in (
        ("import torch\nx = torch.ones(3, device='cuda')\n", "the program has ended"),
        ("import torch\nx = torch.ones(4, device='cuda')\n", "not the recorded one"),
    ):
        done = flambeau_run(tmp_path, "--schedule", f"replay:{token}", program(tmp_path, text))
        assert (
            done.status == 1
            and "not the one that the token was recorded from" in done.err
            and why in done.err
        )


def test_a_kernel_that_failed_after_the_end_is_reported(tmp_path):
    script = program(
        tmp_path,
        """
        import torch
        x = torch.arange(3, device='cuda')
        y = x[torch.tensor([5], device='cuda')]
        print('end')
        """,
    )
    done = flambeau_run(tmp_path, script)
    assert (done.status, done.out) == (1, "end\n")
    assert "ended without waiting for this" in done.err and "index" in done.err
    assert done.report["exit_status"] == 1


def test_a_failure_that_the_program_showed_is_not_told_again(tmp_path):
    """The device has failed: who waits for it at the end hears the same once more."""
    script = program(
        tmp_path,
        """
        import torch
        x = torch.arange(3, device='cuda')
        y = x[torch.tensor([5], device='cuda')]
        torch.cuda.synchronize()
        """,
    )
    done = flambeau_run(tmp_path, script)
    assert done.status == 1 and "index 5 is out of bounds" in done.err
    assert "ended without waiting for this" not in done.err


QUEUES_AN_INTERRUPT = """
import signal, sys, torch
from flambeau.runtime import system
x = torch.zeros(1 << 20, device='cuda')
context = system.context_of(x.device)
context.driver.host_call(lambda: signal.raise_signal(signal.SIGINT), context.default_stream.handle)
x.add_(1)
"""


def test_ctrl_c_in_a_wait_ends_with_130_and_everything_is_back(tmp_path):
    done = flambeau_run(
        tmp_path, program(tmp_path, QUEUES_AN_INTERRUPT + "torch.cuda.synchronize()\nprint('on')")
    )
    assert (done.status, done.out) == (130, "")
    assert "KeyboardInterrupt" in done.err and "interrupted while" not in done.err
    assert done.machine["devices"][0]["left_allocated"] == 0


def test_ctrl_c_after_the_programs_end_is_said_in_one_line(tmp_path):
    done = flambeau_run(tmp_path, program(tmp_path, QUEUES_AN_INTERRUPT + "print('end')"))
    assert (done.status, done.out) == (130, "end\n")
    assert done.err.startswith("flambeau run: interrupted while the program's last work was waited for\n── ")
    assert done.report["exit_status"] == 130 and len(done.report["machines"]) == 1


# -- memory --------------------------------------------------------------------------------------------


def test_all_memory_is_back_after_a_program_that_raises(tmp_path):
    script = program(
        tmp_path,
        """
        import torch
        keep = torch.ones(1 << 20, device='cuda')
        class Holder: pass
        cycle = Holder(); cycle.me = cycle; cycle.memory = keep * 2
        def f(x):
            inner = x + 1
            raise ValueError('stop')
        f(keep)
        """,
    )
    done = flambeau_run(tmp_path, script)
    assert done.status == 1
    assert done.machine["devices"][0]["peak_allocated"] == 3 << 22
    assert [device["left_allocated"] for device in done.machine["devices"]] == [0, 0]
    assert "never freed" not in done.err
    assert "Race-free under every schedule as far as it ran" in done.err


def test_all_memory_is_back_after_a_program_with_a_function_of_its_own(tmp_path):
    script = program(
        tmp_path,
        """
        import multiprocessing, torch
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): return x * 2
            @staticmethod
            def backward(ctx, grad): return grad * 2
        x = torch.ones(3, device='cuda', requires_grad=True)
        Double.apply(x).sum().backward()
        """,
    )
    done = flambeau_run(tmp_path, script)
    assert done.status == 0, done.err
    assert done.machine["devices"][0]["peak_allocated"] > 0
    assert done.machine["devices"][0]["left_allocated"] == 0


def test_memory_that_is_never_freed_is_said(tmp_path):
    script = program(tmp_path, "import sys, torch\nsys.kept = torch.ones(256, device='cuda:1')\n")
    done = flambeau_run(tmp_path, script)
    assert done.machine["devices"][1]["left_allocated"] == 1024
    assert "cuda:1  peak 1.00 KiB allocated, 2.00 MiB reserved; 1.00 KiB never freed" in done.err


# -- the report ----------------------------------------------------------------------------------------


def test_the_default_machine(tmp_path):
    done = flambeau_run(
        tmp_path, program(tmp_path, "import torch; print(torch.cuda.device_count()); torch.cuda.init()")
    )
    assert done.out == "2\n"
    assert (done.machine["driver"], done.machine["profile"], done.machine["schedule"]) == (
        "virtual", "a100-40g", "earliest",
    )  # fmt: skip
    assert [device["name"] for device in done.machine["devices"]] == ["NVIDIA A100-SXM4-40GB"] * 2
    assert done.certificate["race_free"] is True  # races were looked for
    assert "Race-free under every schedule" in done.err


def test_a_program_that_uses_no_cuda(tmp_path):
    done = flambeau_run(tmp_path, program(tmp_path, "print(1)"))
    assert (done.status, done.out) == (0, "1\n")
    assert [done.report[name] for name in ("exit_status", "machines", "processes")] == [0, [], []]
    assert "used no CUDA device" in done.err


def test_quiet_prints_nothing(tmp_path):
    done = flambeau_run(tmp_path, "--quiet", program(tmp_path, RACE))
    assert (done.status, done.err) == (0, "")


def test_races_off_says_that_nobody_looked(tmp_path):
    done = flambeau_run(tmp_path, "--races", "off", program(tmp_path, RACE))
    assert done.certificate is None
    assert "not detected" in done.err


def test_a_program_that_queries_is_not_certified(tmp_path):
    script = program(tmp_path, "import torch\ns = torch.cuda.Stream()\nwhile not s.query(): pass\n")
    done = flambeau_run(tmp_path, script)
    assert done.certificate["race_free"] is False and done.certificate["races"] == []
    assert "not certified" in done.err and "program.py:3" in done.err


def test_a_program_that_opens_its_own_machine(tmp_path):
    script = program(
        tmp_path,
        """
        import flambeau, torch
        assert torch is flambeau
        with flambeau.virtual(devices=5, profile='h100', races='warn'):
            assert torch.ones(2, device='cuda:4').sum().item() == 2
        torch.ones(2, device='cuda:1')
        """,
    )
    done = flambeau_run(tmp_path, script)
    assert done.status == 0, done.err
    assert [(m["profile"], len(m["devices"])) for m in done.report["machines"]] == [
        ("h100", 5),
        ("a100-40g", 2),
    ]


def test_race_sites_in_the_report(tmp_path):
    done = flambeau_run(tmp_path, program(tmp_path, RACE))
    (race,) = done.certificate["races"]
    assert [race[side]["place"] for side in ("first", "second")] == ["program.py:4", "program.py:6"]
    assert [race[side]["kind"] for side in ("first", "second")] == ["writes", "reads"]
    assert race["fix"]["call"] == "wait_stream" and race["fix"]["verified"] is True
    assert race["first"]["end"] - race["first"]["begin"] == 400
    json.dumps(done.report)


def test_sites_survive_a_change_of_folder(tmp_path):
    program(tmp_path, "import os\nos.chdir('/')\n" + RACE)
    done = flambeau_run(tmp_path, "program.py", cwd=tmp_path)
    assert "b = a + 1" in done.err


def test_the_trace_is_a_chrome_trace(tmp_path):
    trace = tmp_path / "trace.json"
    flambeau_run(tmp_path, "--trace", trace, program(tmp_path, RACE + "s.synchronize()\nb.cpu()\n"))
    events = json.loads(trace.read_text())["traceEvents"]
    assert {"X", "M"} <= {event["ph"] for event in events}
    complete = [event for event in events if event["ph"] == "X"]
    assert len(complete) >= 3
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and {"name", "pid", "tid"} <= e.keys() for e in complete)
    assert any("add" in event["name"] for event in complete)


def test_the_picture_is_well_formed(tmp_path):
    picture = tmp_path / "picture.svg"
    done = flambeau_run(tmp_path, "--picture", picture, program(tmp_path, RACE))
    root = ElementTree.parse(picture).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall(".//{http://www.w3.org/2000/svg}rect")) > 3
    assert f"written    {picture}" in done.err


# -- settings ------------------------------------------------------------------------------------------

SHOW = "import torch; torch.cuda.init(); print(torch.cuda.device_count(), torch.cuda.get_device_name(0))"
ENVIRONMENT = {
    "FLAMBEAU_VIRTUAL_DEVICES": "3",
    "FLAMBEAU_VIRTUAL_PROFILE": "v100",
    "FLAMBEAU_SCHEDULE": "random:4",
    "FLAMBEAU_RACES": "off",
}


def test_the_environment_is_heard(tmp_path):
    done = flambeau_run(tmp_path, program(tmp_path, SHOW), env=ENVIRONMENT)
    assert done.out.startswith("3 Tesla V100")
    assert (done.machine["schedule"], done.certificate) == ("random:4", None)


def test_options_go_before_the_environment(tmp_path):
    options = ["--devices", "1", "--profile", "h200", "--schedule", "adversarial:2", "--races", "warn"]
    done = flambeau_run(tmp_path, *options, program(tmp_path, SHOW), env=ENVIRONMENT)
    assert done.out.startswith("1 NVIDIA H200")
    assert done.machine["schedule"] == "adversarial:2"
    assert done.certificate["race_free"] is True


THREADS = """
import os, subprocess, sys, torch
print(torch.get_num_threads(), flush=True)
if not sys.argv[1:]:
    subprocess.run([sys.executable, __file__, 'child'])
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="BLAS has one thread here anyway")
@pytest.mark.parametrize("asked, seen", [("", "1\n1\n"), ("2", "2\n2\n")])
def test_blas_computes_on_one_thread_unless_asked(tmp_path, asked, seen):
    env = dict.fromkeys(run._BLAS, "") | ({"OPENBLAS_NUM_THREADS": asked} if asked else {})
    assert flambeau_run(tmp_path, "--quiet", program(tmp_path, THREADS), env=env).out == seen


def test_driver_virtual_needs_nothing_else(tmp_path):
    done = flambeau_run(tmp_path, "--driver", "virtual", program(tmp_path, SHOW))
    assert done.out.startswith("2 NVIDIA A100")


def test_driver_cuda_never_falls_back(tmp_path):
    text = "import torch; print(torch.cuda.is_available() and torch.cuda.get_device_name(0).startswith('virtual'))"
    done = flambeau_run(
        tmp_path, "--driver", "cuda", program(tmp_path, text), env={"FLAMBEAU_VIRTUAL_DEVICES": "3"}
    )
    assert done.out == "False\n"


def test_beside_a_gpu_the_defaults_are_the_gpu_and_no_look_for_races(monkeypatch):
    options = argparse.Namespace(
        driver=None,
        devices=None,
        profile=None,
        schedule=None,
        races=None,
        strict=False,
        float32_precision=None,
        compile=None,
        full_traceback=False,
    )
    for no_gpu, found in (("", {}), ("none here", DEFAULTS)):
        monkeypatch.setattr(configuration, "why_no_gpu", lambda no_gpu=no_gpu: no_gpu)
        monkeypatch.setattr(os, "environ", {"OPENBLAS_NUM_THREADS": "1"})
        run._set_environment(options)
        assert os.environ == {"OPENBLAS_NUM_THREADS": "1"} | found


def test_zero_devices_means_not_available(tmp_path):
    done = flambeau_run(
        tmp_path, "--devices", 0, program(tmp_path, "import torch; print(torch.cuda.is_available())")
    )
    assert done.out == "False\n"


@pytest.mark.parametrize(
    "variable, value, words",
    [
        ("FLAMBEAU_VIRTUAL_DEVICES", "many", ["'many'", "whole number"]),
        ("FLAMBEAU_VIRTUAL_PROFILE", "a9000", ["a9000", "a100-40g"]),
        ("FLAMBEAU_SCHEDULE", "random:x", ["random:x"]),
        ("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:x", ["max_split_size_mb", "'x'"]),
    ],
)
def test_malformed_variables_raise_at_first_use(tmp_path, variable, value, words):
    text = "import torch\nprint('imported')\ntorch.cuda.init()"
    done = flambeau_run(tmp_path, program(tmp_path, text), env={variable: value})
    assert (done.status, done.out) == (1, "imported\n")
    last = done.err.split("\n── ")[0].splitlines()[-1]
    assert last.startswith("ValueError:")
    assert [word for word in (variable, *words) if word not in last] == []


NOT_THERE, NO_PROFILE = "profile 'none.toml' cannot be read", "profile 'bad.toml': 'name' must be"
MALFORMED = [
    ("--devices=many", "devices must be an integer from 0 to 255, not 'many'"),
    ("--devices=-1", "devices must be an integer from 0 to 255, not '-1'"),
    ("--devices=", "devices must be an integer from 0 to 255, not ''"),
    ("--devices=256", "devices must be an integer from 0 to 255, not 256"),
    ("--profile=a9000", "no profile is called 'a9000'; there are a100-40g, "),
    ("--profile=", "no profile is called ''; there are a100-40g, "),
    ("--profile=none.toml", NOT_THERE),
    ("--profile=bad.toml", NO_PROFILE),
    ("--schedule=luck", "schedule 'luck' is not one of earliest, random:SEED, "),
    ("--schedule=", "schedule '' is not one of earliest, random:SEED, "),
    ("--schedule=random:x", "schedule 'random:x': 'x' is not an integer of at least 0"),
    ("--schedule=random", "schedule 'random': a number is missing, as in random:7"),
    ("--schedule=pct:1", "schedule 'pct:1': a number is missing"),
    ("--schedule=pct:1:0", "schedule 'pct:1:0': '0' is not an integer of at least 1"),
    ("--schedule=replay:x", "schedule 'replay:x': the token is of no version"),
]


@pytest.mark.parametrize(("option", "why"), MALFORMED)
@pytest.mark.parametrize("command", ["run", "trace", "launch"])
def test_malformed_options_are_refused_before_the_program_runs(
    tmp_path, monkeypatch, capsys, command, option, why
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text("name = 3")
    before = dict(os.environ)
    assert main([command, option, str(program(tmp_path, "print('it ran')"))]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"flambeau {command}: {why}") and said.err.count("\n") == 1
    assert not said.out and os.environ == before


def test_a_wrong_choice_is_a_wrong_command_line(tmp_path):
    done = flambeau_run(tmp_path, "--races", "maybe", program(tmp_path, SHOW))
    assert done.status == 2 and "invalid choice: 'maybe'" in done.err


def test_a_wrong_choice_in_the_environment_names_what_is_allowed(tmp_path):
    done = flambeau_run(tmp_path, program(tmp_path, SHOW), env={"FLAMBEAU_RACES": "maybe"})
    assert done.status == 1
    assert "ValueError: FLAMBEAU_RACES='maybe': must be one of off, warn, error" in done.err


def test_the_same_program_has_the_same_trace(tmp_path):
    script = program(tmp_path, RACE)
    hashes = {
        flambeau_run(tmp_path, "--schedule", "random:3", script).machine["trace_hash"] for _ in range(2)
    }
    assert len(hashes) == 1


_CHILDREN = """
import multiprocessing, torch

def child(number):
    torch.ones(1, device="cuda")

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    with context.Pool(2) as pool:
        pool.map(child, range(2))
"""


def test_processes_of_a_pool_are_in_the_report(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(_CHILDREN)
    done = flambeau_run(tmp_path, path)
    assert done.status == 0, done.err
    assert "that the program started used CUDA devices, too" in done.err
    assert 1 <= len(done.report["processes"]) <= 2  # one may have done all
    path.write_text("import torch")
    assert "that the program started" not in flambeau_run(tmp_path, path).err


def test_the_command_is_installed_under_its_name():
    from importlib.metadata import entry_points

    commands = [e for e in entry_points(group="console_scripts") if e.name == "flambeau"]
    if not commands:
        pytest.skip("flambeau is not installed here")
    assert commands[0].load()(["run", "/nothing/there.py"]) == 2
    assert "torch" not in sys.modules or sys.modules["torch"] is not sys.modules["flambeau"]


def test_a_failure_is_heard_of_where_the_program_asked_not_at_its_end(tmp_path):
    script = program(
        tmp_path,
        """
        import torch
        y = torch.zeros(3, device="cuda")[torch.tensor([7], device="cuda")]
        torch.cuda.synchronize()
        """,
    )
    done = flambeau_run(tmp_path, script)
    (violated,) = done.report["machines"][0]["certificate"]["violated"]
    assert "learned at program.py:4: which call" in violated


def test_what_threads_do_before_a_device_is_used_counts(tmp_path):
    text = """
        import threading
        import torch
        told, out = threading.Event(), []
        def work():
            out.append(torch.zeros(8, device="cuda"))
            told.set()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(out[0].sum().item())
        """
    ordered = flambeau_run(tmp_path, program(tmp_path, text))
    assert ordered.report["machines"][0]["certificate"]["race_free"]
    text = text.replace("thread.start()", "thread.start(); told.is_set()").replace(
        'out.append(torch.zeros(8, device="cuda"))', "pass"
    )
    asked = flambeau_run(tmp_path, program(tmp_path, text.replace("out[0]", "torch.zeros(8, device='cuda')")))
    (violated,) = asked.report["machines"][0]["certificate"]["violated"]
    assert "calls Event.is_set() at program.py:9" in violated


def test_programs_may_derive_classes_from_the_types_of_locks(tmp_path):
    text = """
        import threading
        class Again(type(threading.RLock())):
            def _recursion_count(self):
                return 1
        again = Again()
        with again, again:
            print(again._recursion_count(), again.acquire(blocking=False))
        print(isinstance(threading.RLock(), type(threading.RLock())))
        """
    plain = subprocess.run(
        [sys.executable, program(tmp_path, text)], capture_output=True, text=True, check=True
    )
    done = flambeau_run(tmp_path, program(tmp_path, "import torch\n" + dedent(text)))
    assert done.status == 0 and done.out == plain.stdout, done.err
