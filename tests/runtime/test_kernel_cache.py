"""Compiled kernels on disk: whole files of many processes, bounded, and never a damaged one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flambeau.driver.cuda.device.kernel_cache import DiskCache
from flambeau.runtime.devices import configuration


def test_what_is_put_is_there_for_others(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    DiskCache(folder).put("k", b"cubin")
    assert DiskCache(folder).get("k") == b"cubin" and DiskCache(folder).get("other") is None
    assert [path.name for path in folder.iterdir()] == ["k.cubin"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data[:5],
        lambda data: bytes(len(data)),
        lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    ],
    ids=["empty", "short", "shorter than a hash", "zeros", "a bit"],
)
def test_a_damaged_file_is_compiled_anew(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    cache = DiskCache(tmp_path)
    cache.put("k", b"a cubin of some length")
    path = tmp_path / "k.cubin"
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get("k") is None
    cache.put("k", b"anew")
    assert cache.get("k") == b"anew"


def test_the_longest_unused_leave_first(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, limit=1000)
    for i in range(10):
        cache.put(f"k{i}", bytes(84))  # 100 bytes with its hash
        os.utime(tmp_path / f"k{i}.cubin", (i, i))
    assert cache.get("k0") is not None  # used now
    (tmp_path / "left.123.tmp").write_bytes(bytes(100))  # what a killed process left
    os.utime(tmp_path / "left.123.tmp", (0, 0))
    DiskCache(tmp_path, limit=1000).put("new", bytes(84))
    kept = {path.name.split(".")[0] for path in tmp_path.iterdir()}
    assert kept == {"k0", "new", "k5", "k6", "k7", "k8", "k9"}


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "folder")
    cache.put("k", b"cubin")
    assert cache.get("k") is None


def test_where_the_folder_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("FLAMBEAU_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert configuration.kernel_cache() == tmp_path / ".cache" / "flambeau" / "kernels"
    monkeypatch.setenv("FLAMBEAU_KERNEL_CACHE", "~/kernels")
    assert configuration.kernel_cache() == tmp_path / "kernels"
    monkeypatch.setenv("FLAMBEAU_KERNEL_CACHE", "0")
    assert configuration.kernel_cache() is None
    monkeypatch.delenv("FLAMBEAU_KERNEL_CACHE")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 987654321)  # whom no list of users knows
    assert configuration.kernel_cache() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert configuration.kernel_cache() == tmp_path / "x" / "flambeau" / "kernels"


WRITER = """
import sys
from pathlib import Path
from flambeau.driver.cuda.device.kernel_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]))
for i in range(300):
    cache.put("k", bytes([i % 251]) * 20000)
    found = cache.get("k")
    assert found is not None and len(set(found)) == 1, len(found or b"")
"""


def test_processes_share_a_folder(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(2)]
    assert [writer.wait(timeout=300) for writer in writers] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["k.cubin"]
