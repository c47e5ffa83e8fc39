"""Which records of the operator table the oracle tests run: a pytest plugin.

    python -m pytest -p oracle_records tests/oracle

writes `tests/goldens/oracle_records.txt`: each record, and the test modules that run it beside PyTorch. Of some
modules alone it changes only what the list says of them.
`tests/ops/test_oracle_records.py` holds the table to that list.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from flambeau.tensor import call

RECORDS = Path(__file__).parent / "goldens" / "oracle_records.txt"


def read() -> dict[str, set[str]]:
    """The list as it is: modules by record."""
    lines = [line.split(": ") for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    return {name: set(modules.split()) for name, modules in lines}


class Recorder:
    """Hears of every plan, which a record has anew in each module."""

    def __init__(self) -> None:
        self.modules: dict[str, set[str]] = defaultdict(set)
        self.module = ""
        self.ran: set[str] = set()
        self._load = call._load

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if item.path.stem != self.module:
            self.module = item.path.stem
            self.ran.add(self.module)
            call._forget_plans()

    def load(self, op: Any, *args: Any) -> Any:
        self.modules[op.name].add(self.module)
        return self._load(op, *args)

    def pytest_sessionfinish(self) -> None:
        for name, modules in read().items():
            self.modules[name] |= modules - self.ran
        lines = [
            f"{name}: {' '.join(sorted(modules))}\n"
            for name, modules in sorted(self.modules.items())
            if modules
        ]
        RECORDS.write_text("".join(lines))


def pytest_configure(config: pytest.Config) -> None:
    recorder = Recorder()
    call._load = recorder.load
    config.pluginmanager.register(recorder)
