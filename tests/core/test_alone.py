"""`alone`: which threads could go on for one that waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flambeau.core.host.thread_liveness import alone


@contextmanager
def thread(name: str, daemon: bool) -> Iterator[None]:
    over = threading.Event()
    made = threading.Thread(target=over.wait, name=name, daemon=daemon)
    made.start()
    try:
        yield
    finally:
        over.set()
        made.join()


@pytest.mark.parametrize(
    "name", ["flambeau store", "flambeau MPI", "flambeau-pin-memory", "QueueFeederThread"]
)
def test_threads_that_serve_do_not_count(name: str) -> None:
    before = alone()
    with thread(name, daemon=True):
        assert alone() is before


@pytest.mark.parametrize("daemon", [False, True])
def test_threads_of_the_program_do(daemon: bool) -> None:
    with thread("prefetch", daemon):
        assert not alone()


def test_whose_threads_are_the_programs() -> None:
    found: list[bool] = []
    made = threading.Thread(target=lambda: found.append(alone()))
    made.start()
    made.join()
    assert found == [False], "the main thread could go on for this one"
