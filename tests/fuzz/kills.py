"""Writers of files that are killed at random instants: the file is whole, and what they leave behind does not pile up."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import signal
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path

from harness import Failure, Findings

import flambeau as torch
from flambeau.core import files
from flambeau.core.files import replace_file
from flambeau.distributed import FileStore

_SIZE = 200_000  # elements of a saved tensor
_UNNAMED = files._UNNAMED


def _save(path: str, number: int) -> None:
    torch.save({"number": number, "tensors": [torch.full((_SIZE,), float(number))] * 2}, path)


def _check_saved(path: str) -> None:
    found = torch.load(path)
    for tensor in found["tensors"]:
        assert tensor.shape == (_SIZE,) and bool((tensor == found["number"]).all())


def _check_text(path: str) -> None:
    assert Path(path).read_text() in ("1" * _SIZE, "2" * _SIZE)


def _dump_snapshot(path: str, number: int) -> None:
    torch.cuda.memory._dump_snapshot(path)


@cache
def _profile() -> torch.profiler.profile:
    with torch.profiler.profile() as found:
        for number in range(100):
            torch.ones(10) + number
    return found


def _export_trace(path: str, number: int) -> None:
    _profile().export_chrome_trace(path)


def _change_store(path: str, number: int) -> None:
    store = FileStore(path)
    store.set("large", bytes(number << 22))
    store.set("small", str(number))


def _check_store(path: str) -> None:
    store = FileStore(path)
    store.set_timeout(timedelta(seconds=1))
    assert store.get("small") in (b"1", b"2")
    store.set("later", "3")
    assert FileStore(path).get("later") == b"3"


WRITERS: dict[str, tuple[Callable[[str, int], object], Callable[[str], object]]] = {
    "x.pt": (_save, _check_saved),
    "x.pickle": (_dump_snapshot, lambda path: pickle.loads(Path(path).read_bytes())["segments"]),
    "x.json": (_export_trace, lambda path: json.loads(Path(path).read_bytes())),
    "x.json.gz": (_export_trace, lambda path: json.loads(gzip.decompress(Path(path).read_bytes()))),
    "x.txt": (lambda path, number: replace_file(path, str(number) * _SIZE), _check_text),
    "x.store": (_change_store, _check_store),
}


def _kill(write: Callable[[str, int], object], path: str, delay_s: float) -> None:
    """Write a file again and again in a child process, which is killed after so many seconds."""
    ready, begun = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(begun, b"x")
            while True:
                write(path, 1)
                write(path, 2)
        finally:
            os._exit(1)
    os.read(ready, 1)
    time.sleep(delay_s)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    os.close(ready)
    os.close(begun)
    assert os.WIFSIGNALED(status), "the writer failed"


def _try(rng: random.Random, name: str, unnamed: bool, kills: int) -> None:
    """Kill writers of one file. Raise AssertionError for a damaged file, or for more than one other file."""
    write, check = WRITERS[name]
    files._UNNAMED = _UNNAMED if unnamed else 0
    try:
        with tempfile.TemporaryDirectory() as folder, torch.virtual(devices=1):
            path = str(Path(folder, name))
            start = time.monotonic()
            write(path, 1)
            each_s = time.monotonic() - start
            for _ in range(kills):
                _kill(write, path, rng.random() * 3 * each_s)
                check(path)
                left = os.listdir(folder)
                assert len(left) <= 2, left
            write(path, 1)
            assert os.listdir(folder) == [name]
    finally:
        files._UNNAMED = _UNNAMED


def search(seed: int, begin: int, count: int, stop: int = 10) -> Findings:
    """Kill writers some `count` times, of each kind of file, with and without files that have no name."""
    found = Findings("kills", seed)
    kinds = [(name, unnamed) for name in WRITERS for unnamed in (True, False)]
    kills = -(-count // len(kinds))
    for number, (name, unnamed) in enumerate(kinds):
        try:
            _try(random.Random(f"{seed}:{begin}:{number}"), name, unnamed, kills)
            found.counts["accepted"] += kills
        except Exception as error:
            found.counts["failed"] += 1
            found.failures[name, str(unnamed)] = Failure(
                number, f"{name}, unnamed files: {unnamed}", repr(error)
            )
        if len(found.failures) >= stop:
            break
    return found
