"""`make test` runs half of the cases of each test of emulated kernels, the other half on the next day."""

from __future__ import annotations

import zlib

import pytest
from seeds import EXHAUSTIVE, session_seed

_FOLDERS = ("emulated_kernels", "fused_kernels")
_LEFT_OUT = pytest.mark.skip(reason="a case of another day; FLAMBEAU_TESTS=exhaustive runs all")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip half of the cases: most take as long as g++ takes for their sources."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.path.parent.name in _FOLDERS and not EXHAUSTIVE:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for of_one_test in cases.values():
        # by a hash, so that no half has one dtype or layout alone
        of_one_test.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
        if len(of_one_test) > 1:
            for item in of_one_test[session_seed() % 2 :: 2]:
                item.add_marker(_LEFT_OUT)
