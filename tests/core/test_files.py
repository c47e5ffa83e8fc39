"""Files are replaced whole or not at all: `core.files`, and every function that writes a file for a program."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import flambeau as torch
from flambeau.core import files
from flambeau.core.files import replace_file, replacing


@pytest.fixture(params=["unnamed", "named"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """With and without files that have no name until they are complete."""
    if request.param == "named":
        monkeypatch.setattr(files, "_UNNAMED", 0)
    elif not files._UNNAMED:
        pytest.skip("this system has no unnamed files")
    return request.param


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def in_child(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# -- the helper -----------------------------------------------------------------------------------------------


def test_a_file_appears_when_the_block_ends(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    with replacing(path) as file:
        file.write(b"one")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"one" and names(tmp_path) == ["x"]
    replace_file(path, "zwö")
    assert path.read_text(encoding="utf-8") == "zwö" and names(tmp_path) == ["x"]


def test_a_block_that_raises_changes_nothing(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x").write_bytes(b"old")
    for path in (tmp_path / "x", tmp_path / "new"):
        with pytest.raises(KeyboardInterrupt), replacing(path) as file:
            file.write(b"n" * 100_000)
            raise KeyboardInterrupt
    assert names(tmp_path) == ["x"] and (tmp_path / "x").read_bytes() == b"old"


def test_writers_of_one_name_do_not_disturb_each_other(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    with ExitStack() as stack:
        for number in range(files._NAMES + 4):
            stack.enter_context(replacing(path)).write(b"%d" % number)
        other = next(iter(names(tmp_path)), ".flambeau-0-0.tmp")
        (tmp_path / other.replace(other.split("-")[1], "of another target")).write_text("")
    assert path.read_bytes() == b"0" and len(names(tmp_path)) == 2


def test_files_of_killed_writers_do_not_pile_up(tmp_path: Path, kind: str) -> None:
    """Kill a fork at each system call that changes the folder."""
    path = tmp_path / "x"
    for call in ("fsync", "link", "replace") * 3:
        child = os.fork()
        if not child:
            setattr(os, call, lambda *arguments, **names: os.kill(os.getpid(), signal.SIGKILL))
            replace_file(path, b"new")
            os._exit(0)
        os.waitpid(child, 0)
        assert len(names(tmp_path)) <= 2
    replace_file(path, b"whole")
    assert path.read_bytes() == b"whole" and names(tmp_path) == ["x"]


def test_a_foreign_file_with_a_temporary_name_stays(tmp_path: Path, kind: str) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    taken, _ = files._take_name(folder, "x", lambda name: None)
    os.close(folder)
    (tmp_path / "y").write_bytes(b"y")
    (tmp_path / taken).symlink_to(tmp_path / "y")
    replace_file(tmp_path / "x", b"x")
    assert names(tmp_path) == [taken, "x", "y"] and (tmp_path / "y").read_bytes() == b"y"


def test_the_file_can_be_read_and_sought(tmp_path: Path, kind: str) -> None:
    with replacing(tmp_path / "x") as file:
        file.write(b"abc")
        file.seek(1)
        assert file.read() == b"bc"


def test_permissions_stay_and_new_files_follow_the_mask(tmp_path: Path, kind: str) -> None:
    mask = os.umask(0o027)
    try:
        path = tmp_path / "x"
        replace_file(path, b"")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        path.chmod(0o604)
        replace_file(path, b"")
        assert stat.S_IMODE(path.stat().st_mode) == 0o604
    finally:
        os.umask(mask)


def test_symbolic_links_stay(tmp_path: Path, kind: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a" / "x")
    for text in (b"one", b"two"):  # the first creates what the link leads to
        replace_file(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "a" / "x").read_bytes() == text
    assert names(tmp_path / "a") == ["x"]


def test_pipes_and_devices_are_written_into(tmp_path: Path) -> None:
    replace_file("/dev/null", b"gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    replace_file(pipe, b"through")
    reader.join()
    assert found == [b"through"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_standard_output_is_written_into(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        program = (
            "from flambeau.core.files import replace_file; replace_file('/dev/stdout', b'one'); print('two')"
        )
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert b"two" in (tmp_path / "x").read_bytes() and names(tmp_path) == ["x"]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda p: p / "none" / "x", FileNotFoundError),
        (lambda p: p, IsADirectoryError),
        (lambda p: "", FileNotFoundError),
        (lambda p: f"{p}/new/", (IsADirectoryError, FileNotFoundError)),
        (lambda p: p / "file" / "x", NotADirectoryError),
    ],
)
def test_places_that_hold_no_file(tmp_path: Path, make: Any, error: Any) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(error):
        replace_file(make(tmp_path), b"")
    assert names(tmp_path) == ["file"]


def test_what_may_not_be_written_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(PermissionError):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any, flags: int, *more: Any, **where: Any) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *more, **where)

    opened = os.open
    monkeypatch.setattr(files, "_UNNAMED", 0)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError, match="make its folder writable, or pass an open file"):
        replace_file(tmp_path / "x", b"")


def test_errors_of_a_full_disk_name_the_file(tmp_path: Path, kind: str) -> None:
    for path, outcome in ((tmp_path / "x", "no file was written"), (tmp_path / "x", "the old file is kept")):
        with pytest.raises(OSError, match=outcome) as caught, replacing(path) as file:
            file.write(b"new")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
        path.write_bytes(b"old")
    with pytest.raises(
        OSError, match=r"No space left on device; what was written is incomplete: '/dev/full'"
    ):
        replace_file("/dev/full", b"new")
    for other in (OSError(errno.EPIPE, "of a pipe"), OSError(errno.ENOSPC, "of another file", "y")):
        with pytest.raises(OSError, match=other.strerror) as caught, replacing(tmp_path / "x"):
            raise other
        assert caught.value is other


# -- checkpoints: full disks and killed programs --------------------------------------------------------------


FULL = """
import resource, sys
import flambeau as torch
from flambeau.core import files
files._UNNAMED = files._UNNAMED if sys.argv[2] == "unnamed" else 0
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    torch.save(torch.zeros(100_000), sys.argv[1])
except OSError as error:
    print(error.strerror, error.filename == sys.argv[1])
"""


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.arange(3), path)
    assert in_child(FULL, path, kind).stdout == "File too large; the old file is kept True\n"
    assert torch.load(path).tolist() == [0, 1, 2] and names(tmp_path) == ["x.pt"]


KILLED = """
import os, signal, sys
import flambeau as torch
from flambeau.core import files
from flambeau.serialization.archive import ArchiveWriter
files._UNNAMED = files._UNNAMED if sys.argv[2] == "unnamed" else 0
write = ArchiveWriter.write
def killed(self, record, data):
    if record == sys.argv[3]:
        self._zip.fp.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, record, data)
ArchiveWriter.write = killed
torch.save([torch.zeros(1000), torch.zeros(1000)], sys.argv[1])
"""


@pytest.mark.parametrize("record", ["data.pkl", "data/0", "data/1", "version"])
def test_a_killed_program_leaves_the_old_checkpoint(tmp_path: Path, kind: str, record: str) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.arange(3), path)
    assert in_child(KILLED, path, kind, record).returncode == -signal.SIGKILL
    assert torch.load(path).tolist() == [0, 1, 2]
    left = [name for name in names(tmp_path) if name != "x.pt"]
    assert not left if kind == "unnamed" else all(name.endswith(".tmp") for name in left)
    torch.save(torch.arange(2), path)
    assert torch.load(path).tolist() == [0, 1] and names(tmp_path) == ["x.pt"]


def test_a_file_object_is_written_into_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(b"before")
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        number = path.stat().st_ino
        torch.save(torch.arange(3), file)
    assert path.read_bytes().startswith(b"beforePK") and path.stat().st_ino == number


# -- every other writer ---------------------------------------------------------------------------------------


WRITERS = """
import json, os, resource, sys
from pathlib import Path
import flambeau as torch
from flambeau.cli import memory, snapshot_file
from flambeau.cli.output.timelines import write_picture, write_trace
from flambeau.report.document import run_document, write_document
from flambeau.report.recorder import ProcessRecorder
from flambeau.runtime import system

folder = Path(sys.argv[1])
recorder = ProcessRecorder(timeline=True)
system.watch(recorder)
with torch.virtual(devices=1):
    torch.cuda.memory._record_memory_history(stacks="python")
    with torch.profiler.profile(with_stack=True) as profile:
        x = torch.ones(1000, device="cuda") * 2
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    graph.enable_debug_mode()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(50):
            y = x + 1
    torch.cuda.memory._dump_snapshot(folder / "snapshot")
    found = snapshot_file.load(folder / "snapshot")

    class Options:
        words, report, quiet = ["snapshot"], None, True

    def page(path):
        Options.output = path
        memory._report(Options, found)

    inside = {
        "dump_snapshot": torch.cuda.memory._dump_snapshot, "chrome_trace": profile.export_chrome_trace,
        "stacks": profile.export_stacks, "page.html": page, "page.json": page, "debug_dump": lambda p: graph.debug_dump(str(p)),
        "events": profile.events().export_chrome_trace, "trace.gz": profile.export_chrome_trace,
    }
    def run(writers):
        for name, write in writers.items():
            path = folder / name
            path.write_bytes(b"old")
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
            try:
                write(path)
                print(name, "was written")
            except OSError as error:
                if path.read_bytes() != b"old":
                    print(name, "is damaged")
                if error.filename != str(path) or "the old file is kept" not in error.strerror:
                    print(name, error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            write(path)
            if path.read_bytes() == b"old":
                print(name, "was not written")
    run(inside)
run({
    "report": lambda path: write_document(run_document(recorder, [], 0), path), "picture": lambda path: write_picture(recorder, path),
    "trace.html": lambda path: write_trace(recorder, path, "p"), "trace.json": lambda path: write_trace(recorder, path, "p"),
})
print(sorted(os.listdir(folder)))
"""


def test_every_writer_leaves_the_old_file_on_a_full_disk(tmp_path: Path) -> None:
    done = in_child(WRITERS, tmp_path)
    lines = [line for line in done.stdout.splitlines() if not line.startswith("flambeau memory: wrote")]
    written = [
        "snapshot",
        "dump_snapshot",
        "chrome_trace",
        "stacks",
        "page.html",
        "page.json",
        "debug_dump",
        "events",
        "trace.gz",
    ]
    assert done.stderr == "" and lines == [
        str(sorted([*written, "report", "picture", "trace.html", "trace.json"]))
    ]
