"""`run_module`: `python -m flambeau ...` or `python -m pytest ...` in a fork of a process that has imported it already.

A start costs 0.3 to 0.7 s of CPU time, most of it for imports, and hundreds of tests start one. So a server for each
module imports what it needs and waits. A call forks it; the fork takes the caller's pipes, folder, arguments and
environment, runs the module and ends as every process does. Under FLAMBEAU_TESTS=exhaustive each is a new process.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock, Timer

IMPORTS = {
    "flambeau": ("flambeau.cli.run", "flambeau.driver.virtual.driver", "flambeau.observe.race_builder"),
    "pytest": (
        "pytest",
        "ml_dtypes",
        "unittest.mock",
        "multiprocessing.context",
    ),  # it warns of plugins imported before
}
_INTERPRETER = (
    "PYTHON",
    "LANG",
    "LC_",
    "LD_",
    "OPENBLAS",
    "OMP",
)  # what these variables say is read at a start
_lock = Lock()  # a server answers one call at a time


def run_module(
    module: str, *arguments: object, env: dict[str, str], cwd: Path, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run `python -m module arguments` to its end; return its status and what it wrote.

    Raises:
        subprocess.TimeoutExpired: It took longer than `timeout` seconds and has been killed.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    if os.environ.get("FLAMBEAU_TESTS") == "exhaustive":
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=env, cwd=cwd, check=False
        )
    with _lock:
        return _ask(_server(module, frozenset(_of_interpreter(env))), command, env, cwd, timeout)


def _of_interpreter(env: dict[str, str]) -> set[tuple[str, str]]:
    return {(name, value) for name, value in env.items() if name.startswith(_INTERPRETER)}


@cache
def _server(module: str, settings: frozenset[tuple[str, str]]) -> socket.socket:
    """Return the connection to a server, which ends with this process."""
    ours, its = socket.socketpair()
    with its:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLAMBEAU_", *_INTERPRETER))
        }
        process = subprocess.Popen(
            [sys.executable, __file__, module], env=kept | dict(settings),
            stdin=its, stdout=subprocess.PIPE, stderr=subprocess.PIPE,  # as a fork's are: none can seek
        )  # fmt: skip
    atexit.register(_end, ours, process)
    return ours


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    connection.close()
    process.communicate()


def _ask(
    server: socket.socket, command: list[str], env: dict[str, str], cwd: Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()
    ends = [os.open(os.devnull, os.O_RDONLY), to_out, to_err]
    request = json.dumps({"command": command, "env": env, "cwd": str(cwd)}).encode()
    socket.send_fds(server, [len(request).to_bytes(4, "big")], ends)
    server.sendall(request)
    for end in ends:
        os.close(end)
    late = Timer(timeout, os.kill, (_receive(server), signal.SIGKILL))
    late.start()
    with ThreadPoolExecutor(2) as pool:
        texts = list(pool.map(_read, (out, err)))
    status = _receive(server)
    if late.finished.is_set():
        raise subprocess.TimeoutExpired(command, timeout, *texts)
    late.cancel()
    return subprocess.CompletedProcess(command, status, *texts)


def _read(end: int) -> str:
    with open(end) as file:
        return file.read()


def _receive(connection: socket.socket) -> int:
    return int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big", signed=True)


# -- the server ---------------------------------------------------------------------------------------------


def serve(module: str) -> None:
    """Fork for each call until the tests end. Returns in forks, which are ready to run the module."""
    connection = socket.socket(fileno=os.dup(0))
    for name in IMPORTS[module]:
        import_module(name)
    gc.collect()
    while True:
        size, ends, _, _ = socket.recv_fds(connection, 4, 3)
        if not size:
            os._exit(0)
        request = json.loads(connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
        pid = os.fork()
        if pid == 0:
            connection.close()
            _become(module, ends, **request)
            return
        for end in ends:
            os.close(end)
        connection.sendall(pid.to_bytes(4, "big"))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(status.to_bytes(4, "big", signed=True))


def _become(module: str, ends: list[int], command: list[str], env: dict[str, str], cwd: str) -> None:
    """Be the new process of a command."""
    for end, number in zip(ends, range(3), strict=True):
        os.dup2(end, number)
        os.close(end)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    spec = find_spec(f"{module}.__main__")
    assert spec is not None and spec.origin is not None
    sys.path[0] = cwd
    sys.orig_argv[:], sys.argv[:] = command, [spec.origin, *command[3:]]


if __name__ == "__main__":
    serve(sys.argv[1])
    runpy.run_module(sys.orig_argv[2], run_name="__main__", alter_sys=True)
