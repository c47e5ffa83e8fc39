"""Pinned memory on a real GPU: aliases of it, copies that convert, and what the race detector sees of views."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_kit import VIEWED, needs_gpu, path_with_src

import flambeau as torch
from flambeau.core.dtype import DTYPES

pytestmark = needs_gpu

SLEEP = 200_000_000  # cycles: a tenth of a second

ALIASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "from_numpy": lambda h: torch.from_numpy(h.numpy()),
    "frombuffer": lambda h: torch.frombuffer(memoryview(h.numpy()), dtype=torch.float32),
    "dlpack": lambda h: torch.from_dlpack(h),
    "offset": lambda h: torch.from_numpy(h.numpy()[7:]),
}


@pytest.mark.parametrize("alias", ALIASES)
def test_another_object_over_pinned_memory_copies_asynchronously(alias: str) -> None:
    h = torch.zeros(100).pin_memory()
    a = ALIASES[alias](h)
    assert a.is_pinned() and a.pin_memory() is a
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    x = a.cuda(non_blocking=True)
    assert not torch.cuda.current_stream().query()
    h.fill_(1)
    assert x.tolist() == [1.0] * a.numel()


def test_memory_beside_pinned_memory_is_pageable() -> None:
    pageable = np.zeros(1 << 20, np.float32)
    a = torch.from_numpy(pageable)
    assert not a.is_pinned()
    torch.cuda._sleep(SLEEP)
    x = a.cuda(non_blocking=True)
    pageable[:] = 1
    assert x.sum().item() == 0


def test_memory_that_another_library_pinned_is_pinned() -> None:
    cupy: Any = pytest.importorskip("cupy")
    memory = cupy.cuda.alloc_pinned_memory(4096)
    a = torch.frombuffer(memory, dtype=torch.float32)
    assert a.is_pinned() and a[5:].is_pinned()


def test_converting_copies_use_pinned_memory_when_they_run() -> None:
    h, out = torch.arange(4.0).pin_memory(), torch.zeros(4, dtype=torch.int16, pin_memory=True)

    def copies() -> tuple[torch.Tensor, torch.Tensor]:
        x = h.to("cuda", torch.float16, non_blocking=True)
        out.copy_(x, non_blocking=True)
        return x, x.to("cpu", torch.float64, non_blocking=True)

    copies()  # compiling the kernels takes longer than the sleep
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    x, y = copies()
    assert not torch.cuda.current_stream().query() and y.is_pinned()
    h.fill_(2)
    torch.cuda.synchronize()
    assert x.tolist() == y.tolist() == out.tolist() == [2.0] * 4


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("source", DTYPES, ids=lambda kind: kind.name)
def test_converting_copies_equal_the_cpu(source: torch.dtype) -> None:
    values = torch.tensor([0.0, 1.0, 0.5, 1.5, 2.5, 7.25, 100.0, 126.0], dtype=torch.float64)
    h = values.to(source).pin_memory()
    for target in DTYPES:
        expected = h.to(target)
        for non_blocking in (False, True):
            x = h.to("cuda", target, non_blocking=non_blocking)
            y = h.cuda().to("cpu", target, non_blocking=non_blocking)
            torch.cuda.synchronize()
            for got in (x.cpu(), y):
                same = got.view(torch.uint8) == expected.view(torch.uint8)
                assert bool(same.all()), (source, target, non_blocking, got, expected)


def test_the_race_detector_compares_the_source_at_the_wait() -> None:
    done = subprocess.run(
        [sys.executable, "-c", VIEWED],
        env={
            **os.environ,
            "FLAMBEAU_DRIVER": "cuda",
            "FLAMBEAU_RACES": "warn",
            "PYTHONPATH": path_with_src(),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.split("\n")[:3] == ["0 True", "1 True", "1"], done.stdout + done.stderr


def test_a_part_of_a_block_is_pinned_and_what_lies_beyond_is_not() -> None:
    h = torch.zeros(1 << 20).pin_memory()
    array = np.ctypeslib.as_array((ctypes.c_float * 4).from_address(h.data_ptr() + (4 << 20) - 16))
    assert torch.from_numpy(array).is_pinned()
