"""Start programs as forks of a process that has already imported what they import.

A start of `python -m flambeau ...`, `python -m pytest ...` or `python program.py` costs 0.3 to 0.7 s of CPU time, most
of it for imports, and more than a thousand tests start one. So a server for each kind of program imports what that
kind needs and waits. A request forks it; the fork takes the caller's pipes, folder, arguments and environment, runs
the program and ends as every process does. Under FLAMBEAU_TESTS=exhaustive each program is a new process.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Thread
from types import ModuleType
from typing import IO

IMPORTS = {
    "flambeau": ("flambeau.cli.run", "flambeau.driver.virtual.driver", "flambeau.observe.race_builder"),
    "program": (
        "flambeau.distributed",
        "flambeau.driver.virtual.driver",
        "flambeau.observe.race_builder",
        "flambeau.nn.parallel",
    ),
    "pytest": (
        "pytest",
        "flambeau.cli.plugin",
        "flambeau.driver.virtual.driver",
        "flambeau.observe.race_builder",
        "hypothesis",
        "xdist.plugin",
        "unittest.mock",
        "multiprocessing.context",
    ),
}
# A new interpreter reads these variables when it starts, so each setting of them has its own servers.
_INTERPRETER = ("PYTHON", "LANG", "LC_", "LD_", "OPENBLAS", "OMP")
_lock = Lock()  # a server reads one request at a time


class Fork:
    """A program that runs in a fork of a server: the part of `subprocess.Popen` that tests use.

    Attributes:
        pid: The process.
        stdout, stderr: What it writes, as text.
        returncode: Its exit status as `subprocess` states it, None while it runs.
    """

    def __init__(self, pid: int, out: int, err: int, status: int) -> None:
        self.pid = pid
        self.stdout: IO[str] = os.fdopen(out)
        self.stderr: IO[str] = os.fdopen(err)
        self.returncode: int | None = None
        self._status = status
        self._readers: list[Thread] = []
        self._texts: dict[str, str] = {}

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end.

        Raises:
            subprocess.TimeoutExpired: The program still runs after `timeout` seconds.
        """
        status = self._wait(timeout)
        if status is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for the end and read what the program wrote; raises as `wait` does, and may then be called again."""
        if not self._readers:  # read at once: a full pipe would stop the program
            self._readers = [
                Thread(target=self._read, args=(name,), daemon=True) for name in ("stdout", "stderr")
            ]
            for reader in self._readers:
                reader.start()
        self.wait(timeout)
        for reader in self._readers:
            reader.join()
        return self._texts["stdout"], self._texts["stderr"]

    def _read(self, name: str) -> None:
        with getattr(self, name) as stream:
            self._texts[name] = stream.read()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int.from_bytes(os.read(self._status, 4), "big", signed=True)
            os.close(self._status)
        return self.returncode


def run_module(
    module: str, *arguments: object, env: dict[str, str], cwd: Path | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module arguments` to its end; return its status and what it wrote.

    Raises:
        subprocess.TimeoutExpired: It took longer than `timeout` seconds and has been killed.
    """
    program = start_python("-m", module, *map(str, arguments), env=env, cwd=cwd)
    try:
        texts = program.communicate(timeout)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()
        raise
    assert program.returncode is not None
    return subprocess.CompletedProcess(
        [sys.executable, "-m", module, *map(str, arguments)], program.returncode, *texts
    )


def start_python(
    *arguments: str, env: dict[str, str], cwd: Path | None = None
) -> Fork | subprocess.Popen[str]:
    """Start `python arguments`, in a fork where a server has imported what the program needs."""
    kind = _kind_of(arguments)
    if kind is None or os.environ.get("FLAMBEAU_TESTS") == "exhaustive":
        command = [sys.executable, *arguments]
        return subprocess.Popen(
            command, env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    settings = frozenset((name, value) for name, value in env.items() if name.startswith(_INTERPRETER))
    with _lock:
        return _request(_server(kind, settings), arguments, env, cwd or Path.cwd())


def _kind_of(arguments: tuple[str, ...]) -> str | None:
    """Return the server for a command line; None for one that needs a new interpreter."""
    if arguments[0] == "-m":
        return arguments[1] if arguments[1] in IMPORTS else None
    return "program" if arguments[0] == "-c" or not arguments[0].startswith("-") else None


@cache
def _server(kind: str, settings: frozenset[tuple[str, str]]) -> socket.socket:
    """Return the connection to a server, which ends with this process."""
    ours, its = socket.socketpair()
    with its:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLAMBEAU_", *_INTERPRETER))
        }
        process = subprocess.Popen(
            [sys.executable, __file__, kind], env=kept | dict(settings),
            stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE,  # as a fork's are: none can seek
        )  # fmt: skip
    atexit.register(_end, ours, process)
    return ours


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.communicate()


def _request(server: socket.socket, arguments: tuple[str, ...], env: dict[str, str], cwd: Path) -> Fork:
    (out, to_out), (err, to_err), (status, to_status) = os.pipe(), os.pipe(), os.pipe()
    ends = [os.open(os.devnull, os.O_RDONLY), to_out, to_err, to_status]
    request = json.dumps({"arguments": arguments, "env": env, "cwd": str(cwd)}).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], ends)
    server.sendall(request)
    for end in ends:
        os.close(end)
    return Fork(int.from_bytes(server.recv(4, socket.MSG_WAITALL), "big"), out, err, status)


# -- the server ---------------------------------------------------------------------------------------------


def serve(kind: str) -> list[str]:
    """Fork for each request until the tests end. Returns in forks, with the arguments of the program to run."""
    connection = socket.socket(fileno=os.dup(0))
    for name in IMPORTS[kind]:
        import_module(name)
    if kind == "pytest":
        _allow_imported_plugins()
    gc.collect()
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    statuses: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([connection, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _report_ends(statuses)
        if connection not in ready:
            continue
        size, ends, _, _ = socket.recv_fds(connection, 4, 4)
        if not size:
            os._exit(0)
        request = json.loads(connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        *streams, status = ends
        pid = os.fork()
        if pid == 0:
            for other in (connection, woken, wake):
                other.close()
            for end in (status, *statuses.values()):
                os.close(end)
            return _become(streams, **request)
        for end in streams:
            os.close(end)
        statuses[pid] = status
        connection.sendall(pid.to_bytes(4, "big"))


def _allow_imported_plugins() -> None:
    """Let pytest not warn that it cannot rewrite the assertions of plugins, because they were imported before it."""
    packages = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"__main__"}
    for module in [sys.modules[name] for name in (*packages, "flambeau.cli.plugin")]:
        module.__doc__ = f"{module.__doc__}\n\nPYTEST_DONT_REWRITE"


def _report_ends(statuses: dict[int, int]) -> None:
    """Write the status of each fork that has ended."""
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        end = statuses.pop(pid)
        os.write(end, os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))
        os.close(end)


def _become(streams: list[int], arguments: list[str], env: dict[str, str], cwd: str) -> list[str]:
    """Be the new process of a command."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for end, number in zip(streams, range(3), strict=True):
        os.dup2(end, number)
        os.close(end)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.orig_argv[:] = [sys.executable, *arguments]
    return arguments


def run(arguments: list[str]) -> None:
    """Run what `python arguments` does, as the module `__main__`."""
    if arguments[0] == "-m":
        spec = find_spec(f"{arguments[1]}.__main__")
        assert spec is not None and spec.origin is not None
        sys.path[0] = os.getcwd()
        sys.argv[:] = [spec.origin, *arguments[2:]]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if arguments[0] == "-c":
        sys.path[0], name, text = "", "<string>", arguments[1]
        sys.argv[:] = ["-c", *arguments[2:]]
    else:
        sys.path[0], name, text = os.path.dirname(arguments[0]), arguments[0], Path(arguments[0]).read_text()
        sys.argv[:] = main.__file__, *_ = arguments
    exec(compile(text, name, "exec"), main.__dict__)


if __name__ == "__main__":
    run(serve(sys.argv[1]))
