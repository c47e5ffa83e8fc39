"""Races in processes that a program starts: in its report and its exit status, however they start and end."""

import json
import os
import shutil
import subprocess
import sys
import zipapp

import pytest
from cli_kit import environment, flambeau_run, program
from seeds import EXHAUSTIVE
from test_pytest_plugin import run as pytest_run

RACE = """
import torch

def racing():
    side = torch.cuda.Stream()
    x = torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    x.fill_(1)
    with torch.cuda.stream(side):
        y = x * 2
    torch.cuda.synchronize()

def race():
    try:
        racing()
    except RuntimeError:
        print("swallowed", flush=True)

def ranked(rank):
    race()
"""

WAYS = {
    "spawn": "c = multiprocessing.get_context('spawn').Process(target=race); c.start(); c.join()",
    "fork": "c = multiprocessing.get_context('fork').Process(target=race); c.start(); c.join()",
    "forkserver": "c = multiprocessing.get_context('forkserver').Process(target=race); c.start(); c.join()",
    "torch.multiprocessing": "torch.multiprocessing.spawn(ranked)",
    "pool": "with multiprocessing.get_context('spawn').Pool(1) as pool: pool.apply(race)",
    "executor": "with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('fork')) as pool: pool.submit(race).exception()",
    "subprocess": "subprocess.run([sys.executable, 'child.py'])",
    "module": "subprocess.run([sys.executable, '-m', 'child'])",
    "flambeau": "subprocess.run([sys.executable, 'direct.py'])",
    "grandchild": "subprocess.run([sys.executable, 'parent.py'])",
    "os.fork": "pid = os.fork(); pid or [race(), sys.exit(0)]; os.waitpid(pid, 0)",
    "os._exit": "subprocess.run([sys.executable, '-c', 'from child_race import race; race(); import os; os._exit(0)'])",
    "kill": "subprocess.run([sys.executable, '-c', 'from child_race import race; race(); import os; os.kill(os.getpid(), 9)'])",
    "nested": "subprocess.run([sys.executable, '-m', 'flambeau', 'run', '--quiet', '--races', 'warn', 'child.py'])",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "child.py").write_text(f"{RACE}\nrace()\n")
    (tmp_path / "child_race.py").write_text(RACE)
    (tmp_path / "direct.py").write_text(
        f"{RACE}\nrace()\n".replace("import torch", "import flambeau as torch")
    )
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys, torch\ntorch.ones(3, device='cuda')\nsubprocess.run([sys.executable, 'child.py'])\n"
    )
    return tmp_path


def started(folder, how):
    modules = "import concurrent.futures, multiprocessing, os, subprocess, sys\n"
    return program(folder, f"{modules}{RACE}\nif __name__ == '__main__':\n    {how}\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_race_in_a_child_is_the_programs_race(folder, way):
    path = started(folder, WAYS[way])
    done = flambeau_run(
        folder, "--races", "warn", path, env={"PYTHONPATH": f"{environment()['PYTHONPATH']}:{folder}"}
    )
    assert done.status == 0, done.err
    races = [
        (process, race)
        for process in done.report["processes"]
        for machine in process["machines"]
        for race in machine["certificate"]["races"]
    ]
    assert len(races) == 1, done.err
    process, race = races[0]
    assert race["second"]["source"] == "y = x * 2" and race["count"] == 1
    assert way == "pool" or process["finished"] is (
        way not in ("os._exit", "kill")
    )  # a pool ends its own by a signal
    assert f"on process {process['pid']}" in done.err and "1 race found" in done.err
    assert "RaceWarning" not in done.err and "Exception ignored" not in done.err


@pytest.mark.parametrize("way", WAYS if EXHAUSTIVE else ["fork", "subprocess", "kill", "nested"])
def test_a_race_in_a_child_decides_the_exit_status(folder, way):
    how = WAYS[way].replace("'--races', 'warn', ", "")
    done = flambeau_run(folder, "--races", "error", started(folder, how))
    assert done.status == 3 and done.report["exit_status"] == 3 and "swallowed" in done.out, done.err


def test_processes_without_races_are_proved_each_in_itself(folder):
    quiet = "subprocess.run([sys.executable, '-c', 'import torch; print(torch.ones(3, device=\"cuda\").sum().item())'])"
    done = flambeau_run(folder, started(folder, f"{quiet}; {quiet}; torch.ones(3, device='cuda')"))
    assert done.status == 0 and done.out == "3.0\n3.0\n"
    assert "Race-free under every schedule, given that:" in done.err
    assert "processes  2 that the program started used CUDA devices, too" in done.err
    assert "Race-free under every schedule, each process by itself" in done.err
    assert len(done.report["processes"]) == 2 and len(done.report["machines"]) == 1


def test_a_process_that_is_killed_has_no_certificate(folder):
    child = "import torch, os; torch.ones(3, device='cuda'); os.kill(os.getpid(), 9)"
    done = flambeau_run(folder, started(folder, f"subprocess.run([sys.executable, '-c', {child!r}])"))
    assert done.status == 0
    assert "No race in this run, but not certified for every schedule:" in done.err
    assert "had not ended, or was killed" in " ".join(done.err.split())


def test_children_that_use_no_device_are_not_mentioned(folder):
    done = flambeau_run(
        folder, started(folder, "subprocess.run([sys.executable, '-c', 'import torch; torch.ones(3)'])")
    )
    assert done.report["processes"] == [] and "processes" not in done.err


def test_nothing_is_left_behind(folder):
    temporary = folder / "temporary"
    temporary.mkdir()
    done = flambeau_run(folder, started(folder, WAYS["nested"]), env={"TMPDIR": str(temporary)})
    assert done.status == 0 and list(temporary.iterdir()) == []


def test_a_fork_that_goes_on_with_the_program_prints_no_report_of_its_own(folder):
    path = program(
        folder,
        "import os, torch\npid = os.fork()\ntorch.ones(3, device='cuda')\npid and os.waitpid(pid, 0)\n",
    )
    done = flambeau_run(folder, path)
    assert done.status == 0 and done.err.count("── flambeau ──") == 1
    assert len(done.report["processes"]) == 1 and len(done.report["machines"]) == 1


def launch(folder, *arguments):
    command = [sys.executable, "-m", "flambeau", "launch", "--nproc-per-node", "2", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment(), cwd=folder, check=False
    )


ENDS = {
    "raises": "racing()",
    "swallows": "race()",
    "then fails otherwise": "race(); raise SystemExit(7)",
    "is killed": "race(); os.kill(os.getpid(), 9)",
    "exits at once": "race(); os._exit(0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_launch_ends_with_3_whatever_becomes_of_the_rank(folder, end):
    text = f"import os\n{RACE}\nif os.environ['RANK'] == '1':\n    "
    path = program(folder, f"{text}{ENDS[end]}\n")
    done = launch(folder, "--races", "error", "--report", folder / "report.json", path)
    assert done.returncode == 3, done.stderr
    assert "1 race found" in done.stderr and "on rank 1" in done.stderr


def test_launch_ends_with_3_where_another_rank_fails_first(folder):
    text = f"""
import os, time, torch
{RACE}
import torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    race()
dist.barrier()
os.environ["RANK"] == "0" and os._exit(9)
dist.barrier()
"""
    done = launch(folder, "--races", "error", program(folder, text))
    assert done.returncode == 3, done.stderr


def test_launch_ends_with_3_where_a_restart_went_well(folder):
    text = f"import os\n{RACE}\n"
    text += "if os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    race()\n"
    done = launch(folder, "--races", "error", "--max-restarts", "1", program(folder, text))
    assert done.returncode == 3 and "1 race found" in done.stderr, done.stderr


def test_a_race_in_a_child_of_a_rank_counts(folder):
    text = "import os, subprocess, sys, torch\n"
    text += "os.environ['RANK'] == '0' and subprocess.run([sys.executable, 'child.py'])\n"
    done = launch(folder, "--races", "error", program(folder, text))
    assert done.returncode == 3 and "1 race found" in done.stderr, done.stderr


def test_torchrun_reports_through_its_parent(folder):
    text = "import os, torch\nfrom child_race import race\nif os.environ['RANK'] == '1':\n    race()\n"
    path = program(folder, text)
    done = flambeau_run(
        folder, "--races", "error", "-m", "torch.distributed.run", "--nproc-per-node", "2", path
    )
    assert done.status == 3 and "(on rank 1)" in done.err, done.err


def test_sigterm_leaves_the_report(folder):
    path = program(
        folder,
        "import os, signal, torch\ntorch.ones(3, device='cuda')\nos.kill(os.getpid(), signal.SIGTERM)\nprint('no')\n",
    )
    done = flambeau_run(folder, path)
    assert done.status == 143 and not done.out and done.report["exit_status"] == 143
    assert "Race-free under every schedule as far as it ran" in done.err


def test_a_programs_own_handler_of_sigterm_stays(folder):
    path = program(
        folder,
        "import os, signal, torch\nsignal.signal(signal.SIGTERM, lambda *_: print('mine'))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n",
    )
    done = flambeau_run(folder, path)
    assert done.status == 0 and done.out == "mine\n"


def test_a_zip_application_runs(folder):
    app = folder / "app"
    app.mkdir()
    shutil.copy(folder / "child_race.py", app)
    (app / "__main__.py").write_text("from child_race import race\nrace()\nprint(__name__)\n")
    zipapp.create_archive(app, folder / "app.pyz")
    shutil.rmtree(app)
    done = flambeau_run(folder, "--races", "warn", folder / "app.pyz")
    assert done.status == 0 and done.out == "__main__\n", done.err
    (race,) = done.certificate["races"]
    assert race["second"]["place"].startswith(os.path.join("app.pyz", "child_race.py"))


@pytest.mark.parametrize("way", ["spawn", "fork", "subprocess", "grandchild", "os._exit"])
def test_a_test_that_starts_racing_processes_fails(folder, way):
    """The pytest plugin reads their reports, too; without a race the test is certified with them."""
    test = f"import concurrent.futures, multiprocessing, os, subprocess, sys, torch\nfrom child_race import race\n\n\ndef test_it():\n    {WAYS[way]}\n"
    (folder / "test_it.py").write_text(test)
    for races, status in [("error", 1), ("warn", 0)][: 2 if EXHAUSTIVE or way == "subprocess" else 1]:
        options = ["--virtual-gpus=2", f"--gpu-races={races}", "--gpu-report=report.json"]
        returned, text = pytest_run(folder, *options, "test_it.py")
        assert returned == status, text
        (test_report,) = json.loads((folder / "report.json").read_text())["tests"]
        assert (
            sum(len(m["certificate"]["races"]) for p in test_report["processes"] for m in p["machines"]) == 1
        )
        if status:
            assert "In processes that the test started (process " in text
            assert "fill_ on the default stream of cuda:0 writes them" in text


ASKING = """
import threading, torch

event = threading.Event()
thread = threading.Thread(target=event.set)
thread.start()
answer = event.is_set()
x = torch.ones(8, device="cuda")
print((x * 2 if answer else x).sum().item())
thread.join()
"""


def test_what_a_process_asks_before_it_uses_a_device_counts(tmp_path):
    """Its import of torch is where its threads begin to be watched: what they ask may steer what it does."""
    (tmp_path / "child.py").write_text(ASKING)
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'])\n"
    )
    done = flambeau_run(tmp_path, "--races", "warn", "parent.py")
    assert "the program calls Event.is_set() at child.py:7" in done.out + done.err, done.err
    alone = ASKING.replace("threading, torch", "threading, flambeau as torch")
    alone += "import subprocess, selectors, asyncio\n"  # whose modules change as they are imported
    alone += "import flambeau.runtime.system as system\nprint(system.accelerator().detector.certificate())\n"
    env = {**environment(), "FLAMBEAU_RACES": "warn", "FLAMBEAU_VIRTUAL_DEVICES": "1"}
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, env=env, check=False)
    assert "the program calls Event.is_set() at <string>:7" in done.stdout, done.stderr


def test_tracebacks_of_children_end_in_the_program(tmp_path):
    (tmp_path / "child.py").write_text("import torch\ntorch.zeros(2, 3) @ torch.zeros(4, 5)  # here\n")
    parent = program(tmp_path, "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'])\n")
    short = flambeau_run(tmp_path, "--quiet", parent).err
    assert short.count('File "') == 1 and "# here" in short and "mat1 and mat2 shapes" in short
    assert short.splitlines()[-1].startswith("RuntimeError: ")
    whole = flambeau_run(tmp_path, "--quiet", "--full-traceback", parent).err
    assert whole.count('File "') > 2 and whole.splitlines()[-1] == short.splitlines()[-1]


def test_a_childs_own_excepthook_stays(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.excepthook = lambda *error: print('own hook')\n"
    )
    parent = program(
        tmp_path,
        "import os, subprocess, sys\nos.environ['PYTHONPATH'] += os.pathsep + os.getcwd()\n"
        "sys.stdout.flush(); subprocess.run([sys.executable, '-c', 'import torch; 1 / 0'])\n",
    )
    assert flambeau_run(tmp_path, "--quiet", parent).out.split("\n")[0] == "own hook"
