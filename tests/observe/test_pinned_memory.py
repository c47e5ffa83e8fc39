"""The race detector and pinned memory: copies, aliases, and views through which the host may touch it unseen."""

from __future__ import annotations

import pytest

import flambeau
import flambeau as torch
from flambeau.runtime import system

N = 256


def certificate_of(program, schedule="earliest", devices=1, **options):
    """The certificate of a program on virtual GPUs, whose last work is waited for."""
    with flambeau.virtual(devices=devices, schedule=schedule, races="warn", **options):
        kept = program()
        torch.cuda.synchronize()
        certificate = system.accelerator().detector.certificate()
        del kept
        return certificate


def freed_in_flight(start, wait):
    """A copy through another tensor over pinned memory, whose names are gone while it may run."""
    pinned = torch.ones(N).pin_memory()
    alias = torch.from_numpy(pinned.numpy()[start:])
    x = alias.cuda(non_blocking=True)
    if wait:
        torch.cuda.synchronize()
    del pinned, alias
    return x, torch.zeros(N).pin_memory()


@pytest.mark.parametrize("start", [0, 1])
def test_copies_that_pytorchs_pinned_allocator_misses_withhold_the_certificate(start):
    """PyTorch finds the block of another object's copy by its first address alone."""
    certificate = certificate_of(lambda: freed_in_flight(start, False))
    line = freed_in_flight.__code__.co_firstlineno
    assert not certificate.races
    if start == 0:
        assert certificate.race_free
        return
    (text,) = certificate.violated
    assert f"test_pinned_memory.py:{line + 4} uses on the default stream of cuda:0 is freed" in text
    assert certificate_of(lambda: freed_in_flight(start, True)).race_free
