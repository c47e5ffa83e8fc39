"""Slices of storages, storages over files, and tensors over storages: what PyTorch gives, without copies."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import torch

import flambeau


def outcome(lib: Any, program: Callable[..., Any], *args: Any) -> Any:
    try:
        return program(lib, *args)
    except Exception as error:
        return type(error).__name__, str(error)


def slices(lib: Any, first: int | None, last: int | None, step: int | None) -> Any:
    storage = lib.UntypedStorage(list(range(16)))
    part = storage[first:last:step]
    part.fill_(99)
    return [
        part.tolist(), storage.tolist(), part.data_ptr() - storage.data_ptr(), part.nbytes(), part.resizable(),
        str(part.device), part[1:3].tolist(), type(part).__name__,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "bounds",
    [(2, 5, None), (None, None, None), (-3, None, None), (2, 100, 1), (5, 2, None), (0, 8, 2), (0, 0, None)],
)
def test_slices_share_memory(bounds: Any) -> None:
    assert outcome(flambeau, slices, *bounds) == outcome(torch, slices, *bounds)


def test_slices_outlive_their_storage() -> None:
    part = flambeau.UntypedStorage(list(range(200)))[10:20]
    junk = [flambeau.ones(200, dtype=flambeau.uint8) for _ in range(50)]
    assert part.tolist() == list(range(10, 20))
    assert len(junk) == 50


def test_tensors_over_slices_share_memory() -> None:
    for lib in (flambeau, torch):
        storage = lib.UntypedStorage(list(range(16)))
        part = storage[4:12]
        over = lib.asarray(part, dtype=lib.uint8)
        view = over.view(lib.int32)
        placed = lib.tensor([], dtype=lib.uint8).set_(part, 2, (2, 2), (1, 2))
        over[0] = 7
        assert storage[4] == 7
        assert over.data_ptr() == part.data_ptr() == storage.data_ptr() + 4
        assert view.tolist() == [7 | 5 << 8 | 6 << 16 | 7 << 24, 0x0B0A0908]
        assert placed.tolist() == [[6, 8], [7, 9]]


@pytest.mark.parametrize("where", ["cuda", "meta"])
def test_slices_of_other_devices(where: str) -> None:
    with flambeau.virtual(devices=1):
        storage = flambeau.ones(4, device=where).untyped_storage()
        part = storage[4:12]
        assert part.nbytes() == 8
        assert part.device.type == where
        if where == "cuda":
            assert flambeau.asarray(part, dtype=flambeau.float32).tolist() == [1.0, 1.0]


def files(lib: Any, path: Path) -> Any:
    path.write_bytes(bytes(range(32)))
    private = lib.UntypedStorage.from_file(str(path), False, 8)
    private[0] = 77
    shared = lib.UntypedStorage.from_file(str(path), shared=True, nbytes=40)
    before = shared[0]
    shared[1] = 78
    empty = lib.UntypedStorage.from_file(str(path)).nbytes()
    return [private.tolist(), before, path.read_bytes(), shared.nbytes(), empty]


def test_files_are_mapped(tmp_path: Path) -> None:
    assert outcome(flambeau, files, tmp_path / "a") == outcome(torch, files, tmp_path / "b")


@pytest.mark.parametrize("arguments", [(False, 400), (True, 8), (False, -1)])
def test_files_that_cannot_be_mapped(tmp_path: Path, arguments: Any) -> None:
    path = tmp_path / "short"
    path.write_bytes(b"12")
    name = str(path) if not arguments[0] else str(tmp_path / "missing" / "file")

    def read(lib: Any) -> Any:
        return lib.UntypedStorage.from_file(name, *arguments).nbytes()

    ours, theirs = outcome(flambeau, read), outcome(torch, read)
    assert ours[0] == theirs[0] == "RuntimeError"


def test_mappings_become_tensors_without_copies(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(64))
    with path.open("r+b") as file:
        window = mmap.mmap(file.fileno(), 64)
    for make in (
        lambda: flambeau.frombuffer(window, dtype=flambeau.float32, offset=8, count=4),
        lambda: flambeau.asarray(memoryview(window)[8:24], dtype=flambeau.float32),
    ):
        t = make()
        t.fill_(1.0)
        assert t.shape == (4,)
        assert window[8:12] == b"\x00\x00\x80?"
        t.zero_()
    assert window[:] == bytes(64)
