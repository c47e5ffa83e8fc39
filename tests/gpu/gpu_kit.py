"""What the tests on a real GPU share. They run with `--driver=cuda` alone, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flambeau
from flambeau.core.device import CPU
from flambeau.ops.op import table
from flambeau.tensor.call import call
from flambeau.testing import operator_properties

needs_gpu = pytest.mark.gpu


def alone(test: Any) -> Any:
    """Mark a test that wants the GPU's memory to itself: beside other processes it is skipped."""
    beside = pytest.mark.skipif(
        "PYTEST_XDIST_WORKER" in os.environ, reason="other processes use the GPU's memory"
    )
    return pytest.mark.alone(beside(test))


GPU = flambeau.device("cuda", 0)


def same(
    name: str, inputs: tuple[Any, ...], params: tuple[Any, ...] = (), layout: Any = operator_properties.plain
) -> None:
    """The operator gives the same bits on the GPU and on the CPU, whose bodies the virtual GPU runs."""
    op = table[name]
    want, got = (
        call(
            op,
            [
                operator_properties.tensor_of(x, layout, place) if isinstance(x, np.ndarray) else x
                for x in inputs
            ],
            params,
        )
        for place in (CPU, GPU)
    )
    assert operator_properties.bits(got) == operator_properties.bits(want), (
        f"{name} {[getattr(x, 'shape', x) for x in inputs]} {params}"
    )


def numbers(kind: Any, count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Seeded values of a dtype: repeated ones, extreme ones; of floats also NaN, infinities and both zeros."""
    random = np.random.default_rng(seed)
    if kind.name == "bool":
        return np.asarray(random.integers(0, 2, count).astype(bool))
    if kind.is_floating_point:
        values = random.standard_normal(count).astype(np.float32)
        values[random.random(count) < 0.2] = 0.5
        for special in (np.nan, np.inf, -np.inf, 0.0, -0.0):
            values[random.random(count) < 0.02] = special
        with np.errstate(all="ignore"):
            return np.asarray(values.astype(kind.numpy))
    limits = np.iinfo(kind.numpy)
    wide = random.integers(limits.min, limits.max, count, kind.numpy, endpoint=True)
    wide[random.random(count) < 0.3] = 3
    return np.asarray(wide)


def finite(kind: Any, count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """`numbers` without those whose arithmetic gives NaN, whose bits differ from machine to machine."""
    values = numbers(kind, count, seed)
    if kind.is_floating_point:
        values[~np.isfinite(values.astype(np.float32))] = 1
        values[values == 0] = 1  # an infinite product times zero
    return values


def path_with_src() -> str:
    """PYTHONPATH for other processes: Flambeau's sources, and what is on this one's."""
    src = Path(flambeau.__file__).parents[1]
    return os.pathsep.join(filter(None, [str(src), os.environ.get("PYTHONPATH")]))


def in_fresh_process(program: str) -> str:
    """Run a program that loses its GPU; what it printed."""
    environment = {**os.environ, "FLAMBEAU_DRIVER": "cuda", "PYTHONPATH": path_with_src()}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


VIEWED = """
import flambeau as torch
from flambeau.runtime import system
h = torch.zeros(1024).pin_memory()
v = h.numpy()
x = torch.empty(1024, device="cuda")
for write in (False, True):
    x.copy_(h, non_blocking=True)
    if write:
        v[3] = 7
    torch.cuda.synchronize()
    certificate = system.accelerator().detector.certificate()
    print(len(certificate.races), any("pinned memory through" in text for text in certificate.assumptions))
h.copy_(x, non_blocking=True)
x.copy_(h, non_blocking=True)
torch.cuda.synchronize()
print(len(system.accelerator().detector.certificate().races))
"""
"""Copies of pinned memory with a view, under the race detector of a real driver."""
