"""`flambeau run --apply-fixes`: a diff that `git apply` takes, after which the program is race-free."""

import subprocess
import sys

import pytest
from cli_kit import environment, flambeau_run, program

from flambeau.observe.reports import Edit
from flambeau.report.fix_diff import fix_diff

RACY = """\
import helper, torch


class Loader:
    def __init__(self):
        self.copies = torch.cuda.Stream()

    def load(self, x):
        with torch.cuda.stream(self.copies):
            x.fill_(1)


x, loader = torch.zeros(64, device="cuda"), Loader()
torch.cuda.synchronize()
loader.load(x)
print("sum:", helper.total(x))
with torch.cuda.stream(torch.cuda.Stream()):
    x.fill_(2)
print("diff --git is no diff")"""
HELPER = "def total(x):\n    return (x * 2).sum().item()\n"


def test_the_diff_applies_until_the_program_is_race_free(tmp_path):
    program(tmp_path, HELPER, "helper.py")
    script = program(tmp_path, RACY)
    before = script.read_text()
    done = flambeau_run(tmp_path, "--apply-fixes", script.name)
    assert script.read_text() == before and done.out.startswith("sum: 128")
    assert "+torch.cuda.current_stream().wait_stream(loader.copies)\n" in done.out
    subprocess.run(["git", "apply"], input=done.out, text=True, cwd=tmp_path, check=True, timeout=60)
    again = flambeau_run(tmp_path, "--apply-fixes", script.name)
    assert again.certificate["race_free"] and again.out == "sum: 128.0\ndiff --git is no diff\n", again.err


def test_a_program_elsewhere_says_where_its_diff_applies(tmp_path):
    folder, here = tmp_path / "there", tmp_path / "here"
    folder.mkdir(), here.mkdir()
    program(folder, HELPER, "helper.py")
    script = program(folder, RACY)
    done = flambeau_run(tmp_path, "--apply-fixes", script, cwd=here)
    assert f"the diff applies in {folder}" in done.err and "--- a/program.py\n" in done.out


@pytest.mark.parametrize(
    "command",
    [["launch", "--nproc-per-node", "2"], ["trace", "-o", "t.svg"], ["explore", "--schedules", "5"]],
    ids=lambda command: command[0],
)
def test_each_command_that_runs_a_program_prints_the_diff(tmp_path, command):
    program(tmp_path, HELPER, "helper.py")
    script = program(tmp_path, RACY)
    line = [sys.executable, "-m", "flambeau", *command, "--apply-fixes", "--full-traceback", script.name]
    line = [part for part in line if part != "--full-traceback" or command[0] != "explore"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=120, env=environment())
    diff = done.stdout[done.stdout.index("--- a/program.py\n") :]
    assert "+torch.cuda.current_stream().wait_stream(loader.copies)\n" in diff, done.stderr
    subprocess.run(
        ["git", "apply"], input=diff.partition("\nsum:")[0], text=True, cwd=tmp_path, check=True, timeout=60
    )


def test_explorations_compute_as_their_options_say(tmp_path):
    text = "import sys, torch\nprint(torch.get_float32_matmul_precision(), file=sys.stderr)\n"
    line = ["explore", "--schedules", "1", "--float32-precision", "highest", program(tmp_path, text).name]
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", *line], capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env=environment(),
    )  # fmt: skip
    assert "highest\n" in done.stderr


def test_without_races_there_is_no_diff(tmp_path):
    script = program(tmp_path, "import torch\nprint(torch.ones(2, device='cuda').sum().item())\n")
    done = flambeau_run(tmp_path, "--apply-fixes", script.name)
    assert done.out == "2.0\n" and "no fix" not in done.err


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a = 1\nb = 2\n", b"new\na = 1\nb = (n := 2)\nlast\n"),
        (b"a = 1\nb = 2", b"new\na = 1\nb = (n := 2)\nlast\n"),
        (b"a = 1\r\nb = 2\r\n", b"new\r\na = 1\r\nb = (n := 2)\r\nlast\r\n"),
        (b"a = 1  # \x0c \xe2\x80\xa8\nb = 2\n", b"new\na = 1  # \x0c \xe2\x80\xa8\nb = (n := 2)\nlast\n"),
        (b"# coding: latin-1\nb = 2 # \xe9\n", b"new\n# coding: latin-1\nb = (n := 2) # \xe9\nlast\n"),
    ],
)
def test_text_is_kept_to_the_byte(tmp_path, data, expected):
    path = tmp_path / "p.py"
    path.write_bytes(data)
    edits = [
        Edit(str(path), 1, 0, "new\n"), Edit(str(path), 1, 0, "new\n"), Edit(str(path), 2, 4, "(n := "),
        Edit(str(path), 2, 5, ")"), Edit(str(path), 3, 0, "last\n"),
    ]  # fmt: skip
    diff = fix_diff(edits, tmp_path)
    encoding = "latin-1" if b"latin" in data else "utf-8"
    subprocess.run(["git", "apply"], input=diff.encode(encoding), cwd=tmp_path, check=True, timeout=60)
    assert path.read_bytes() == expected


def test_files_outside_of_the_folder_are_left_out(tmp_path):
    (tmp_path / "in").mkdir()
    paths = [tmp_path / "out.py", tmp_path / "in" / "p.py"]
    for path in paths:
        path.write_text("a = 1\n")
    edits = [Edit(str(path), 1, 0, "new\n") for path in [*paths, "<string>"]]
    diff = fix_diff(edits, tmp_path / "in")
    assert diff.splitlines()[:2] == ["--- a/p.py", "+++ b/p.py"] and diff.count("---") == 1
