"""`flambeau launch` and `python -m flambeau.distributed.run`: environment, streams, failures, restarts, nodes, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from rank_kit import SOURCES, Said, environment, finish, free_port, start

from flambeau.distributed.launching.cluster_environment import detect_placement, first_host
from flambeau.distributed.launching.launch_options import get_args_parser
from flambeau.distributed.launching.workers import stream_bits
from flambeau.distributed.run import determine_local_world_size, plan_of, run

RUN = ("-m", "flambeau.distributed.run")
TELL = r"""
import json, os, sys
names = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC", "OMP_NUM", "TORCH_NCCL_ASYNC")
told = {name: value for name, value in os.environ.items() if name.startswith(names)}
print(json.dumps([told, sys.argv[1:]]) + '\n', end='')  # one write: ranks share a pipe
"""


def script(folder: Path, text: str, name: str = "program.py") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def launch(*args: str, **more: str) -> Said:
    return finish(start(*RUN, *args, **more))


def gone(process: int) -> bool:
    """Soon, if not yet: whoever inherits it must have seen it."""
    for _ in range(6000):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        status = Path(f"/proc/{process}/status")
        with suppress(OSError):
            if "\nState:\tZ" in status.read_text():
                return True
        time.sleep(0.05)
    return False


# -- what ranks are told --------------------------------------------------------------------------------------


def told(out: str) -> list[tuple[dict[str, str], list[str]]]:
    return sorted(map(json.loads, out.splitlines()), key=lambda pair: pair[0]["RANK"])


def test_ranks_are_told_what_torchrun_tells_them(tmp_path: Path) -> None:
    """L05."""
    from support import torch  # noqa: F401

    program = script(tmp_path, TELL)
    args = (
        "--nproc-per-node",
        "2",
        "--role",
        "trainer",
        "--max-restarts",
        "3",
        "--rdzv-id",
        "run 7",
        program,
        "--lr",
        "1",
    )
    del_omp = {name: value for name, value in environment().items() if name != "OMP_NUM_THREADS"}
    mine = finish(
        subprocess.Popen([sys.executable, *RUN, *args], env=del_omp, text=True, stdout=-1, stderr=-1)
    )
    del_omp["PYTHONWARNINGS"] = "ignore"
    theirs = finish(
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *args],
            env=del_omp,
            text=True,
            stdout=-1,
            stderr=-1,
        )
    )
    assert (mine.status, theirs.status) == (0, 0), mine.err + theirs.err
    for (ours, ours_args), (expected, expected_args) in zip(told(mine.out), told(theirs.out), strict=True):
        assert ours_args == expected_args
        assert ours.keys() == expected.keys() - {"TORCHELASTIC_SIGNALS_TO_HANDLE"}
        # PyTorch makes up a run id where one node meets itself, whatever --rdzv-id says.
        differ = {"MASTER_PORT", "MASTER_ADDR", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"}
        for name in ours.keys() - differ:
            assert ours[name] == expected[name], name
        assert ours["TORCHELASTIC_ERROR_FILE"].endswith("error.json")


def test_the_old_launch_gives_the_local_rank_as_an_argument(tmp_path: Path) -> None:
    """L06."""
    program = script(tmp_path, TELL)
    for more, expected in (((), "--local-rank=0"), (("--use-env",), "x")):
        said = finish(
            start("-m", "flambeau.distributed.launch", *more, program, "x", PYTHONWARNINGS="default"),
        )
        assert said.status == 0, said.err
        assert told(said.out)[0][1][0] == expected
        assert "is deprecated" in said.err


def test_modules_programs_and_virtual_local_ranks(tmp_path: Path) -> None:
    script(tmp_path, TELL, "tells.py")
    where = {"PYTHONPATH": f"{environment()['PYTHONPATH']}:{tmp_path}"}
    said = launch(
        "--virtual-local-rank", "--nproc-per-node=2", "-m", "tells", "a", CUDA_VISIBLE_DEVICES="4,6", **where
    )
    assert [(env["RANK"], env["LOCAL_RANK"], args) for env, args in told(said.out)] == [
        ("0", "0", ["a"]),
        ("1", "0", ["a"]),
    ]
    said = launch("--no-python", "/bin/sh", "-c", "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE")
    assert (said.status, said.out) == (0, "0 of 1\n"), said.err
    said = launch("--run-path", script(tmp_path, TELL), "b")
    assert told(said.out)[0][1] == ["b"], said.err


def test_flambeau_launch_makes_torch_flambeau_and_its_words_select_our_backends(tmp_path: Path) -> None:
    program = script(tmp_path, """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(2) * (dist.get_rank() + 1)
dist.all_reduce(x)
print(f"{torch.__name__} {torch.cuda.device_count()} {x.tolist()}\\n", end="")
""")  # fmt: skip
    said = finish(start("-m", "flambeau", "launch", "--nproc-per-node", "2", "--devices", "3", program))
    assert (said.status, said.out) == (0, "torch 3 [3.0, 3.0]\n" * 2), said.err


def test_the_store_of_all_ranks_is_where_programs_look_for_it(tmp_path: Path) -> None:
    program = script(tmp_path, """
import torch.distributed as dist
find = dist.distributed_c10d._get_default_store
try:
    find()
except ValueError as error:
    print(error)
dist.init_process_group("nccl")
find().set("a key", "a value")
print(find().get("a key"))
""")  # fmt: skip
    said = finish(start("-m", "flambeau", "launch", "--quiet", program))
    assert said.out.splitlines() == [
        "Default process group has not been initialized, please make sure to call init_process_group.", "b'a value'"
    ], said.err  # fmt: skip


def test_ranks_write_whole_lines(tmp_path: Path) -> None:
    program = script(tmp_path, """
import os, sys
print(sys.stdout.line_buffering, sys.stdout.write_through)
os.write(1, b"between ")
print("a", "b")
""")  # fmt: skip
    said = finish(start("-m", "flambeau", "launch", "--quiet", program))
    assert said.out.splitlines() == ["True False", "between a b"], said.err


RACY = """
import os
import torch, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(1000, device="cuda")
work = dist.all_reduce(x, async_op=True)
if dist.get_rank() == 1:
    y = x * 2
work.wait()
torch.cuda.synchronize()
"""


def test_the_ranks_share_one_screen_and_one_report(tmp_path: Path) -> None:
    program, report = script(tmp_path, RACY), tmp_path / "report.json"
    said = finish(
        start("-m", "flambeau", "launch", "--nproc-per-node", "2", "--report", str(report), program)
    )
    assert said.status == 0, said.err
    screen = said.err.splitlines()
    assert screen[0].startswith("── flambeau launch ──")
    assert screen[1].startswith(
        "devices    2 x NVIDIA A100-SXM4-40GB (virtual: profile a100-40g, schedule earliest)"
    )
    assert [line.split("  ")[0] for line in screen[2:5]] == ["rank 0", "rank 1", "races"]
    assert "1.  Nothing orders these two uses of 4,000 bytes of cuda:1 (on rank 1)\n" in said.err
    assert "                      y = x * 2\n" in said.err
    assert "Before program.py:9 insert:\n                      work.wait()\n" in said.err
    told = json.loads(report.read_text())
    assert told["exit_status"] == 0
    assert [len(rank["machines"][0]["certificate"]["races"]) for rank in told["ranks"]] == [0, 1]


def test_the_ranks_of_a_second_node_have_their_own_numbers(tmp_path: Path) -> None:
    program = script(tmp_path, "import torch; torch.ones(2, device='cuda').tolist()")
    command = (
        "-m",
        "flambeau",
        "launch",
        "--nnodes=2",
        "--master-port",
        str(free_port()),
        "--monitor-interval=0.02",
    )
    report = tmp_path / "report.json"
    nodes = [
        start(*command, "--node-rank=0", "--nproc-per-node=2", "--quiet", program),
        start(*command, "--node-rank=1", "--report", str(report), program),
    ]
    said = [finish(node) for node in nodes]
    assert [one.status for one in said] == [0, 0], said
    assert "\nrank 2     " in said[1].err
    assert [(rank["rank"], rank["local_rank"]) for rank in json.loads(report.read_text())["ranks"]] == [
        (2, 0)
    ]


def test_a_race_that_is_an_error_ends_all_with_its_status(tmp_path: Path) -> None:
    program = script(tmp_path, RACY)
    said = finish(
        start("-m", "flambeau", "launch", "--races", "error", "--quiet", "--nproc-per-node", "2", program)
    )
    assert said.status == 3
    assert "RaceError" in said.err
    assert "rank 1 failed first" in said.err
    assert "── flambeau" not in said.err


def test_torchruns_modules_are_found_where_torch_is_flambeau(tmp_path: Path) -> None:
    """As in a program that `flambeau run` runs and that starts its ranks itself."""
    shim = f"{SOURCES}/flambeau/shim:{SOURCES}"
    program = script(tmp_path, "import torch; print(torch.__name__ + '\\n', end='')")
    for module in (("torch.distributed.run",), ("torch.distributed.launch", "--use-env")):
        said = finish(start("-m", *module, program, PYTHONPATH=shim, PYTHONWARNINGS="ignore"))
        assert (said.status, said.out) == (0, "torch\n"), said.err


# -- failures, restarts, signals ---------------------------------------------------------------------------------

FAILS = """
import os, signal, subprocess, sys, time
from flambeau.distributed.elastic.multiprocessing.errors import record

@record
def main():
    folder, how = sys.argv[1:]
    rank = os.environ["RANK"]
    child = subprocess.Popen(["sleep", "100"])
    with open(f"{folder}/{os.environ['TORCHELASTIC_RESTART_COUNT']}.{rank}", "w") as file:
        file.write(f"{os.getpid()} {child.pid}")
    if rank == "1":
        if how == "raise":
            raise ValueError("boom")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(5)
    time.sleep(100)

main()
"""


@pytest.mark.parametrize("how, status, words", [
    ("raise", 1, "ValueError: boom"), ("exit", 5, "exit status 5"), ("kill", 137, "killed by SIGKILL"),
])  # fmt: skip
def test_the_first_rank_that_fails_ends_all_and_is_named(
    tmp_path: Path, how: str, status: int, words: str
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    said = launch("--nproc-per-node", "3", script(tmp_path, FAILS), str(notes), how)
    assert said.status == status
    assert "rank 1 failed first, and the others were ended" in said.err
    assert words in said.err
    assert "rank 0: killed by SIGTERM" in said.err
    processes = [int(number) for note in notes.iterdir() for number in note.read_text().split()]
    assert len(processes) >= 2
    assert all(map(gone, processes)), "neither ranks nor what they have started"


_FAILS = """
import sys
import torch, torch.distributed as dist
when = sys.argv[1]
if when == "before" and __import__("os").environ["RANK"] == "1":
    raise ValueError("nothing\\nleft")
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("nothing\\nleft")
dist.barrier()
"""


@pytest.mark.parametrize("launcher", ["flambeau", "module", "torchrun"])
def test_each_line_of_a_ranks_error_says_whose_it_is(tmp_path: Path, launcher: str) -> None:
    """PyTorch's ranks do so from init_process_group on."""
    from support import torch  # noqa: F401

    how = {
        "flambeau": ("-m", "flambeau", "launch", "--quiet"),
        "module": RUN,
        "torchrun": ("-m", "torch.distributed.run"),
    }[launcher]
    text = (
        _FAILS
        if launcher != "module"
        else _FAILS.replace("import torch,", "import flambeau,").replace(
            "torch.distributed", "flambeau.distributed"
        )
    )
    said = finish(start(*how, "--nproc-per-node", "2", script(tmp_path, text), "after"))
    lines = said.err.splitlines()
    begin = lines.index("[rank1]: Traceback (most recent call last):")
    end = lines.index("[rank1]: ValueError: nothing", begin)
    assert all(line.startswith("[rank1]:   ") for line in lines[begin + 1 : end])
    assert lines[end + 1] == "[rank1]: left"


@pytest.mark.parametrize("is_redirected", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_traceback_is_shown_once(tmp_path: Path, when: str, is_redirected: bool) -> None:
    """By the rank itself if its stderr is on the console, else by the launcher's report."""
    program = script(tmp_path, _FAILS)
    options = ["--redirects", "3", "--log-dir", str(tmp_path)] if is_redirected else []
    said = finish(
        start("-m", "flambeau", "launch", "--quiet", *options, "--nproc-per-node", "2", program, when)
    )
    report = said.err[said.err.index("rank 1 failed first") :]
    line = 6 if when == "before" else 9
    frame = f'File "{program}", line {line}, in <module>\n'
    assert said.err.count(frame) == 1
    if is_redirected:
        assert f"    Traceback (most recent call last):\n      {frame}" in report
        assert "    ValueError: nothing\n    left\n" in report
    else:
        assert "    ValueError: nothing\n  rank 0: " in report


_LATE = """
import os, sys, time
from pathlib import Path
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
def dead(process):
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z" if Path(f"/proc/{process}").exists() else True
def until(found):
    while not found():
        time.sleep(0.01)
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
if rank == 1:
    (folder / "process").write_text(str(os.getpid()))
    until((folder / "raised").exists)
    raise KeyError("because rank 0 is gone")
until((folder / "process").exists)
import atexit
atexit.register(until, lambda: dead((folder / "process").read_text()))  # its process ends after the other's
before = sys.excepthook
def hook(*error):
    before(*error)
    (folder / "raised").touch()
sys.excepthook = hook
raise ValueError("the reason")
"""


def test_the_first_error_in_time_is_told_not_that_of_the_first_process_to_end(tmp_path: Path) -> None:
    said = launch("--nproc-per-node", "2", script(tmp_path, _LATE), str(tmp_path))
    report = said.err[said.err.index("failed first") - len("rank 0 ") :]
    assert report.startswith("rank 0 failed first")
    assert "    ValueError: the reason\n" in report and "KeyError" not in report
    assert said.status == 1


def test_restarts_begin_anew_with_a_clean_store(tmp_path: Path) -> None:
    program = script(tmp_path, """
import os, sys
from flambeau.distributed.rendezvous import rendezvous
store, rank, size = next(rendezvous("env://"))
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"{attempt} {rank} {store.add('counted', 1) <= size} {store.check(['left'])}\\n", end="", flush=True)
store.set("left", "1")
store.barrier("end", size)
sys.exit(3 if attempt < "2" and rank == 0 else 0)
""")  # fmt: skip
    said = launch("--nproc-per-node", "2", "--max-restarts", "2", program)
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    assert sorted({line.split()[0] for line in lines}) == ["0", "1", "2"]
    assert all(line.split()[2] == "True" for line in lines)
    assert said.err.count("restarting all ranks") == 2


def test_a_signal_ends_all_ranks(tmp_path: Path) -> None:
    program = script(tmp_path, """
import os, time
print(f"{os.getpid()}\\n", end="", flush=True)
time.sleep(100)
""")  # fmt: skip
    for number, expected in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        launcher = start(*RUN, "--nproc-per-node", "2", program)
        assert launcher.stdout is not None
        processes = [int(launcher.stdout.readline()) for _ in range(2)]
        launcher.send_signal(number)
        said = finish(launcher)
        assert said.status == expected
        assert "all ranks were ended" in said.err
        assert all(map(gone, processes))


@pytest.mark.skipif(sys.platform != "linux", reason="another system has no such signal")
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    program = script(tmp_path, "import os, time; print(os.getpid(), flush=True); time.sleep(100)")
    launcher = start(*RUN, program)
    assert launcher.stdout is not None
    process = int(launcher.stdout.readline())
    launcher.kill()
    assert gone(process)
    finish(launcher)


def test_a_rank_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    program = script(tmp_path, """
import os, signal, sys, time
from pathlib import Path
deaf = Path(sys.argv[1])
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deaf.touch()
    time.sleep(100)
while not deaf.exists():
    time.sleep(0.01)
sys.exit(1)
""")  # fmt: skip
    said = launch("--nproc-per-node", "2", "--shutdown-timeout", "0", program, str(tmp_path / "deaf"))
    assert said.status == 1
    assert "rank 0: killed by SIGKILL" in said.err


# -- streams ---------------------------------------------------------------------------------------------------

SPEAKS = """
import os, sys
sys.stdout.write(f"out {os.environ['RANK']}\\n")
sys.stderr.write(f"err {os.environ['RANK']}\\n")
"""


def logs(folder: Path) -> dict[str, str]:
    return {"/".join(path.parts[-2:]): path.read_text() for path in folder.rglob("*.log")}


def test_streams_go_to_files_to_the_console_or_both(tmp_path: Path) -> None:
    program = script(tmp_path, SPEAKS)
    said = launch("--nproc-per-node", "2", "--log-dir", f"{tmp_path}/r", "--redirects", "0:3,1:2", program)
    assert said.out == "out 1\n", said.err
    assert said.err == ""
    assert logs(tmp_path / "r") == {
        "0/stdout.log": "out 0\n",
        "0/stderr.log": "err 0\n",
        "1/stderr.log": "err 1\n",
    }
    said = launch("--nproc-per-node", "2", "--log-dir", f"{tmp_path}/t", "--tee", "1", "--role", "r", program)
    assert sorted(said.out.splitlines()) == ["[r0]:out 0", "[r1]:out 1"]
    assert sorted(said.err.splitlines()) == ["err 0", "err 1"]
    assert logs(tmp_path / "t") == {"0/stdout.log": "out 0\n", "1/stdout.log": "out 1\n"}
    said = launch("--nproc-per-node", "2", "--log-dir", f"{tmp_path}/f", "--local-ranks-filter", "1", program)
    assert (said.out, said.err) == ("out 1\n", "err 1\n")
    assert logs(tmp_path / "f") == {"0/stdout.log": "out 0\n", "0/stderr.log": "err 0\n"}


def test_runs_keep_their_logs_apart(tmp_path: Path) -> None:
    program = script(tmp_path, SPEAKS)
    for _ in range(2):
        assert launch("--log-dir", f"{tmp_path}/logs", "--rdzv-id", "job", "-r", "3", program).status == 0
    assert len(list((tmp_path / "logs").glob("job_*/attempt_0/0/stdout.log"))) == 2


def test_a_report_repeats_what_went_to_a_file(tmp_path: Path) -> None:
    program = script(tmp_path, "raise ValueError('in the log')")
    said = launch("--log-dir", f"{tmp_path}/logs", "--redirects", "3", program)
    assert said.status == 1
    assert "ValueError: in the log" in said.err


# -- nodes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_two_nodes_meet(tmp_path: Path, backend: str) -> None:
    program = script(tmp_path, """
import os
from flambeau.distributed.rendezvous import rendezvous
store, rank, size = next(rendezvous("env://"))
store.add("sum", rank)
store.barrier("end", size)
where = " ".join(os.environ[name] for name in ("GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
print(f"{rank} {where} {store.add('sum', 0)}\\n", end="")
""")  # fmt: skip
    port = str(free_port())
    place = (
        ("--master-port", port)
        if backend == "static"
        else ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}")
    )
    nodes = [
        start(*RUN, "--nnodes", "2", "--nproc-per-node", str(1 + node), "--monitor-interval", "0.02",
              *place, *(("--node-rank", str(node)) if backend == "static" else ()), program)
        for node in range(2)
    ]  # fmt: skip
    said = [finish(node) for node in nodes]
    assert [s.status for s in said] == [0, 0], said[0].err + said[1].err
    lines = sorted(line for s in said for line in s.out.splitlines())
    assert [line.split()[0] for line in lines] == ["0", "1", "2"]
    assert {line.split()[-1] for line in lines} == {"3"}
    if backend == "static":
        assert lines == ["0 0 0 1 3", "1 1 0 2 3", "2 1 1 2 3"]


def test_a_failure_on_one_node_ends_the_other_and_both_start_anew(tmp_path: Path) -> None:
    program = script(tmp_path, """
import os, sys, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
    sys.exit(0)
if os.environ["RANK"] == "1":
    sys.exit(9)
time.sleep(100)
""")  # fmt: skip
    port = str(free_port())
    nodes = [
        start(*RUN, "--nnodes=2", f"--node-rank={node}", "--master-port", port, "--max-restarts=1",
              "--monitor-interval=0.02", program)
        for node in range(2)
    ]  # fmt: skip
    said = [finish(node) for node in nodes]
    assert [s.status for s in said] == [0, 0], said[0].err + said[1].err
    assert "rank 1 of node 1 failed (exit status 9): the ranks of node 0 were ended" in said[0].err


def test_nodes_may_be_given_by_slurm_or_mpirun(tmp_path: Path) -> None:
    program = script(tmp_path, TELL)
    port = str(free_port())
    nodes = [
        start(*RUN, "--master-port", port, "--monitor-interval=0.02", program, PMI_RANK=str(rank), PMI_SIZE="2", PMI_FD="9")
        for rank in range(2)
    ]  # fmt: skip
    found = [told(finish(node).out)[0][0] for node in nodes]
    assert [(env["RANK"], env["WORLD_SIZE"], env["GROUP_RANK"]) for env in found] == [
        ("0", "2", "0"),
        ("1", "2", "1"),
    ]


def test_what_schedulers_say() -> None:
    slurm = {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "8",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "gpu[007-012,20],x",
    }
    found = detect_placement(slurm)
    assert found is not None
    assert (found.rank, found.size, found.first, found.by) == (3, 8, "gpu007", "Slurm")
    del slurm["SLURM_STEP_ID"]
    assert detect_placement(slurm) is None, "the job's own shell"
    found = detect_placement({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert found is not None
    assert (found.rank, found.size, found.first) == (1, 2, "")
    assert detect_placement({}) is None
    assert [first_host(h) for h in ("a", "a,b", "a[1,3]", "n[08-09]b,c", "n-1[10-12]")] == [
        "a",
        "a",
        "a1",
        "n08b",
        "n-110",
    ]


# -- arguments ---------------------------------------------------------------------------------------------------


def test_the_arguments_are_torchruns() -> None:
    from support import torch  # noqa: F401

    reference = sys.modules.get("torch.distributed.run") or __import__(
        "torch.distributed.run", fromlist=["run"]
    )
    refused = {"duplicate_stdout_filters", "duplicate_stderr_filters", "logs_specs", "numa_binding"}
    mine = {action.dest: action for action in get_args_parser()._actions}
    for action in reference.get_args_parser()._actions:
        assert action.dest in mine, f"torchrun has {action.option_strings}"
        assert set(action.option_strings) <= set(mine[action.dest].option_strings)
        if action.dest not in refused and action.dest != "shutdown_timeout":  # None there, which is 30 s, too
            assert mine[action.dest].default == action.default or action.dest in ("module",), action.dest


@pytest.mark.parametrize("args, words", [
    (("--nnodes", "1:4"), "MIN and MAX must be one number"), (("--nnodes", "x"), "MIN:MAX"), (("--nnodes", "0"), "1 or more"),
    (("--nproc-per-node", "gpus"), "Unsupported nproc_per_node value"), (("--rdzv-backend", "etcd"), "static and c10d"),
    (("--no-python", "-m"), "at the same time"), (("--tee", "7"), "streams are"), (("--tee", "a:1"), "LOCAL_RANK"),
    (("--rdzv-conf", "x"), "rendezvous configuration"), (("--local-ranks-filter", "a"), "comma-separated"),
    (("--node-rank", "2", "--nnodes", "2"), "there are 2 nodes"), (("--signals-to-handle", "SIGX"), "no signal SIGX"),
    (("--max-restarts", "-1"), "0 or more"), (("--monitor-interval", "-1"), "0 or more"),
    (("--shutdown-timeout", "-1"), "0 or more"), (("--master-port", "x"), "--master-port: a port is a number"),
    (("--master-port", "65536"), "not '65536'"), (("--rdzv-endpoint", "here:99999"), "--rdzv-endpoint: a port"),
    (("--rdzv-conf", "timeout=soon"), "a number of seconds, not 'soon'"),
    (("--standalone", "--nnodes", "2"), "--standalone is one node"),
])  # fmt: skip
def test_what_cannot_be_is_said_before_anything_starts(
    tmp_path: Path, args: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        plan_of(get_args_parser().parse_args([*args, "program.py"]), tmp_path, "torchrun")


def test_a_file_is_no_folder_for_logs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "file/logs"):
        args = get_args_parser().parse_args(["--log-dir", str(tmp_path / folder), "program.py"])
        with pytest.raises(ValueError, match=r"--log-dir .*(File exists|Not a directory)"):
            run(args)


def test_what_would_change_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        get_args_parser().parse_args(["--numa-binding", "node", "program.py"])
    assert "not bound to cores" in capsys.readouterr().err


def test_arguments_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    monkeypatch.setenv("PET_STANDALONE", "1")
    args = get_args_parser().parse_args(["program.py"])
    assert (args.nproc_per_node, args.standalone) == ("4", True)


def test_how_many_ranks_a_node_has(monkeypatch: pytest.MonkeyPatch) -> None:
    import flambeau

    assert determine_local_world_size("3") == 3
    assert determine_local_world_size("cpu") == os.cpu_count()
    with flambeau.virtual(devices=5):
        assert determine_local_world_size("gpu") == determine_local_world_size("auto") == 5
    with flambeau.virtual(devices=0):
        with pytest.raises(ValueError, match="Cuda is not available"):
            determine_local_world_size("gpu")
        assert determine_local_world_size("auto") == os.cpu_count()
    assert stream_bits("0:3,1:1") == {0: 3, 1: 1}


# -- what `flambeau launch` says ------------------------------------------------------------------------------


# The launcher ends the other ranks when one fails, so rank 1 fails only after rank 0 has ended and written its report:
# the kernel releases a process's file locks when it ends.
IN_ORDER = """
import fcntl, os, sys, torch
torch.ones(1, device="cuda")
file = os.open(sys.argv[1], os.O_RDWR)
if os.environ["RANK"] == "0":
    fcntl.flock(file, fcntl.LOCK_EX)
    os.write(file, b"locked")
else:
    while os.fstat(file).st_size == 0:
        pass
    fcntl.flock(file, fcntl.LOCK_EX)
    sys.exit(int(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="locks files with fcntl")
@pytest.mark.parametrize(
    ("status", "races"), [(0, "schedule, each rank"), (1, "schedule as far as they ran, each")]
)
def test_summary_of_ranks_names_what_it_certifies(tmp_path: Path, status: int, races: str) -> None:
    (tmp_path / "lock").touch()
    arguments = script(tmp_path, IN_ORDER), str(tmp_path / "lock"), str(status)
    said = finish(start("-m", "flambeau", "launch", "--nproc-per-node", "2", *arguments))
    assert said.status == status and f"Race-free under every {races}" in said.err, said.err


STOPPED = """
import os, signal, sys
from pathlib import Path
pid = Path(sys.argv[1])
if os.environ["RANK"] == "1":
    pid.write_text(f"{os.getpid()}.")
    os.kill(os.getpid(), signal.SIGSTOP)
while not (pid.exists() and pid.read_text().endswith(".")):
    pass
while "\\nState:\\tT" not in Path(f"/proc/{pid.read_text()[:-1]}/status").read_text():
    pass
sys.exit(3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_stopped_rank_ends_with_the_others(tmp_path: Path) -> None:
    """It handles SIGTERM, which the launcher sends long before SIGKILL here."""
    done = launch(
        "--nproc-per-node=2", "--shutdown-timeout=100000", script(tmp_path, STOPPED), str(tmp_path / "pid")
    )
    assert done.status == 3 and "rank 0 failed first" in done.err
    assert "rank 1: killed by SIGTERM" in done.err
