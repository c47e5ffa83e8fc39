"""`gpus`: the devices of a test that means the same on virtual GPUs and on real ones."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import flambeau

real = False
"""Whether they are real: set by `--driver=cuda`, see conftest.py."""

either = pytest.mark.either
simulated = pytest.mark.simulated


def needs(count: int) -> None:
    """Skip the test that runs on a real machine with fewer GPUs."""
    if real and flambeau.cuda.device_count() < count:
        pytest.skip(f"too few GPUs: the test needs {count}")


@contextmanager
def gpus(devices: int = 1, **virtual: Any) -> Iterator[None]:
    """Virtual GPUs, so many; with `--driver=cuda` those of the machine. `virtual` says more of virtual ones.

    On a machine with too few GPUs a test that names a missing one is skipped, see conftest.py.
    """
    if not real:
        with flambeau.virtual(devices=devices, **virtual):
            yield
        return
    _as_new()
    try:
        yield
    finally:
        _as_new()


def _as_new() -> None:
    """Real GPUs have neither work nor memory of earlier tests; the first is the current one."""
    gc.collect()
    for index in range(flambeau.cuda.device_count()):
        flambeau.cuda.synchronize(index)
        flambeau.cuda.set_stream(flambeau.cuda.default_stream(index))
    flambeau.cuda.set_device(0)
    flambeau.cuda.empty_cache()
